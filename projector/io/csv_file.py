"""Reads CSV files: rows by column, with one clear error for another file; and writes the text of a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from projector.errors import InputError, Problem
from projector.io.files import read_text

Rows = list[dict[str, str]]


def read(path: Path, expected: str) -> tuple[tuple[str, ...], Rows]:
    """Returns the header, and every row by column (None for a cell that a short row lacks). ``expected``: what the file
    should be. Raises :class:`InputError` for a file that cannot be read or is no CSV."""
    reader = csv.DictReader(io.StringIO(read_text(path, expected)))
    try:
        rows = list(reader)
        return tuple(reader.fieldnames or ()), rows
    except csv.Error as error:
        raise InputError([Problem(str(path), "", str(error), expected)]) from None


def text(*rows: Iterable[object]) -> str:
    """Returns the rows as lines, the header first; None is an empty cell."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()
