"""The table of ``performance --communication``, and the same as JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from projector.io.table import NONE, Column, Table
from projector.step.communication import Traffic

__all__ = ["as_document", "table"]

_COLUMNS = (
    Column("collective", numeric=False),
    Column("group", numeric=False),
    Column("operation", numeric=False, minor=3),
    Column("algorithm", numeric=False, minor=2),
    Column("MiB"),
    Column("count", minor=1),
    Column("ms"),
    Column("hidden"),
    Column("exposed"),
)
_SUFFIXES = ("_all_reduce", "_reduce_scatter", "_all_gather")


def table(rows: Sequence[Traffic]) -> Table:
    """Collectives by group with a total."""
    wide = [_cells(row) for row in rows]
    total = (sum(row.seconds for row in rows), sum(row.hidden for row in rows), sum(row.exposed for row in rows))
    wide.append(("all", "", "", "", "", "", *map(_ms, total)))
    return Table(
        title="Communication of a step (busiest rank)",
        columns=_COLUMNS,
        rows=tuple(wide),
        total=True,
        note="MiB of one message; ms of all in a step = hidden behind compute + exposed.",
    )


def as_document(rows: Sequence[Traffic]) -> list[dict[str, Any]]:
    """``bytes`` of one message, ``count`` messages a step, ``seconds`` = ``hidden_seconds`` + ``exposed_seconds``;
    ``part``: the part of ``breakdown`` that exposed seconds are in."""
    return [
        {
            "collective": row.name,
            "group": row.group,
            "part": row.part,
            "operation": row.operation or None,
            "algorithm": row.algorithm or None,
            "bytes": row.bytes,
            "count": row.count,
            "seconds": row.seconds,
            "hidden_seconds": row.hidden,
            "exposed_seconds": row.exposed,
        }
        for row in rows
    ]


def _cells(row: Traffic) -> tuple[str, ...]:
    name = next((row.name.removesuffix(end) for end in _SUFFIXES if row.name.endswith(end)), row.name)
    known = row.count > 0
    size = f"{row.bytes / 2**20:.{2 if row.bytes < 100 * 2**20 else 0}f}" if known else NONE
    count = f"{row.count:g}" if known else NONE
    group = row.group.split("_")[0]
    return (
        name,
        group,
        row.operation or NONE,
        row.algorithm or NONE,
        size,
        count,
        *map(_ms, (row.seconds, row.hidden, row.exposed)),
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"
