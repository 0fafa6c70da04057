"""``harness report``: tables and plots again, from saved rows."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness import gate
from harness.cli.common import Subparsers, add_command
from harness.report import files, publish, terminal

__all__ = ["command", "register"]


def register(commands: Subparsers) -> None:
    parser = add_command(commands, "report", "make tables and plots again from saved results", command)
    parser.add_argument("results", type=Path, metavar="RESULTS", help="a results.json or its folder")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: beside the results)")
    parser.add_argument("--plots", action=argparse.BooleanOptionalAction, default=True)


def command(args: argparse.Namespace) -> int:
    saved = files.read(args.results)
    e = saved.evaluation
    checks = [c for name, limits in saved.gates.items() for c in gate.check(name, e.rows, e.facts, limits)]
    title = "Projection accuracy: " + ", ".join(saved.gates) if saved.gates else "Projection accuracy"
    made = publish.report_of(saved, checks, title)
    folder = args.out or (args.results if args.results.is_dir() else args.results.parent)
    publish.write_reports(folder, made, e.unique_rows, plots=args.plots)
    terminal.show(made)
    print(f"\nwritten to {folder}")
    return 0
