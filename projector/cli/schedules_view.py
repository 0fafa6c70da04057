"""What ``projector schedules`` shows: tables, sketch and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from projector.cli import document, expected, report
from projector.cli.comparison import Row, alive
from projector.cli.inputs import Case
from projector.errors import InputError
from projector.io.table import (
    Line,
    Table,
    figure,
    gib,
    listed,
    number,
    number0,
    number1,
    percent,
    seconds,
    text,
    values,
)
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
    """Head, all schedules, the ranks of the one shown, its sketch and, if asked for, the optimal order."""
    made = shown.projection
    if made is None:
        return
    yield from report.head(case, made)
    yield from _schedules(case, rows, shown)
    yield _ranks(case, made)
    yield Line("")
    yield from (Line(text) for text in sketch(made.timeline, width).splitlines())
    if seconds is not None:
        yield Line("")
        yield Line(_optimal_words(made, seconds))
    yield Line("")
    yield from report.remarks(case, made)


def as_document(case: Case, rows: tuple[Row, ...], shown: Row, seconds: float | None) -> dict[str, Any]:
    """``schedules``: one entry a row; ``shown``: the one that ``ranks`` and everything else is of."""
    made = shown.projection
    if made is None:
        return {}
    content = document.head("schedules", case, made) | {
        "schedules": [_entry(case, row) for row in rows],
        "shown": {"schedule": shown.schedule, "vpp": shown.vpp},
    }
    if seconds is not None:
        content["optimal"] = _optimal_entry(made, seconds)
    return content


def _schedules(case: Case, rows: tuple[Row, ...], shown: Row) -> Iterator[Line | Table]:
    columns = (
        text("schedule", lambda row: row.schedule + (" *" if row is shown else "")),
        figure("vpp", "vpp"),
        figure("step s", "projection.step_seconds", seconds),
        *expected.columns(case),
        figure("tokens/s/GPU", "projection.tgs", number1, minor=2),
        figure("bubble of makespan", lambda row: row.projection.timeline.bubble_of_makespan.mean(), percent, minor=1),
        figure("of span", lambda row: row.projection.timeline.bubble_of_span.mean(), percent, minor=2),
        figure("chunks alive", lambda row: alive(row.projection.timeline).max(), number0, minor=1),
        figure("fullest rank GiB", lambda row: max(_devices(case, row.projection)), gib),
        figure("emptiest", lambda row: min(_devices(case, row.projection)), gib, minor=3),
        text("verdict", "projection.memory.words"),
    )
    note = f"* shown below. {report.ORDERED} {_BUBBLES}"
    yield from report.by_framework("Pipeline schedules", case, rows, columns, note)


def _devices(case: Case, made: Projection) -> list[float]:
    """Bytes on the device of each rank."""
    return [document.rank_totals(case, made, rank.held)[1] for rank in made.memory.ranks]


def _ranks(case: Case, made: Projection) -> Table:
    line, ranks, devices = made.timeline, made.memory.ranks, _devices(case, made)
    most = alive(line)
    columns = (
        figure("rank", int),
        figure("busy ms", lambda rank: 1e3 * line.rank_busy[rank], number),
        figure("starts ms", lambda rank: 1e3 * line.rank_start[rank], number, minor=2),
        figure("ends ms", lambda rank: 1e3 * line.rank_end[rank], number, minor=2),
        figure("bubble of makespan", lambda rank: line.bubble_of_makespan[rank], percent),
        figure("of span", lambda rank: line.bubble_of_span[rank], percent, minor=1),
        figure("chunks alive", lambda rank: most[rank], number0),
        figure("always GiB", lambda rank: ranks[rank].static, gib),
        figure("peak allocated", lambda rank: ranks[rank].allocated, gib),
        figure("peak device", lambda rank: devices[rank], gib),
    )
    return listed(f"Ranks of {line.compiled.schedule.name}", range(len(ranks)), columns)


def _entry(case: Case, row: Row) -> dict[str, Any]:
    made = row.projection
    if made is None:
        return {"schedule": row.schedule, "vpp": row.vpp, "status": "refused", "reason": row.reason}
    line, most = made.timeline, alive(made.timeline)
    ranks = []
    of_ranks = values(
        line, "busy_seconds=rank_busy start_seconds=rank_start end_seconds=rank_end bubble_of_makespan bubble_of_span"
    )
    for rank, held in enumerate(made.memory.ranks):
        reserved, device = document.rank_totals(case, made, held.held)
        ranks.append(
            {
                "rank": rank,
                **{name: float(of_rank[rank]) for name, of_rank in of_ranks.items()},
                "chunks_alive": int(most[rank]),
                "allocated_bytes": float(held.allocated),
                "reserved_bytes": float(reserved),
                "device_bytes": float(device),
            }
        )
    return {
        **values(row, "schedule vpp in_framework=runs"),
        "status": "ok" if row.fits else "out-of-memory",
        **values(made, "step_seconds tgs"),
        "makespan_seconds": float(line.makespan),
        "bubble_of_makespan": float(line.bubble_of_makespan.mean()),
        "bubble_of_span": float(line.bubble_of_span.mean()),
        "device_bytes": made.memory.device,
        "ranks": ranks,
    }


def _optimal(made: Projection, seconds: float) -> tuple[Optimum, float]:
    """(the best order found, makespan of the schedule itself when messages run beside compute)."""
    timeline = made.timeline
    plan, stages = timeline.compiled, timeline.compiled.stages
    messages = np.zeros(stages)
    np.maximum.at(messages, plan.boundary, np.broadcast_to(timeline.transfer, plan.boundary.shape))
    parts = [tuple(timeline.durations[i * stages : (i + 1) * stages].tolist()) for i in range(3)]
    costs = Costs(parts[0], parts[1], parts[2], tuple(messages[: stages - 1].tolist()))
    now = evaluate(plan, costs.forward, costs.backward_input, costs.backward_weight, costs.p2p, overlap_p2p=True)
    return improve(plan.schedule, costs, None, seconds), float(now.makespan)


def _optimal_words(made: Projection, seconds: float) -> str:
    name = made.timeline.compiled.schedule.name
    try:
        found, now = _optimal(made, seconds)
    except InputError as error:
        return f"Optimal order: none: {'; '.join(map(str, error.problems))}"
    proven = "proven" if found.proven else f"no order is below {1e3 * found.bound:.2f} ms (gap {percent(found.gap)})"
    return (
        f"Optimal order of {name}'s actions in {name}'s memory, messages beside compute: {1e3 * found.makespan:.2f} ms, "
        f"{proven}; {name} itself {1e3 * now:.2f} ms"
    )


def _optimal_entry(made: Projection, seconds: float) -> dict[str, Any]:
    try:
        found, now = _optimal(made, seconds)
    except InputError as error:
        return {"status": "refused", "reason": "; ".join(map(str, error.problems))}
    return {
        "status": "proven" if found.proven else "time limit",
        "makespan_seconds": found.makespan,
        "bound_seconds": found.bound,
        "gap": found.gap,
        "schedule_makespan_seconds": now,
    }
