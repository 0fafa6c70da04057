"""The command line of the harness: one file a command; argparse, because it starts ten times faster than typer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from harness.cli import (
    ablate,
    calibrate,
    collectives,
    compare,
    figures,
    first_look,
    history,
    ingest,
    inputs,
    kernels,
    measure,
    peaks,
    plans,
    regret,
    report,
    run,
    tolerance,
    trace,
)
from projector.cli.options import parse, program
from projector.io.guard import guarded

COMMANDS = (
    run,
    ingest,
    measure,
    calibrate,
    kernels,
    collectives,
    report,
    history,
    compare,
    figures,
    first_look,
    inputs,
    plans,
    regret,
    peaks,
    tolerance,
    trace,
    ablate,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Exit code 0: all is well, 1: a gate failed, 2: the input is wrong (every mistake on stderr)."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    return guarded(lambda: _run(arguments))


def _run(arguments: list[str]) -> int:
    parsed = parse(_parser(), arguments)
    parsed.argv = arguments
    return int(parsed.command(parsed))


def _parser() -> argparse.ArgumentParser:
    return program(
        "harness",
        "Scores projections of LLM training against measured runs.",
        "1 when a gate fails; ",
        examples=("run suites/scaling.yaml", "ingest measured/logs/cpu_gpt.log.gz"),
        commands=COMMANDS,
    )
