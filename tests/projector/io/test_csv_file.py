"""CSV files come back as they were written; what is none is one mistake that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from projector.errors import InputError
from projector.io import csv_file


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    rows = [["1", 'a "word", and\nanother line'], ["", "é"]]
    path.write_text(csv_file.text(("a", "b"), *rows), encoding="utf-8")
    columns, found = csv_file.read(path, "a table")
    assert columns == ("a", "b")
    assert [list(row.values()) for row in found] == rows


def test_nothing_is_an_empty_cell_and_an_empty_file_has_no_columns(tmp_path: Path) -> None:
    assert csv_file.text(("a", "b"), (None, 0)) == "a,b\n,0\n"
    path = tmp_path / "empty.csv"
    path.write_text("", encoding="utf-8")
    assert csv_file.read(path, "a table") == ((), [])


def test_a_file_that_no_csv_reader_takes_is_one_mistake(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text(f"a,b\n{'x' * 200_000},1\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"long\.csv: found 'field larger than field limit .*', expected a table"):
        csv_file.read(path, "a table")
