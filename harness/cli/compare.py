"""``harness compare``: shows runs, logs and benchmark files side by side: six panels, tables, one sentence of verdict."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.common import Parser, add_command, add_measured, add_said, folder_problems, measured_runs, said_of, say
from projector.errors import InputError
from projector.io.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.compare.side import Side
    from harness.compare.verdict import Ratio
    from harness.report.table import Report

_ABOUT = """\
Each RUN is a training log, a benchmark file of TPrimat, a trace, a table of runs (all of its runs), or the id of a
measured run. The first is what the others are compared to. Significant means that the 90 % bootstrap interval of the
ratio of median step times (of tokens/s/GPU, where the work of a step differs) excludes 1: of the steady steps of a log,
of the stated spread where there are no steps. Without either it cannot be stated. No run is called the faster where
model, batch, sequence or GPUs differ, or where a run does not say its model, batch or number of GPUs: then the figures
stand alone, with the reasons. Exit code 2: a file that cannot be read or contradicts itself, an unknown id; then nothing
is written."""


def register(parser: Parser) -> None:
    logs = "measured/logs/cpu_gpt.log.gz measured/logs/cpu_llama_tp2.log.gz"
    flags = add_command(parser, command, examples=(logs, f"{logs} --out out/compare --json"))
    parser.description = _ABOUT
    text = "a file, the id of a measured run, or a folder: all its benchmark files"
    flags.add("named", nargs="*", metavar="RUN", help=text)
    flags.path("--results-dir", metavar="DIR", help="these folders, too", nargs="+", default=[])
    flags.switch("--over-time", "panels of loss, learning rate, memory and step time over the iterations")
    add_measured(flags, "files of measured runs, for the ids")
    add_said(flags)
    flags.path("--out", metavar="DIR", help="write compare.png, compare.svg and compare.md there")
    flags.switch("--benchmark-files", "with --out: also each run as a benchmark file of TPrimat")


def command(args: argparse.Namespace) -> int:
    from harness.compare import load
    from harness.compare.verdict import verdict
    from harness.report import compare_tables

    if problems := folder_problems(args.out):
        raise InputError(problems)
    context = said_of(args)
    folders = {*args.results_dir, *(path for path in map(Path, args.named) if path.is_dir())}
    given = dict.fromkeys((*map(Path, args.named), *args.results_dir))
    named = [str(file) for path in given for file in (load.benchmark_files(path) if path in folders else [path])]
    sides = load.sides(named, lambda: measured_runs(args), context)
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
