"""``harness report``: tables, plots and pages again, from saved rows."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.cli.common import Subparsers, add_command, say
from harness.report import files, junit, publish
from harness.score import gate
from projector.errors import InputError, Problem
from projector.io.files import write_whole

__all__ = ["command", "register"]


def register(commands: Subparsers) -> None:
    parser = add_command(
        commands,
        "report",
        "make tables, plots and the page again from saved results",
        command,
        examples=("out/scaling --format html md", "out/scaling --out out/again --format csv --json"),
    )
    add = parser.add_argument
    add("results", type=Path, metavar="RESULTS", help="a results.json or its folder")
    add("--out", type=Path, metavar="DIR", help="where to write (default: beside the results)")
    add("--format", nargs="+", choices=tuple(publish.FORMATS), metavar="NAME", help=_FORMATS)
    add("--plots", action=argparse.BooleanOptionalAction, default=True, help="without --format: draw plots too")
    add("--junit", type=Path, metavar="FILE", help="also write gates and rows as JUnit XML")


_FORMATS = (
    "any of " + "; ".join(f"{name} ({files})" for name, files in publish.FORMATS.items()) + ". Default: html md png"
)


def command(args: argparse.Namespace) -> int:
    if args.out is not None and args.out.exists() and not args.out.is_dir():
        raise InputError([Problem("command line", "--out", str(args.out), "a folder, or a path that does not exist")])
    saved = files.read(args.results)
    e = saved.evaluation
    checks = [c for name, limits in saved.gates.items() for c in gate.check(name, e.rows, e.facts, limits)]
    title = "Projection accuracy: " + ", ".join(saved.gates) if saved.gates else "Projection accuracy"
    made = publish.report_of(saved, checks, title)
    folder = args.out or (args.results if args.results.is_dir() else args.results.parent)
    publish.write_reports(folder, made, saved, args.format or publish.usual(plots=args.plots))
    if args.junit:
        write_whole(args.junit, junit.render(checks, e.rows))
    say(args, made, written=str(folder))
    return 0
