"""``harness peaks``: platforms side by side: peaks, dense utilisation, money, and every row beside its projection."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.cli.common import say
from projector.errors import InputError, Problem, nearest, raise_all
from projector.io.files import write_whole
from projector.workload import zoo


def command(args: argparse.Namespace) -> int:
    from harness import predictors
    from harness.compare.load import benchmark_files
    from harness.evaluation import platforms
    from harness.evidence.runs_of import runs_of_all
    from harness.evidence.selection import chosen
    from harness.report import markdown, peaks_plot, plot, view_peaks

    parameters = _parameters(args.parameters)
    unread: list[Problem] = []
    files = [file for path in args.rows for file in (benchmark_files(path) if path.is_dir() else [path])]
    runs = chosen(runs_of_all(files, unread=unread), args.strategy)
    if unread and (not runs or any(Path(problem.where) in args.rows for problem in unread)):
        raise InputError(unread)
    for problem in unread:
        print(f"not read: {problem}", file=sys.stderr)
    tool = predictors.load(("simulate",))[0]
    rows = platforms.rated(runs, tool, parameters)
    if not rows:
        raise InputError(
            [Problem("command line", "FILE", f"{len(runs)} rows", "at least one with a rate and its GPUs")]
        )
    more = platforms.scaled(platforms.peaks(rows)[0], tool)
    report = view_peaks.build(rows, platforms.alike(rows), more, args.price)
    written = ""
    if args.out is not None:
        picture = plot.png(peaks_plot.draw(rows))
        write_whole(args.out / "peaks.png", picture)
        write_whole(args.out / "peaks.md", markdown.render(report, {"Ten panels": "peaks.png"}))
        written = f"{args.out}: peaks.md, peaks.png"
    say(args, report, written=written)
    return 0


def _parameters(texts: Sequence[str]) -> dict[str, float]:
    counts, problems = dict[str, float](), list[Problem]()
    for text in texts:
        name, _, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        model = zoo.find(name)
        if model is None or not 1 <= number <= 1e15:
            expected = "MODEL=N, N from 1 to 1e15" if model else nearest(name, zoo.names())
            problems.append(Problem("command line", "--parameters", text, expected))
            continue
        counts[model] = number
    raise_all(problems)
    return counts
