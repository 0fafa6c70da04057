"""The command line of the harness: one file a command. It uses argparse, which starts ten times faster than typer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from projector.cli.parser import parse, program
from projector.io.guard import guarded


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command. Exit code 0: all is well, 1: a gate failed, 2: the input is wrong (every mistake on stderr)."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    return guarded(lambda: _run(arguments))


def _run(arguments: list[str]) -> int:
    parsed = parse(_parser(), arguments)
    parsed.argv = arguments
    return int(parsed.command(parsed))


def _parser() -> argparse.ArgumentParser:
    return program("harness", adder="harness.cli.common")
