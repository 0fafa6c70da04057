"""Shields cells of a CSV that a spreadsheet must not compute: text that would be a formula gets a leading apostrophe.

What is a formula to Excel, LibreOffice and Google Sheets: a cell that begins with ``=``, ``+``, ``-`` or ``@``, or with a
tab or a carriage return before one (OWASP, "CSV injection"). Numbers are written as they are. :func:`shielded` and
:func:`plain` undo each other for every text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from projector.errors import Problem, raise_all

T = TypeVar("T")

_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_SHIELDED = re.compile(r"'+[=+\-@\t\r]")


def shielded(value: object) -> object:
    """Returns a text as it is written to the CSV, any other value as it is."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def plain(text: str) -> str:
    """Returns the text that :func:`shielded` was given."""
    return text[1:] if text.startswith("'") and _SHIELDED.match(text) else text


def parsed(kind: type[T], rows: Iterable[Mapping[str, str | None]], where: str) -> list[T]:
    """Returns an object of the dataclass ``kind``, whose fields are texts and figures, for each row; the cell of a figure
    that has a usual value may be empty. Raises :class:`InputError` with every cell that is none."""
    made, problems = [], list[Problem]()
    for line, cells in enumerate(rows, start=2):
        values: dict[str, Any] = {}
        for column in fields(kind):  # type: ignore[arg-type]
            text = cells.get(column.name) or ""
            try:
                if column.type == "str":
                    values[column.name] = plain(text)
                elif text or column.default is MISSING:
                    values[column.name] = int(text) if column.type == "int" else float(text)
            except ValueError:
                problems.append(Problem(where, f"line {line}, {column.name}", text, f"a figure ({column.type})"))
        if not problems:
            made.append(kind(**values))
    raise_all(problems)
    return made
