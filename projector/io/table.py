"""Describes what commands and reports show: lines, titled tables of text cells, and the few formats of a figure. No
renderer is known here.

A table may be data, an entry of a ``tables.yaml`` (:func:`specified`): its ``title``, its ``columns``, a ``note`` below
it, ``total`` and ``detail`` as :class:`Table` has them. A column is ``text`` (words) or ``figure`` (set right) with its
title. ``of``: where its value is found in an item, a path of names and of places in tuples, or a function that the
caller hands over; without it the title, of a tuple the column's place, of a text or a whole number the item. ``as``:
how it is shown, a name of :data:`SHOWN`, a function that the caller hands over, or a format. ``help``, ``minor``: as
:class:`Column` has them. ``when``: only where the caller says so. ``cells``: columns that the caller hands over. In
titles and notes {word} is filled in by the caller.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from projector.dataclass import dataclass

T = TypeVar("T")

NONE = "–"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. ``numeric``: flush right and never broken; words may go on in the next line. ``help``: what a
    reader may ask. ``minor``: 0 stays longest; the larger, the sooner a column is left out where space is short. ``least``:
    characters to which its words are broken (0: as many as are usual)."""

    title: str
    numeric: bool = True
    help: str = ""
    minor: int = 0
    least: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of text, whose first column names the row and is never left out. ``total``: the last row is the sum of those
    above it; ``detail``: for the files, not for the terminal. ``note`` stands below."""

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


Of = str | int | Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Cell:
    """A column, and its content for one item: where the value is found, and how it is shown where there is one."""

    column: Column
    of: Of
    shown: Callable[[Any], str] = str

    def __call__(self, item: Any) -> str:
        of = self.of
        value = of(item) if callable(of) else item[of] if isinstance(of, int) else at(item, of)
        return NONE if value is None or value != value else self.shown(value)


def at(item: Any, path: str) -> Any:
    """Returns what ``a.1.b`` names in an item, ``1`` a place in a tuple; None behind what is None."""
    for name in path.split("."):
        if item is None:
            return None
        place: Any = int(name) if name.isdecimal() else name
        item = item[place] if isinstance(item, Mapping) or place is not name else getattr(item, name)
    return item


def values(item: Any, names: str) -> dict[str, Any]:
    """Returns the values that ``names`` list of an item, for a JSON document: ``tgs`` is an attribute under its own name,
    ``device=memory.device`` a path of :func:`at` under another."""
    words = (word.partition("=") for word in names.split())
    return {key: at(item, path or key) for key, _, path in words}


def text(title: str, of: Of, shown: Callable[[Any], str] = str, help: str = "", *, minor: int = 0) -> Cell:
    """Returns a column of words. ``of``: a path of attributes, the place in a tuple, or a function of the item."""
    return Cell(Column(title, numeric=False, help=help, minor=minor), of, shown)


def figure(title: str, of: Of, shown: Callable[[Any], str] = str, help: str = "", *, minor: int = 0) -> Cell:
    """Returns a column of figures."""
    return Cell(Column(title, help=help, minor=minor), of, shown)


def columns(shown: Sequence[Cell]) -> tuple[Column, ...]:
    return tuple(each.column for each in shown)


def cells(shown: Sequence[Cell], item: object) -> tuple[str, ...]:
    """Returns the text of one item in each column."""
    return tuple(each(item) for each in shown)


def table_of(title: str, items: Iterable[T], shown: Sequence[Cell], note: str = "", *, detail: bool = False) -> Table:
    """Returns a table with one line for each item. A column of marks that has no title goes where nothing is marked."""
    rows = tuple(cells(shown, item) for item in items)
    table = Table(title=title, columns=columns(shown), rows=rows, note=note, detail=detail)
    return without(
        table, *(i for i, column in enumerate(table.columns) if not (column.title or any(r[i] for r in rows)))
    )


def without(table: Table, *dropped: int) -> Table:
    """Returns ``table`` less the columns at these places."""
    remaining = [i for i in range(len(table.columns)) if i not in dropped]
    rows = tuple(tuple(row[i] for i in remaining) for row in table.rows)
    return replace(table, columns=tuple(table.columns[i] for i in remaining), rows=rows)


def main_columns(table: Table) -> Table:
    """Returns ``table`` less its minor columns."""
    return without(table, *(i for i, column in enumerate(table.columns) if column.minor))


def percent(value: float | None, digits: int = 1) -> str:
    """Returns a fraction as a percentage, without a plus sign."""
    return NONE if value is None else f"{100 * value:.{digits}f} %"


def signed(value: float | None, digits: int = 1) -> str:
    return NONE if value is None else f"{100 * value:+.{digits}f} %"


def number(value: float | None, digits: int = 2) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def significant(value: float | None, digits: int = 4) -> str:
    """Returns at least so many digits: ``8.025``, ``80.25``, ``8025``, ``80,250``; no powers of ten from 0.0001 on."""
    if value is None:
        return NONE
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:#.{digits}g}".rstrip(".")


def rate(value: float | None) -> str:
    """Returns tokens/s and the like: whole, with three digits at least, so that errors can be seen in it."""
    return NONE if value is None else f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}".rstrip(".")


percent0, signed0, number0 = partial(percent, digits=0), partial(signed, digits=0), partial(number, digits=0)
number1, number3 = partial(number, digits=1), partial(number, digits=3)


def seconds(value: float | None) -> str:
    """Returns three digits behind the point, more where these say little: ``12.345``, ``0.09697``."""
    return NONE if value is None else number3(value) if abs(value) >= 0.1 or not value else f"{value:#.4g}"


def ratio(part: int, whole: int) -> str:
    return f"{part}/{whole}"


def factor(half: float) -> str:
    """Returns ``× 1.32``: the factor to either side that an interval of this half width in ln reaches."""
    return f"× {math.exp(half):.2f}"


def gib(size: float) -> str:
    """Returns the bytes in GiB, two digits."""
    return f"{size / 2**30:.2f}"


#: The formats of a figure by the name that a text has for them.
SHOWN: Mapping[str, Callable[[Any], str]] = {
    **{shown.__name__: shown for shown in (percent, signed, number, significant, rate, seconds, factor, gib)},
    "percent0": percent0,
    "signed0": signed0,
    "number0": number0,
    "number1": number1,
    "number3": number3,
    "stated": lambda value: str(value) or NONE,
    "joined": lambda words: ", ".join(words) or NONE,
    "joined_bare": ", ".join,
    "ms": lambda value: f"{1e3 * value:.2f}",
    "ms1": lambda value: f"{1e3 * value:.1f}",
    "ms3": lambda value: f"{1e3 * value:.3f}",
    "signed2": partial(signed, digits=2),
    "gib0": lambda size: f"{size / 2**30:.0f}",
    "mib": lambda size: f"{size / 2**20:.2f}",
    "giga": lambda rate: f"{rate / 1e9:.0f}",
    "tera": lambda rate: f"{rate / 1e12:.0f}",
    "billions": lambda number: f"{number / 1e9:.2f}",
}


def cell(
    said: Mapping[str, Any],
    place: int = 0,
    known: Mapping[str, Any] = MappingProxyType({}),
    formats: Mapping[str, Callable[[Any], str]] = SHOWN,
) -> Cell:
    """Returns the column of an entry of a ``tables.yaml``, the ``place``-th of its table. ``known``: words of its title,
    and functions that it names; ``formats``: the names that ``as`` may have."""
    numeric, as_ = "figure" in said, str(said.get("as", ""))
    title = str(said["figure" if numeric else "text"])
    of = str(said.get("of", title))
    hooks = {name: value for name, value in known.items() if callable(value)}

    def value_of(item: Any) -> Any:
        if "of" in said or type(item) not in (tuple, str, int):
            return at(item, of)
        return item[place] if type(item) is tuple else item

    shown = as_.format if "{" in as_ else hooks.get(as_) or (formats[as_] if as_ else str)
    column = Column(
        title.format(**known) if "{" in title else title, numeric, said.get("help", ""), said.get("minor", 0)
    )
    return Cell(column, hooks.get(of, value_of), shown)


def specified(
    entry: Mapping[str, Any],
    items: Iterable[Any],
    known: Mapping[str, Any],
    formats: Mapping[str, Callable[[Any], str]] = SHOWN,
) -> Table:
    """Returns the table of an entry of a ``tables.yaml``, a line an item. ``known``: words of its title, note and columns,
    functions of an item or of a value that its columns name, the conditions of its conditional columns (``when``), and
    columns (``cells``)."""
    shown: list[Cell] = []
    for column in entry["columns"]:
        if "cells" in column:
            shown += known[column["cells"]]
        elif "when" not in column or known.get(column["when"]):
            shown.append(cell(column, len(shown), known, formats))
    title, note = (entry.get(part, "").format(**known) for part in ("title", "note"))
    made = table_of(title, items, shown, note.strip(), detail=entry.get("detail", False))
    return replace(made, total=True) if entry.get("total") else made


_FIELD = re.compile(r"{([\w.]+):?([^}]*)}")


def filled(words: str, item: Any, formats: Mapping[str, Callable[[Any], str]] = SHOWN) -> str:
    """Returns ``words`` with what :func:`at` finds in an item in place of each path in braces: ``{held.mape:percent}`` in a
    format of ``formats``, ``{rows:many run}`` with a noun, ``{rows:,}`` in one of Python; a dash for None."""

    def shown(field: re.Match[str]) -> str:
        value, form = at(item, field[1]), field[2]
        if form.startswith("many "):
            return f"{value} {form.removeprefix('many ')}{'' if value == 1 else 's'}"
        return NONE if value is None else formats[form](value) if form in formats else format(value, form)

    return _FIELD.sub(shown, words)
