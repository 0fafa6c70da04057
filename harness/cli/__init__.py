"""The command line of the harness: one file a command. It uses argparse, which starts ten times faster than typer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from projector.cli.parser import Commands, parse, program
from projector.io.guard import guarded

COMMANDS: Commands = {
    "ask": {
        "score": "whether measured runs are as fast as they should be, by part, and why they most likely are not",
        "compare": "runs, logs and benchmark files side by side, with a verdict",
        "trace": "why a step is slow: a profiler's trace by cause, beside its projection",
    },
    "check": {
        "run": "project every run of the suites and report the error",
        "suites": "the suites that run knows by name",
        "report": "make tables, plots and the page again from saved results",
        "history": "error, coverage and ranking over recorded versions, and the change at which a row broke",
        "inputs": "every experiment of a folder: its projection, or why there is none",
    },
    "make": {
        "ingest": "read training logs and results tables, write measured runs",
        "submit": "pack a folder of measured results into one file that others ingest, without whose they are",
        "measure": "train on the devices at hand and read the log back as a run",
    },
    "": {
        "calibrate": "fit the posterior to measured runs and report its error on rows that nobody had seen",
        "kernels": "score the kernel models on tables of measured kernels",
        "collectives": "score the collective model on measured collectives, by fabric and size",
        "figures": "coverage, error, ranking, memory and speed over all measured runs",
        "first-look": "project runs that were never projected, and keep those figures for good",
        "plans": "hours, goodput, interruptions and power of published training runs beside their plans",
        "peaks": "platforms side by side: peaks, use of the dense peak, money, every row beside its projection, "
        "what to distrust",
        "tolerance": "error of projected peak memory on measured runs, and the tolerance of the verdict that follows",
        "ablate": "what each mechanism is worth: its change of error, order and memory, on rows seen and unseen",
    },
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command. Exit code 0: all is well, 1: a gate failed, 2: the input is wrong (every mistake on stderr)."""
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
        adder="harness.cli.common",
    )
