"""The command line of the projector: one file a command; argparse, because it starts fast."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from projector.cli import (
    benchmark,
    catalogues,
    constants,
    layers,
    memory,
    network,
    performance,
    plan,
    probe,
    record,
    schedules,
    search,
    sweep,
    trace,
)
from projector.cli.options import parse, program
from projector.io.guard import guarded

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
    network,
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
    return program(
        "projector",
        "Says how fast and how big a distributed LLM training run will be, before it is launched. No GPU is needed.",
        "",
        examples=(
            "performance --model llama3.1_8b --gpu h100 --gpus 64 --mbs 1 --gbs 512 --seq-length 8192",
            "memory --config examples/deepseek_v3_h100.yaml",
        ),
        commands=COMMANDS,
    )
