"""``harness ingest``: logs and results tables to measured runs, with what was mapped, assumed and refused."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.common import Subparsers, add_command

if TYPE_CHECKING:
    from harness.ingest.report import IngestReport, RowReport

__all__ = ["command", "register"]


def register(commands: Subparsers) -> None:
    parser = add_command(commands, "ingest", "read training logs and results tables, write measured runs", command)
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="FILE", help="a training log, or a YAML, JSON or CSV table"
    )
    parser.add_argument(
        "--out", type=Path, metavar="PATH", help="a YAML file, or a folder; without it nothing is written"
    )
    parser.add_argument("--map", type=Path, metavar="FILE", help="YAML that renames columns and names the files")
    parser.add_argument(
        "--recipe", type=Path, metavar="FILE", help="YAML of recipe, model and gpu, for logs without any"
    )
    parser.add_argument("--summary", action="store_true", help="only the totals, not row by row")


def command(args: argparse.Namespace) -> int:
    from harness.ingest.command import ingest

    made = ingest(args.paths, out=args.out, header_map=args.map, recipe=args.recipe)
    if not args.summary:
        for row in made.rows:
            print("\n".join(_row(row)))
    print("\n".join(_totals(made)))
    return 0


def _row(row: RowReport) -> Iterator[str]:
    yield f"{row.id} ({row.where}): {'usable' if row.usable else 'refused'}"
    for word, items in (
        ("mapped", row.mapped),
        ("assumed", row.assumed),
        ("refused", row.refused),
        ("doubtful", row.doubts),
        ("unused", row.unused),
    ):
        if items:
            yield f"  {word}: {'; '.join(items)}"


def _totals(made: IngestReport) -> Iterator[str]:
    yield f"{len(made.rows)} rows: {made.usable} usable, {len(made.rows) - made.usable} refused"
    yield from (f"  {count:5d}  {reason}" for reason, count in made.refusals.most_common())
    yield from (f"written: {path} ({count} runs)" for path, count in made.written.items())
