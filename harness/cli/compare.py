"""``harness compare``: shows runs, logs and benchmark files side by side: six panels, tables, one sentence of verdict."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.common import folder_problems, measured_runs, said_of, say
from projector.errors import InputError, Problem
from projector.io.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.compare.side import Side
    from harness.compare.verdict import Ratio
    from harness.report.table import Report


KNOWN = {"--runs": {"help": "files of measured runs, for the ids"}}


def command(args: argparse.Namespace) -> int:
    from harness.compare import load
    from harness.compare.verdict import verdict
    from harness.report import compare_tables

    if problems := folder_problems(args.out):
        raise InputError(problems)
    context = said_of(args)
    folders = {*args.results_dir, *(path for path in map(Path, args.named) if path.is_dir())}
    given = dict.fromkeys((*map(Path, args.named), *args.results_dir))
    found = {path: load.benchmark_files(path) if path in folders else [path] for path in given}
    unread: list[Problem] = []
    lenient = {str(file): unread for path in folders for file in found[path]}
    sides = load.sides(
        [str(file) for files in found.values() for file in files], lambda: measured_runs(args), context, lenient
    )
    for problem in unread:
        print(f"not read: {problem}", file=sys.stderr)
    sentence = verdict(sides)
    report = compare_tables.report(sides, _ratios(sides), sentence)
    written = _write(args, sides, report, sentence) if args.out is not None else []
    say(args, report, written=f"{args.out}: {', '.join(written)}" if written else "")
    return 0


def _ratios(sides: Sequence[Side]) -> dict[str, Ratio]:
    """Returns the ratio of each side with a figure to the first, in a measure that all of them share."""
    from harness.compare.verdict import common, ratio

    judged = [side for side in sides if side.step_seconds or side.tgs]
    what = common(judged)
    if what is None or sides[0] not in judged:
        return {}
    return {side.name: ratio(sides[0], side, what=what) for side in judged if side is not sides[0]}


def _write(args: argparse.Namespace, sides: Sequence[Side], report: Report, sentence: str) -> list[str]:
    """Writes the files and returns their names; everything is drawn before anything is written."""
    from harness.report import benchmark_file, compare_plot, markdown, plot

    figure = compare_plot.draw(sides, sentence, over_time=args.over_time)
    contents: dict[str, str | bytes] = {"compare.png": plot.png(figure), "compare.svg": plot.svg(figure, searched=True)}
    contents["compare.md"] = markdown.render(report, {"Six panels": "compare.png"})
    if args.benchmark_files:
        contents |= benchmark_file.files(sides)
    for name, content in contents.items():
        write_whole(args.out / name, content)
    return list(contents)
