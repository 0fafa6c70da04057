"""``harness ingest``: logs and results tables to measured runs, with what was mapped, assumed and refused."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.common import Subparsers, add_command, positive
from harness.report import ingest_table
from harness.report.ingest_view import CutView, StepView

if TYPE_CHECKING:
    from harness.ingest.logs.build import LogRun
    from harness.ingest.report import IngestReport, RowReport

__all__ = ["command", "register"]

_ABOUT = """\
Training logs of any dialect (plain, gzip, bzip2 or xz; - is standard input) and results tables become measured runs.

Refused, exit code 2, nothing written, a line for each mistake (file, line, key, found, expected): a file that cannot be
read, binary data, an empty file, a log of no known dialect, a document cut short; a global batch, a sequence or a number
of ranks in the arguments that the log's lines or the user deny; parallel sizes that do not make up the ranks; a batch
that its micro-batches do not divide.
Doubtful, a line beside the row, the run is kept: printed tokens/s or TFLOP/s that the step time does not give; two
levels of step time; lines that repeat a step with another time; a job that failed; compressed data that ends early."""
_MOST = 40  # items of one kind printed for a row


def register(commands: Subparsers) -> None:
    parser = add_command(commands, "ingest", "read training logs and results tables, write measured runs", command)
    parser.description = _ABOUT
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="FILE", help="a training log, or a YAML, JSON or CSV table"
    )
    parser.add_argument(
        "--out", type=Path, metavar="PATH", help="a YAML file, or a folder; without it nothing is written"
    )
    parser.add_argument("--map", type=Path, metavar="FILE", help="YAML that renames columns and names the files")
    parser.add_argument(
        "--recipe",
        type=Path,
        metavar="FILE",
        help="YAML of recipe, model and gpu, or any configuration file, for logs without arguments",
    )
    parser.add_argument("--gpu", metavar="NAME", help="the GPU of the logs, where they do not name it")
    parser.add_argument("--gpus", type=positive, metavar="N", help="the number of GPUs, where the logs do not say it")
    parser.add_argument("--no-plot", action="store_true", help="no PNG of the steps beside what --out writes")
    parser.add_argument("--summary", action="store_true", help="only the totals, not row by row")


def command(args: argparse.Namespace) -> int:
    from harness.ingest.command import ingest

    made = ingest(args.paths, out=args.out, header_map=args.map, recipe=args.recipe, gpu=args.gpu, gpus=args.gpus)
    views = {log.run.id: view for log in made.logs if (view := _view(log)) is not None}
    if not args.summary:
        for row in made.rows:
            print("\n".join(_row(row)))
            if row.id in views:
                print("\n".join(ingest_table.lines(views[row.id])))
    plots = _plot(views, args.out) if args.out is not None and not args.no_plot else []
    print("\n".join((*_totals(made), *(f"written: {path}" for path in plots))))
    return 0


def _view(log: LogRun) -> StepView | None:
    """The steps behind a run, for table and plot."""
    from harness.ingest.logs.build import timers_of
    from harness.ingest.steady import REASONS

    state, record, scale = log.state, log.record, log.scale
    if state is None or not scale > 0:
        return None
    cuts = (
        CutView(
            reason=cut.reason,
            steps=cut.steps,
            first=cut.first,
            last=cut.last,
            median_s=cut.median * scale,
            total_s=cut.total * scale,
        )
        for cut in state.cuts
    )
    kernels = record.kernels
    shares = (
        (("busy", kernels.busy_s), ("communication", kernels.communication_s), ("exposed", kernels.exposed_s))
        if kernels is not None and kernels.span_s
        else ()
    )
    return StepView(
        id=log.run.id,
        dialect=log.dialect,
        iteration=record.iteration,
        segment=record.segment,
        seconds=record.value * scale,
        reasons=state.reasons,
        names=REASONS,
        median=state.value * scale,
        mean=state.mean * scale,
        low=None if state.low is None else state.low * scale,
        high=None if state.high is None else state.high * scale,
        kept=state.kept,
        cuts=tuple(cuts),
        timers=timers_of(record),
        kernels=kernels.top if kernels is not None else (),
        shares=tuple((what, seconds / kernels.span_s) for what, seconds in shares) if kernels is not None else (),
    )


def _plot(views: Mapping[str, StepView], out: Path) -> list[Path]:
    """One PNG a run, beside the runs' file or in their folder."""
    from harness.ingest.command import replace_file
    from harness.report import ingest_plot

    folder = out.parent if out.suffix in (".yaml", ".yml") else out
    paths = [folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.png" for name in views]
    for path, view in zip(paths, views.values(), strict=True):
        replace_file(path, ingest_plot.png(view))
    return paths


def _row(row: RowReport) -> Iterator[str]:
    yield f"{row.id} ({row.where}): {'usable' if row.usable else 'refused'}"
    for word, items in (
        ("mapped", row.mapped),
        ("assumed", row.assumed),
        ("refused", row.refused),
        ("unused", row.unused),
    ):
        if items:
            more = f"; and {len(items) - _MOST} more" if len(items) > _MOST else ""
            yield f"  {word}: {'; '.join(items[:_MOST])}{more}"
    yield from (f"  doubtful: {doubt}" for doubt in row.doubts[:_MOST])


def _totals(made: IngestReport) -> Iterator[str]:
    yield f"{len(made.rows)} rows: {made.usable} usable, {len(made.rows) - made.usable} refused"
    yield from (f"  {count:5d}  {reason}" for reason, count in made.refusals.most_common())
    yield from (f"written: {path} ({count} runs)" for path, count in made.written.items())
