"""A CSV of runs, read row by row in a memory that does not grow with it; any pass over it may be repeated."""

from __future__ import annotations

import csv
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import IO

from harness.evidence.ingest.logs.source import open_source
from harness.evidence.ingest.record import COLUMNS_OF_A_RUN, Record, known_key, normal, section
from projector.errors import InputError, Problem, raise_all

_SUFFIXES = (".csv", ".tsv", ".md")
_RULER = re.compile(r"\|[\s|:-]+")  # between the header and the rows of Markdown
#: What says nothing of a cell: emphasis, breaks of a line, footnotes.
_MARKUP = re.compile(r"\*\*|`|<br ?/?>|&nbsp;|\[\^[^\]]{1,40}\]")
_LONGEST = 2**20  # characters of a line
_MOST_SHOWN = 20  # mistakes of one kind


def is_csv(path: Path) -> bool:
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower() in _SUFFIXES


def headers_in_markdown(text: str) -> list[list[str]]:
    """Returns the columns of each table in a text of Markdown that has at least two columns of a run."""
    rows = [line.strip() for line in text.splitlines()]
    heads = [_cells(row) for row, below in pairwise(rows) if row.startswith("|") and _RULER.fullmatch(below)]
    return [head for head in heads if sum(known_key(section(name)) for name in head) > 1]


def _cells(row: str) -> list[str]:
    return [_MARKUP.sub(" ", cell).strip(" \t*") for cell in row.strip().strip("|").split("|")]


class CsvTable:
    """The records of a CSV (gzip accepted; UTF-8, or the UTF-16 that spreadsheets export as "Unicode text"), or of the one
    table in a text of Markdown.

    The separator is whichever of tab, semicolon and comma the header has most of. Raises :class:`InputError` when made for
    an unreadable or empty table, a column given twice or no column that a run has; while read, for rows of more cells than
    columns.
    """

    def __init__(self, path: Path, columns: Mapping[str, str] | None = None) -> None:
        self.path = path
        names = {normal(old): new for old, new in (columns or {}).items()}
        with self._rows() as rows:
            self.header = next(rows, [])
            first = next(rows, None)
        renamed = (names.get(normal(name), name) for name in self.header)
        self.keys = tuple(name if name.partition(".")[2] else section(name) for name in renamed)
        problems = list(self._header_problems())
        if not problems and first is None:
            problems.append(Problem(str(path), "", "no rows", "at least one record under the header"))
        raise_all(problems)

    def _header_problems(self) -> Iterator[Problem]:
        where = str(self.path)
        if not any(name.strip() for name in self.header):
            yield Problem(where, "line 1", "nothing", "a header with the names of the columns")
            return
        counts = Counter(name.strip() for name in self.header if name.strip())
        yield from (Problem(where, "line 1", name, "each column once") for name, n in counts.items() if n > 1)
        if not any(map(known_key, self.keys)):
            columns = ", ".join(self.header)[:80]
            yield Problem(where, "line 1", columns, COLUMNS_OF_A_RUN)

    def records(self) -> Iterator[Record]:
        """Yields one :class:`Record` a row; its place is ``name[index]``."""
        where, keys, width = self.path.name, self.keys, len(self.keys)
        wrong: list[Problem] = []
        with self._rows() as rows:
            for index, cells in enumerate(islice(rows, 1, None)):
                if len(cells) > width and any(cell.strip() for cell in cells[width:]):
                    cell_count = f"{len(cells)} cells"
                    wrong.append(Problem(str(self.path), f"row {index + 1}", cell_count, f"{width}, as the header has"))
                    if len(wrong) >= _MOST_SHOWN:
                        break
                yield Record.of_cells(keys, cells, f"{where}[{index}]")
        raise_all(wrong)

    def refuse_repeated_ids(self) -> None:
        """Raises :class:`InputError` for ids that a row before has, in one pass that keeps 8 bytes of each."""
        if "id" not in self.keys:
            return
        raise_all(list(islice(self._repeated_ids(self.keys.index("id"), set()), _MOST_SHOWN)))

    def _repeated_ids(self, place: int, seen: set[int]) -> Iterator[Problem]:
        with self._rows() as rows:
            for index, cells in enumerate(islice(rows, 1, None), start=1):
                name = cells[place].strip() if place < len(cells) else ""
                if name and hash(name) in seen:
                    yield Problem(str(self.path), f"row {index}: id", name, "an id that no row before has")
                seen.add(hash(name))

    @contextmanager
    def _rows(self) -> Iterator[Iterator[list[str]]]:
        """Yields the rows that are not empty, the header first."""
        try:
            with open_source(self.path).text() as text:
                lines = self._lines(text)
                if self.path.suffix == ".md":
                    yield self._rows_of_markdown(lines)
                    return
                head = next((line for line in lines if line.strip()), "")
                separator = max(",;\t", key=head.count)
                rows = csv.reader(chain([head], lines), delimiter=separator)
                yield (list(map(_pointed, row)) if separator == ";" else row for row in rows if row)
        except csv.Error as error:
            raise InputError([Problem(str(self.path), "", str(error), "a CSV table")]) from None
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError([Problem(str(self.path), "", reason, "a readable file")]) from None

    def _rows_of_markdown(self, lines: Iterator[str]) -> Iterator[list[str]]:
        """Yields the rows of the first table. Raises :class:`InputError` where there is another one."""
        seen = ended = False
        for number, line in enumerate(map(str.strip, lines), start=1):
            table = line.startswith("|")
            if table and ended:
                expected = "one table: each in a file of its own"
                raise InputError([Problem(str(self.path), f"line {number}", "another table", expected)])
            if table and not _RULER.fullmatch(line):
                yield _cells(line)
            seen, ended = seen or table, seen and not table

    def _lines(self, text: IO[str]) -> Iterator[str]:
        """Yields the lines, each bounded: a file of one line, or what gzip makes of a few bytes, is not held."""
        while line := text.readline(_LONGEST):
            if len(line) >= _LONGEST:
                length = f"a line of {_LONGEST:,} characters or more"
                raise InputError([Problem(str(self.path), "", length, "a CSV table, one row a line")])
            yield line


def _pointed(cell: str) -> str:
    """Returns a cell of a table that semicolons separate, as exports do where the comma is the decimal point: with a point.
    Three digits behind a comma may be thousands all the same: such a cell is made no number."""
    whole, comma, digits = cell.strip().partition(",")
    if not (comma and whole.isdecimal() and digits.isdecimal()):
        return cell
    return f"{whole}, {digits}" if len(digits) == 3 and len(whole) <= 3 else f"{whole}.{digits}"
