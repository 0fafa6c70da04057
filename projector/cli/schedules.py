"""Shows all pipeline schedules of a configuration, and the timeline of one of them: ``projector schedules``."""

from __future__ import annotations

import argparse
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from projector.cli.comparison import Row


def command(options: argparse.Namespace) -> None:
    from projector.cli import as_json, schedules_view
    from projector.cli.changes import AUTO
    from projector.cli.comparison import best, compare, single
    from projector.cli.inputs import naming_the_flag, read_case
    from projector.errors import Unsupported

    case = read_case(options)
    name = options.pipeline_schedule_algorithm
    with naming_the_flag(options):
        # One schedule by its name is shown alone; otherwise all are, and what is wrong with all of them is said.
        single_schedule = name not in (None, AUTO, "all")
        rows: tuple[Row, ...] = (single(case),) if single_schedule else compare(case)
        shown = best(rows)
        if shown is None:
            single(case)
            raise Unsupported("; ".join(f"{row.schedule}: {row.reason}" for row in rows))
    _write_files(options, rows, shown)
    width = options.width or shutil.get_terminal_size((120, 24)).columns
    as_json.tell(
        options.json,
        lambda: schedules_view.as_document(case, rows, shown, options.optimal),
        lambda: schedules_view.as_page(case, rows, shown, width, options.optimal),
    )


def _write_files(options: argparse.Namespace, rows: tuple[Row, ...], shown: Row) -> None:
    from projector.cli.trace import kept_by_stage, static_by_rank, write_trace
    from projector.pipeline import draw

    if shown.projection is None:
        return
    if options.draw:
        ordered = sorted(rows, key=lambda row: (row is not shown, row.order))
        projections = [row.projection for row in ordered if row.projection is not None]
        draw.save(
            [projection.timeline for projection in projections[: options.draw_best]],
            options.draw,
            bytes_per_stage=kept_by_stage(shown.projection),
            static=static_by_rank(shown.projection),
        )
    if options.trace:
        write_trace(shown.projection, options.trace)
