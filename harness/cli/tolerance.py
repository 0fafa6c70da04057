"""``harness tolerance``: how far off projected peaks are, and what the memory verdict must leave to either side."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.cli.common import Parser, add_command, say, tables
from harness.evidence import shelf


def register(parser: Parser) -> None:
    add_command(
        parser,
        command,
        examples=("measured/runs/megatron_lm.yaml measured/runs/torchtitan.yaml", "measured/runs/other.yaml --json"),
    )
    parser.add_argument(
        "runs",
        nargs="*",
        type=Path,
        default=[shelf.folder("measured/runs")],
        metavar="RUNS",
        help="measured runs: files or folders (default: measured/runs)",
    )


def command(args: argparse.Namespace) -> int:
    from harness.evaluation import peaks
    from harness.evidence.runs_of import runs_of_all
    from harness.report import view_tolerance

    runs = runs_of_all(tables(args.runs))
    say(args, view_tolerance.build(peaks.peaks(runs), peaks.judged(runs), peaks.sized(runs)))
    return 0
