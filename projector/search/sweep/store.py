"""Keeps rows of a sweep on disk: appended as they are made, by the key of each point, so that an interrupted sweep goes on.

``NAME.jsonl``: a line of JSON each, the first one says what wrote it. ``NAME.parquet``: a folder of parts, each whole or
not there (pyarrow, in the extra ``sweep``).
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from projector.errors import InputError, Problem
from projector.io.code import code_hash
from projector.io.documents import json_line
from projector.io.files import write_whole

FORMAT = 1


def opened(path: Path) -> Lines | Parts:
    """Returns the store at ``path``. Raises :class:`InputError` for a file of another version or of something else, and
    where it cannot be written."""
    if path.suffix == ".jsonl":
        return Lines(path)
    if path.suffix == ".parquet":
        return Parts(path)
    raise InputError([Problem("--out", "", str(path), "a name that ends in .jsonl or .parquet")])


def _head() -> dict[str, Any]:
    return {"sweep": FORMAT, "code": code_hash()}


def _check(path: Path, head: object) -> None:
    if not isinstance(head, dict) or "sweep" not in head:
        raise InputError([Problem(str(path), "", "something else", "results that projector sweep wrote")])
    for name, word in (("sweep", "another version of the format"), ("code", "another version of this program")):
        if head.get(name) != _head()[name]:
            raise InputError([Problem(str(path), "", f"results of {word}", "results of this one, or another --out")])


class Lines:
    """A file of JSON lines; a last line that was cut is removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: set[str] = set()
        try:
            self._out: IO[str] = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise InputError([Problem("--out", "", str(path), f"a file to write to ({error.strerror})")]) from None
        self._out.seek(0)
        try:
            text = self._out.read()
        except UnicodeDecodeError:
            raise InputError([Problem(str(path), "", "something else", "results that projector sweep wrote")]) from None
        whole = text[: text.rfind("\n") + 1]
        lines = whole.splitlines()
        if lines:
            _check(path, json_line(lines[0]))
            self.known = {row["key"] for row in map(json_line, lines[1:]) if isinstance(row, dict) and "key" in row}
        elif text:
            raise InputError([Problem(str(path), "", "something else", "results that projector sweep wrote")])
        if len(whole) < len(text):
            os.truncate(path, len(whole.encode()))
        if not lines:
            self._write([_head()])

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        self._write(rows)
        self.known.update(row["key"] for row in rows)

    def _write(self, rows: Sequence[dict[str, Any]]) -> None:
        self._out.write("".join(json.dumps(row) + "\n" for row in rows))
        self._out.flush()

    def frame(self) -> Any:
        """Returns every row of the file as a pandas frame."""
        import pandas as pd

        with self.path.open(encoding="utf-8") as lines:
            next(lines)
            return pd.DataFrame([row for row in map(json_line, lines) if isinstance(row, dict)])

    def close(self) -> None:
        self._out.close()


class Parts:
    """A folder of Parquet files, one for each batch that was done."""

    def __init__(self, path: Path) -> None:
        try:
            importlib.import_module("pyarrow.parquet")
        except ImportError:
            expected = "a name that ends in .jsonl, or pyarrow (the extra: sweep)"
            raise InputError([Problem("--out", "", str(path), expected)]) from None
        self.path, head = path, path / "_sweep.json"  # readers of Parquet folders skip names that begin with _
        try:
            path.mkdir(parents=True, exist_ok=True)
            if head.exists():
                _check(path, json_line(head.read_text(encoding="utf-8")))
            elif any(path.iterdir()):
                raise InputError([Problem("--out", "", str(path), "an empty folder, or one of projector sweep")])
            else:
                write_whole(head, json.dumps(_head()))
        except OSError as error:
            raise InputError([Problem("--out", "", str(path), f"a folder ({error.strerror})")]) from None
        self.known = set(self.frame(["key"])["key"]) if self._files() else set()

    def _files(self) -> list[Path]:
        return sorted(self.path.glob("part-*.parquet"))

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        if rows:
            import pandas as pd

            part = self.path / f"part-{rows[0]['key']}.parquet"
            new = part.with_suffix(".new")
            pd.DataFrame(list(rows)).to_parquet(new, index=False)
            new.replace(part)
            self.known.update(row["key"] for row in rows)

    def frame(self, columns: list[str] | None = None) -> Any:
        """Returns every row of the folder as a pandas frame."""
        import pandas as pd

        files = self._files()
        parts = [pd.read_parquet(file, columns=columns) for file in files]
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()

    def close(self) -> None:
        """Does nothing: every part is closed already."""
