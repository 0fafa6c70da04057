"""What commands and reports show: lines, titled tables of text cells, and the few formats of a figure. No renderer is
known here."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["NONE", "Column", "Line", "Table", "gib", "number", "percent", "ratio", "signed", "without"]

NONE = "–"


@dataclass(frozen=True, slots=True)
class Column:
    """``numeric``: set flush right, and whole whatever the width; words may go on in the next line. ``help``: what a
    reader may ask. ``minor``: 0 stays longest; the larger, the sooner a column is left out where space is short. ``least``:
    characters to which words are broken where it is (0: as many as are usual)."""

    title: str
    numeric: bool = True
    help: str = ""
    minor: int = 0
    least: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The first column names the row and is never left out. ``total``: the last row is the sum of those above it;
    ``detail``: for the files, not for the terminal. ``note`` stands below."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    total: bool = False
    detail: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A line by itself. ``style``: ``title``, ``bold``, ``dim``, ``good``, ``bad`` or nothing."""

    text: str
    style: str = ""


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


def gib(size: float) -> str:
    """Bytes in GiB, two digits."""
    return f"{size / 2**30:.2f}"
