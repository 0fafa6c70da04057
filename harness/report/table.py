"""A report: headline sentences, tables, the gate. Tables and the formats of their figures are shared with the projector."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from projector.dataclass import dataclass
from projector.io.table import (
    NONE,
    Cell,
    Column,
    Table,
    cells,
    columns,
    figure,
    main_columns,
    number,
    percent,
    ratio,
    signed,
    table_of,
    text,
)

__all__ = ["NONE", "Cell", "Column", "Report", "Table", "cells", "columns", "figure", "main_columns", "number"]
__all__ += ["percent", "ratio", "signed", "table_of", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A report. ``lines``: the headline sentences; ``gate``: one line a check, with its verdict first."""

    title: str
    lines: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    gate: tuple[str, ...] = ()
    provenance: tuple[tuple[str, str], ...] = field(default=())

    @classmethod
    def of(cls, title: str, tables: Iterable[Table], lines: Iterable[str] = (), gate: Iterable[str] = ()) -> Report:
        """Returns a report of the tables that have rows."""
        filled = tuple(table for table in tables if table.rows)
        return cls(title=title, lines=tuple(lines), tables=filled, gate=tuple(gate))
