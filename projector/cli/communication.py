"""Makes the table of ``performance --communication``, and its rows as JSON values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from projector.cli.tables import tabled
from projector.io.table import SHOWN, Table, values
from projector.step.communication import Traffic

_SUFFIX = r"_(all_reduce|reduce_scatter|all_gather)$"


def _count(row: Traffic) -> str | None:
    return f"{row.count:g}" if row.count > 0 else None


def _size(row: Traffic) -> str | None:
    return f"{row.bytes / 2**20:.{2 if row.bytes < 100 * 2**20 else 0}f}" if row.count > 0 else None


def table(rows: Sequence[Traffic]) -> Table:
    """Returns the collectives of a step by group, with their total."""
    named = {"collective": lambda row: re.sub(_SUFFIX, "", row.name), "group": lambda row: row.group.split("_")[0]}
    collectives = tabled("communication", rows, MiB=_size, count=_count, **named)
    total = (sum(row.seconds for row in rows), sum(row.hidden for row in rows), sum(row.exposed for row in rows))
    last = ("all", "", "", "", "", "", *map(SHOWN["ms1"], total))
    return replace(collectives, rows=(*collectives.rows, last), total=True)


def as_document(rows: Sequence[Traffic]) -> list[dict[str, Any]]:
    """Returns ``rows`` as JSON values: ``bytes`` of one message, ``count`` messages a step, ``seconds`` =
    ``hidden_seconds`` + ``exposed_seconds``; ``part``: the part of ``breakdown`` that exposed seconds are in."""
    named = "collective=name group part operation algorithm bytes count seconds"
    shown = (values(row, f"{named} hidden_seconds=hidden exposed_seconds=exposed") for row in rows)
    return [{**row, "operation": row["operation"] or None, "algorithm": row["algorithm"] or None} for row in shown]
