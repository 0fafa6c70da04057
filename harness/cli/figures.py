"""``harness figures``: the figures that the project answers for, over all measured runs; with ``--out`` the reports."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from harness.cli import against
from harness.cli.common import Subparsers, add_command, positive, progress_bar, read_any, say
from harness.contracts.results import Row
from harness.evaluation import evaluate, speed
from harness.evidence import suite
from harness.report import files, markdown, provenance, publish, view_drift, view_figures, view_switches
from harness.report.plot import png
from harness.report.table import Report
from projector.errors import InputError, Problem
from projector.io.files import write_whole

__all__ = ["command", "register"]

# Enough to tell two projections apart, few enough that another machine's last bit changes nothing.
DIGITS = 6


def register(commands: Subparsers) -> None:
    parser = add_command(
        commands,
        "figures",
        "coverage, error, ranking, memory and speed over all measured runs",
        command,
        examples=("--no-speed --json", "--out out/figures --jobs 2"),
    )
    add = parser.add_argument
    add(
        "--measured",
        type=Path,
        default=Path("measured/runs"),
        metavar="FOLDER",
        help="folder of measured runs (default: measured/runs)",
    )
    add("--suite", type=Path, default=Path("suites/moe.yaml"), metavar="FILE", help="timed (default: suites/moe.yaml)")
    add("--speed", action=argparse.BooleanOptionalAction, default=True, help="time the project's own work too")
    add("--out", type=Path, metavar="DIR", help="also write figures.md, accuracy.md and .html, plots and results.csv")
    add("--jobs", type=positive, default=1, metavar="N", help="processes")
    against.add(parser)


def command(args: argparse.Namespace) -> int:
    paths = sorted(args.measured.glob("*.yaml"))
    problems = [] if paths else [Problem(str(args.measured), "", "no *.yaml", "a folder of measured runs")]
    if args.speed and not args.suite.is_file():
        problems.append(Problem(str(args.suite), "", "no such file", "a suite to time, or --no-speed"))
    if args.out is not None and args.out.exists() and not args.out.is_dir():
        problems.append(Problem("command line", "--out", str(args.out), "a folder, or a path that does not exist"))
    problems += against.problems(args)
    if problems:
        raise InputError(problems)
    earlier = against.read(args)
    runs = read_any(paths)
    # Timed first: the evaluation of a thousand runs would leave every kernel time remembered.
    timed = speed.measure(args.suite) if args.speed else None
    tools = evaluate.tools_for("both")
    with progress_bar(len(runs) * len(tools), "projecting") as progress:
        made = evaluate.evaluate([evaluate.Selected("", r) for r in runs], tools, jobs=args.jobs, progress=progress)
    report = view_figures.build(made, timed, _suites(args.suite.parent, args.measured))
    if args.out is not None:
        read = provenance.collect(paths, ("harness", *args.argv), 0.0)
        _write(args.out, report, files.Saved(evaluation=made, gates={}, provenance=read))
    if earlier is None:
        say(args, report, most=None, written=str(args.out or ""))
        return 0
    held, plain = against.compare(
        args, earlier, [row for row in made.unique_rows if row.predictor == view_figures.MAIN]
    )
    say(args, view_drift.added(report, held, plain), most=None, written=str(args.out or ""))
    return 0 if held.passed and plain.passed else 1


def _suites(folder: Path, measured: Path) -> dict[str, frozenset[str]]:
    """The run ids of every suite of the folder that selects runs; a broken suite is for ``harness run`` to refuse."""
    found = {}
    for path in sorted(folder.glob("*.yaml")):
        with suppress(InputError):
            read = suite.load(path, measured)
            found[read.name] = frozenset(run.id for run in read.runs if run.measured.tgs)
    return {name: ids for name, ids in found.items() if ids}


def _write(folder: Path, report: Report, saved: files.Saved) -> None:
    """The reports that are checked in: everything but the lists of single rows, which ``results.csv`` holds."""
    rows = saved.evaluation.unique_rows
    whole = publish.report_of(saved, (), "Projection accuracy over all measured runs")
    brief = publish.brief(whole)
    images = publish.drawn(rows)
    for name, (_, data) in images.items():
        write_whole(folder / name, data)
    linked = {caption: name for name, (caption, _) in images.items()}
    write_whole(folder / "figures.md", markdown.render(report))
    write_whole(folder / "accuracy.md", markdown.render(brief, linked))
    write_whole(folder / "accuracy.html", publish.page(brief, saved.evaluation))
    switched, found = view_switches.build(saved.evaluation, view_figures.MAIN)
    drawn = view_switches.plot(found)
    if drawn is not None:
        write_whole(folder / "switches.png", png(drawn))
    shown = {"Gains of single switches: projected over measured": "switches.png"} if drawn is not None else {}
    write_whole(folder / "switches.md", markdown.render(switched, shown))
    mine = (r for r in rows if r.predictor == view_figures.MAIN and r.fit != "calibrated")
    write_whole(folder / "results.csv", files.csv_text(_rounded(mine)))


def _rounded(rows: Iterable[Row]) -> Iterable[Row]:
    """Figures to ``DIGITS`` significant digits, and without the time that a projection took."""
    names = [f.name for f in fields(Row)]
    for row in rows:
        values = {name: getattr(row, name) for name in names}
        short: dict[str, Any] = {name: float(f"{v:.{DIGITS}g}") for name, v in values.items() if isinstance(v, float)}
        yield replace(row, **{**short, "seconds_to_project": None})
