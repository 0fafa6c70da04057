"""The command line of the projector: one file a command; argparse, because it starts fast."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from projector import __version__
from projector.cli import (
    benchmark,
    catalogues,
    constants,
    layers,
    memory,
    performance,
    plan,
    probe,
    record,
    schedules,
    search,
    sweep,
    trace,
)
from projector.cli.completion import Completion
from projector.cli.options import Parser, parse
from projector.io.guard import guarded

__all__ = ["run"]

COMMANDS = (
    performance,
    layers,
    memory,
    search,
    sweep,
    plan,
    schedules,
    trace,
    record,
    probe,
    benchmark,
    catalogues,
    constants,
)


def run(argv: Sequence[str]) -> int:
    """Runs one command. Exit code 0, or 2 when the input is wrong: every mistake on its own line of stderr."""
    return guarded(lambda: _run(list(argv)))


def _run(argv: list[str]) -> int:
    parsed = parse(_parser(), argv)
    parsed.command(parsed)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="projector",
        description="Says how fast and how big a distributed LLM training run will be, before it is launched. "
        "No GPU is needed.",
        epilog="Exit code 0; 2 when the input is wrong, with every mistake on its own line.",
        allow_abbrev=False,
    )
    parser.examples = (
        "performance --model llama3.1_8b --gpu h100 --gpus 64 --mbs 1 --gbs 512 --seq-length 8192",
        "memory --config examples/deepseek_v3_h100.yaml",
    )
    parser.add_argument("--completion", action=Completion, help=Completion.HELP)
    parser.add_argument("--version", action="version", version=f"projector {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.register(commands)
    return parser
