"""What every report shows: titled tables of text cells, and the few formats of a figure. No renderer is known here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

__all__ = ["NONE", "Column", "Report", "Table", "number", "percent", "ratio", "signed", "without"]

NONE = "–"


@dataclass(frozen=True, slots=True)
class Column:
    """``numeric``: set flush right; ``help``: what a reader may ask; ``minor``: first to go where space is short."""

    title: str
    numeric: bool = True
    help: str = ""
    minor: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """``detail`` tables are for the files, not for the terminal. ``note`` stands below the table."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    detail: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """``lines``: the headline sentences; ``gate``: one line a check, with its verdict first."""

    title: str
    lines: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    gate: tuple[str, ...] = ()
    provenance: tuple[tuple[str, str], ...] = field(default=())


def without(table: Table, *dropped: int) -> Table:
    """``table`` less the columns at these places."""
    kept = [i for i in range(len(table.columns)) if i not in dropped]
    rows = tuple(tuple(row[i] for i in kept) for row in table.rows)
    return replace(table, columns=tuple(table.columns[i] for i in kept), rows=rows)


def percent(value: float | None, digits: int = 1) -> str:
    """A fraction as a percentage without a sign of its own unless it is negative."""
    return NONE if value is None else f"{100 * value:.{digits}f} %"


def signed(value: float | None, digits: int = 1) -> str:
    return NONE if value is None else f"{100 * value:+.{digits}f} %"


def number(value: float | None, digits: int = 2) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def ratio(part: int, whole: int) -> str:
    return f"{part}/{whole}"
