"""The table of ``performance --communication``, and the same as JSON values."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

from projector.cli.page import NONE, Column, Table
from projector.step.communication import Traffic

__all__ = ["as_document", "table"]

_TITLES = ("collective", "group", "operation", "algorithm", "MiB", "count", "ms", "hidden", "exposed")
_TEXT = frozenset(_TITLES[:4])
_DROPPED = ("operation", "algorithm", "count")
"""Columns that a narrow terminal goes without, in this order; no figure is ever cut."""
_GAP = 2
_WIDTH = 80
_SUFFIXES = ("_all_reduce", "_reduce_scatter", "_all_gather")


def table(rows: Sequence[Traffic], width: int | None = None) -> Table:
    """Collectives by group with a total; ``width``: of the page (None: the terminal's, 80 where there is none)."""
    wide = [_cells(row) for row in rows]
    total = (sum(row.seconds for row in rows), sum(row.hidden for row in rows), sum(row.exposed for row in rows))
    wide.append(("all", "", "", "", "", "", *map(_ms, total)))
    kept = _columns(wide, width or shutil.get_terminal_size((_WIDTH, 24)).columns)
    return Table(
        title="Communication of a step (busiest rank)",
        columns=tuple(Column(_TITLES[i], text=_TITLES[i] in _TEXT) for i in kept),
        rows=tuple(tuple(cells[i] for i in kept) for cells in wide),
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


def _columns(rows: Sequence[tuple[str, ...]], width: int) -> list[int]:
    """Columns that fit into ``width`` characters, in order."""
    widths = [max(len(title), *(len(row[i]) for row in rows)) for i, title in enumerate(_TITLES)]
    kept = list(range(len(_TITLES)))
    for name in _DROPPED:
        if sum(widths[i] for i in kept) + _GAP * (len(kept) - 1) <= width:
            break
        kept.remove(_TITLES.index(name))
    return kept
