"""Makes the table of ``performance --communication``, and its rows as JSON values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from projector.io.table import Table, figure, table_of, text, values
from projector.step.communication import Traffic

_SUFFIX = r"_(all_reduce|reduce_scatter|all_gather)$"


def _size(row: Traffic) -> str | None:
    return f"{row.bytes / 2**20:.{2 if row.bytes < 100 * 2**20 else 0}f}" if row.count > 0 else None


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


_COLUMNS = (
    text("collective", "name", lambda name: re.sub(_SUFFIX, "", name)),
    text("group", lambda row: row.group.split("_")[0]),
    text("operation", lambda row: row.operation or None, minor=3),
    text("algorithm", lambda row: row.algorithm or None, minor=2),
    figure("MiB", _size),
    figure("count", lambda row: f"{row.count:g}" if row.count > 0 else None, minor=1),
    figure("ms", "seconds", _ms),
    figure("hidden", "hidden", _ms),
    figure("exposed", "exposed", _ms),
)


def table(rows: Sequence[Traffic]) -> Table:
    """Returns the collectives of a step by group, with their total."""
    note = "MiB of one message; ms of all in a step = hidden behind compute + exposed."
    collectives = table_of("Communication of a step (busiest rank)", rows, _COLUMNS, note)
    total = (sum(row.seconds for row in rows), sum(row.hidden for row in rows), sum(row.exposed for row in rows))
    return replace(collectives, rows=(*collectives.rows, ("all", "", "", "", "", "", *map(_ms, total))), total=True)


def as_document(rows: Sequence[Traffic]) -> list[dict[str, Any]]:
    """Returns ``rows`` as JSON values: ``bytes`` of one message, ``count`` messages a step, ``seconds`` =
    ``hidden_seconds`` + ``exposed_seconds``; ``part``: the part of ``breakdown`` that exposed seconds are in."""
    named = "collective=name group part operation algorithm bytes count seconds"
    shown = (values(row, f"{named} hidden_seconds=hidden exposed_seconds=exposed") for row in rows)
    return [{**row, "operation": row["operation"] or None, "algorithm": row["algorithm"] or None} for row in shown]
