"""Makes the tables, the sketch and the JSON document of ``projector schedules``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from projector.cli import document, expected, report
from projector.cli.comparison import Row, alive
from projector.cli.inputs import Case
from projector.cli.tables import tabled
from projector.errors import InputError
from projector.io.table import Line, Table, gib, number0, percent, values
from projector.pipeline.evaluator import evaluate
from projector.pipeline.optimal import Optimum, improve
from projector.pipeline.sketch import sketch
from projector.pipeline.types import Costs
from projector.projection import Projection

_BUBBLES = (
    "Bubble: share of time without compute, mean over ranks; of the makespan (start of the step to the last end on any "
    "rank), of the span (a rank's own first start to its last end)."
)


def as_page(case: Case, rows: tuple[Row, ...], shown: Row, width: int, seconds: float | None) -> Iterator[Line | Table]:
    """Yields the head, all schedules, the ranks of the one shown, its sketch and, if asked for, the optimal order."""
    projection = shown.projection
    if projection is None:
        return
    yield from report.head(case, projection)
    yield from _schedule_tables(case, rows, shown)
    yield _rank_table(case, projection)
    yield Line("")
    yield from (Line(text) for text in sketch(projection.timeline, width).splitlines())
    if seconds is not None:
        yield Line("")
        yield Line(_optimal_words(projection, seconds))
    yield Line("")
    yield from report.remarks(case, projection)


def as_document(case: Case, rows: tuple[Row, ...], shown: Row, seconds: float | None) -> dict[str, Any]:
    """Returns ``schedules``, one entry a row, and ``shown``, the schedule that everything else describes."""
    projection = shown.projection
    if projection is None:
        return {}
    content = document.head("schedules", case, projection) | {
        "schedules": [_entry(case, row) for row in rows],
        "shown": {"schedule": shown.schedule, "vpp": shown.vpp},
    }
    if seconds is not None:
        content["optimal"] = _optimal_entry(projection, seconds)
    return content


def _schedule_tables(case: Case, rows: tuple[Row, ...], shown: Row) -> Iterator[Line | Table]:
    yield from report.by_framework(
        "schedules",
        case,
        rows,
        "Pipeline schedules",
        f"* shown below. {report.ORDERED} {_BUBBLES}",
        marked=lambda row: row.schedule + (" *" if row is shown else ""),
        expected=expected.columns(case),
        makespan=lambda row: row.projection.timeline.bubble_of_makespan.mean(),
        span=lambda row: row.projection.timeline.bubble_of_span.mean(),
        alive=lambda timeline: number0(alive(timeline).max()),
        fullest=lambda projection: gib(max(_device_bytes(case, projection))),
        emptiest=lambda projection: gib(min(_device_bytes(case, projection))),
    )


def _device_bytes(case: Case, projection: Projection) -> list[float]:
    """Returns the bytes on the device of each rank."""
    return [document.rank_totals(case, projection, rank.held)[1] for rank in projection.memory.ranks]


def _rank_table(case: Case, projection: Projection) -> Table:
    held = projection.memory.ranks
    rows = [{**rank, "always": of_rank.static} for rank, of_rank in zip(_ranks(case, projection), held, strict=True)]
    return tabled("schedule_ranks", rows, schedule=projection.timeline.compiled.schedule.name)


def _entry(case: Case, row: Row) -> dict[str, Any]:
    projection = row.projection
    if projection is None:
        return {**values(row, "schedule vpp"), "status": "refused", "reason": row.reason}
    line = projection.timeline
    return {
        **values(row, "schedule vpp in_framework=runs"),
        "status": "ok" if row.fits else "out-of-memory",
        **values(projection, "step_seconds tgs"),
        "makespan_seconds": float(line.makespan),
        "bubble_of_makespan": float(line.bubble_of_makespan.mean()),
        "bubble_of_span": float(line.bubble_of_span.mean()),
        "device_bytes": projection.memory.device,
        "ranks": _ranks(case, projection),
    }


def _ranks(case: Case, projection: Projection) -> list[dict[str, Any]]:
    line, alive_chunks = projection.timeline, alive(projection.timeline)
    times = "busy_seconds=rank_busy start_seconds=rank_start end_seconds=rank_end bubble_of_makespan bubble_of_span"
    figures, ranks = values(line, times), []
    for rank, held in enumerate(projection.memory.ranks):
        sizes = (held.allocated, *document.rank_totals(case, projection, held.held))
        held_bytes = zip(("allocated_bytes", "reserved_bytes", "device_bytes"), map(float, sizes), strict=True)
        timed = {name: float(by_rank[rank]) for name, by_rank in figures.items()}
        ranks.append({"rank": rank, **timed, "chunks_alive": int(alive_chunks[rank]), **dict(held_bytes)})
    return ranks


def _optimal(projection: Projection, seconds: float) -> tuple[Optimum, float]:
    """Returns the best order found, and the makespan of the schedule itself when messages run beside compute."""
    timeline = projection.timeline
    plan, stages = timeline.compiled, timeline.compiled.stages
    messages = np.zeros(stages)
    np.maximum.at(messages, plan.boundary, np.broadcast_to(timeline.transfer, plan.boundary.shape))
    durations = [tuple(timeline.durations[i * stages : (i + 1) * stages].tolist()) for i in range(3)]
    costs = Costs(durations[0], durations[1], durations[2], tuple(messages[: stages - 1].tolist()))
    now = evaluate(plan, costs.forward, costs.backward_input, costs.backward_weight, costs.p2p, overlap_p2p=True)
    return improve(plan.schedule, costs, None, seconds), float(now.makespan)


def _optimal_words(projection: Projection, seconds: float) -> str:
    name, found = projection.timeline.compiled.schedule.name, _optimal_entry(projection, seconds)
    if "reason" in found:
        return f"Optimal order: none: {found['reason']}"
    best, bound, own = (1e3 * found[f"{each}_seconds"] for each in ("makespan", "bound", "schedule_makespan"))
    gap = f"no order is below {bound:.2f} ms (gap {percent(found['gap'])})"
    return (
        f"Optimal order of {name}'s actions in {name}'s memory, messages beside compute: {best:.2f} ms, "
        f"{'proven' if found['status'] == 'proven' else gap}; {name} itself {own:.2f} ms"
    )


def _optimal_entry(projection: Projection, seconds: float) -> dict[str, Any]:
    try:
        optimum, makespan = _optimal(projection, seconds)
    except InputError as error:
        return {"status": "refused", "reason": "; ".join(map(str, error.problems))}
    figures = values(optimum, "makespan_seconds=makespan bound_seconds=bound gap")
    return {"status": "proven" if optimum.proven else "time limit", **figures, "schedule_makespan_seconds": makespan}
