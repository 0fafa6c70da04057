"""A CSV file as rows of cells with their line numbers, or one clear error of what the file is instead."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from projector.errors import InputError, Problem
from projector.io.files import read_text


@dataclass(frozen=True)
class CsvFile:
    """``columns`` as the header names them; ``rows``: (line in the file, cells by column), blank lines left out."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[tuple[int, Mapping[str, str]], ...]


def read(path: Path) -> CsvFile:
    """Raises ``InputError`` for a file that cannot be read, is no CSV of text, is empty, or has ragged rows (all)."""
    try:
        reader = csv.reader(io.StringIO(read_text(path, "a CSV table of kernels")), strict=True)
        numbered = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except csv.Error as error:
        raise InputError([Problem(str(path), "", str(error), "a CSV table of kernels")]) from None
    if len(numbered) < 2:
        found = "an empty file" if not numbered else "a header without rows"
        raise InputError([Problem(str(path), "", found, "a header and at least one row")])
    columns = tuple(name.strip() for name in numbered[0][1])
    problems = [
        Problem(f"{path}:1", name, "this column twice", "every column once")
        for name in dict.fromkeys(columns)
        if columns.count(name) > 1
    ]
    problems += [
        Problem(f"{path}:{line}", "", f"{len(cells)} cells", f"{len(columns)}, as in the header")
        for line, cells in numbered[1:]
        if len(cells) != len(columns)
    ]
    if problems:
        raise InputError(problems)
    rows = tuple((line, dict(zip(columns, cells, strict=True))) for line, cells in numbered[1:])
    return CsvFile(path, columns, rows)
