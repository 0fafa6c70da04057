"""``harness ingest``: converts logs and results tables to measured runs, and says what was mapped, assumed and refused."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli import ingest_view
from harness.cli.common import said_of
from projector.cli import as_json
from projector.io import terminal
from projector.io.table import Line

if TYPE_CHECKING:
    from harness.evidence.ingest.report import IngestReport, LogRun, RowReport

_MOST_REASONS = 60  # reasons counted below the rows
_MOST = 40  # items of one kind printed for a row


def command(args: argparse.Namespace) -> int:
    from harness.evidence import submission

    with tempfile.TemporaryDirectory() as where:
        others: dict[Path, Path] = {}
        args.paths = list(_unpacked(args.paths, Path(where), others))
        if args.out is not None and args.out.suffix not in (".yaml", ".yml"):
            submission.place(others, args.out)
        return _ingest_all(args)


def _unpacked(paths: Sequence[Path], where: Path, others: dict[Path, Path]) -> Iterator[Path]:
    """Yields ``paths``, for a submission its files of runs; adds its other files to ``others``, by their names there."""
    from harness.evidence import submission

    for number, path in enumerate(paths):
        if not submission.is_submission(path):
            yield path
            continue
        folder = where / str(number)
        runs, rest = submission.unpack(path, folder)
        others |= {file.relative_to(folder): file for file in rest}
        yield from runs


def _ingest_all(args: argparse.Namespace) -> int:
    from harness.evidence.ingest.command import ingest
    from harness.evidence.ingest.stream import is_long

    if len(args.paths) == 1 and is_long(args.paths[0]):
        return _ingest_long_table(args)
    report = ingest(args.paths, out=args.out, header_map=args.map, said=said_of(args))
    timed = {log.run.id: log for log in report.logs if log.state is not None and log.scale > 0}
    unsound = {log.run.id for log in report.logs if log.problems}
    drawn = [log for name, log in timed.items() if name not in unsound]
    plots = _plot(drawn, args.out) if args.out is not None and not args.no_plot else []
    if args.json:
        counted = {"usable": report.usable, "refusals": dict(report.refusals), "plots": [str(path) for path in plots]}
        as_json.write({"command": "ingest", **report.to_mapping(), **counted})
        return _exit_code(report)
    if not args.summary:
        for row in report.rows:
            terminal.show([*map(Line, _row(row)), *(ingest_view.blocks(timed[row.id]) if row.id in timed else ())])
    totals = _totals(Counter(row.status for row in report.rows), report.refusals, report.written)
    terminal.show(map(Line, (*totals, *(f"written: {path}" for path in plots))))
    return _exit_code(report)


def _exit_code(report: IngestReport) -> int:
    """Prints the mistakes and returns the exit code: 2 where some inputs were refused, 1 without a usable row."""
    for problem in report.problems:
        print(problem, file=sys.stderr)
    return 2 if report.problems else int(not report.usable)


def _ingest_long_table(args: argparse.Namespace) -> int:
    """Ingests one table that is too long to hold in memory: too many rows for a document, or a screen, but their totals."""
    from harness.evidence.ingest.command import stream_table

    ingested = stream_table(args.paths[0], args.out, args.map)
    if args.json:
        as_json.write({"command": "ingest", **{name: dict(counts) for name, counts in vars(ingested).items()}})
    else:
        terminal.show(map(Line, _totals(ingested.statuses, ingested.refusals, ingested.written)))
        terminal.show(Line(f"  {count:5d}  {text}") for text, count in ingested.said.most_common(_MOST_REASONS))
    return int(not ingested.statuses["usable"])


def _plot(logs: Sequence[LogRun], out: Path) -> list[Path]:
    """Draws one PNG a run, where ``out`` is a folder: none is put beside a file that a user named."""
    from projector.io.files import write_whole

    if out.suffix in (".yaml", ".yml"):
        return []
    paths = [out / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', log.run.id)}.png" for log in logs]
    for path, log in zip(paths, logs, strict=True):
        write_whole(path, ingest_view.png(log))
    return paths


def _row(row: RowReport) -> Iterator[str]:
    yield f"{row.id} ({row.where}): {row.status}"
    for word, items in (
        ("read", row.read),
        ("missing", row.flagged),
        ("mapped", row.mapped),
        ("assumed", row.assumed),
        ("refused", row.refused if row.status == "refused" else ()),
        ("unread", row.unread),
    ):
        if items:
            more = f"; and {len(items) - _MOST} more" if len(items) > _MOST else ""
            yield f"  {word}: {'; '.join(items[:_MOST])}{more}"
            if word == "missing" and (example := _example(row)):
                yield f"  FILE: {example}"
    yield from (f"  doubtful: {doubt}" for doubt in row.doubts[:_MOST])


def _example(row: RowReport) -> str:
    """Returns an example of the recipe file, where its content is missing."""
    wanted = [name for name, flag in row.missing if flag == "--recipe FILE"]
    if not wanted:
        return ""
    fields = ", ".join(f"{name}: …" for name in wanted if name != "model")
    parts = ["model: llama3.1_8b"] if "model" in wanted else []
    example = ", ".join([*parts, *([f"recipe: {{{fields}}}"] if fields else [])])
    return f"YAML such as {{{example}}}, or the configuration that the run was started with"


def _totals(counts: Counter[str], refusals: Counter[str], written: Mapping[str, int]) -> Iterator[str]:
    part = f", {counts['incomplete']} incomplete" if counts["incomplete"] else ""
    total = counts.total()
    yield f"{total} row{'' if total == 1 else 's'}: {counts['usable']} usable{part}, {counts['refused']} refused"
    yield from (f"  {count:5d}  {reason}" for reason, count in refusals.most_common(_MOST_REASONS))
    if len(refusals) > _MOST_REASONS:
        yield f"         and {len(refusals) - _MOST_REASONS} more reasons"
    yield from (f"written: {path} ({count} run{'' if count == 1 else 's'})" for path, count in written.items())
