"""Defines the command line of the projector, one file a command, with argparse because it starts fast."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from projector.cli.parser import parse, program
from projector.io.guard import guarded


def run(argv: Sequence[str]) -> int:
    """Runs one command. Returns exit code 0, or 2 when the input is wrong: every mistake on its own line of stderr."""
    return guarded(lambda: called(list(argv)))


def called(argv: list[str]) -> int:
    """Runs one command for a caller in Python and returns 0. Raises what is wrong instead of printing it."""
    parsed = parse(_parser(), argv)
    parsed.command(parsed)
    return 0


def _parser() -> argparse.ArgumentParser:
    return program("projector")
