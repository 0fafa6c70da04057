"""A kernel table that grows: rows of our own schema, those already there kept as they are, never half a file on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from projector.benchmark.atomic import write_whole
from projector.errors import InputError, Problem
from projector.io import csv_file
from projector.kernels.protocol import ComputeOp
from projector.kernels.tables import SHAPES, cells_of

_TAIL = ("time_us", "condition", "source", "spread")
#: Columns of a table by kind (``measured/kernels/README.md``).
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("family", *SHAPES["gemm"][1], "tile", "split_k", *_TAIL),
    "attention": ("family", *SHAPES["attention"][1], *_TAIL),
    "grouped": ("family", *SHAPES["grouped"][1], *_TAIL),
    "stream": (*SHAPES["stream"][1], *_TAIL),
}
_NOT_SHAPE = frozenset({"tile", "split_k", *_TAIL})
_LIVE = "live"


class TableFile:
    """``folder/<kind>.csv`` and the file of its sources. Raises :class:`InputError` for a file that is no such table."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.path = folder / f"{kind}.csv"
        self._kind = kind
        self._sources_path = self.path.with_suffix(".sources.csv")
        self._rows = _read(self.path, COLUMNS[kind])
        self._sources = [cells["source"] for cells in _read(self._sources_path, ("number", "source"))]
        self._spelled = bool(self._rows) and not self._sources  # texts stand in the rows themselves
        self._live = {self._key(row) for row in self._rows if row["condition"].startswith(_LIVE)}
        self.changed = False

    def __len__(self) -> int:
        return len(self._rows)

    def holds(self, op: ComputeOp, family: str) -> bool:
        """Whether this kernel was timed live before, by this or an earlier run."""
        return self._key(cells_of(op, family)) in self._live

    def add(self, op: ComputeOp, family: str, seconds: float, spread: float, condition: str, source: str) -> None:
        """One more row; :meth:`save` writes it."""
        cells = cells_of(op, family)
        cells |= {"time_us": f"{seconds * 1e6:.6g}", "condition": condition, "source": self._source(source)}
        cells["spread"] = f"{spread:.4f}"
        self._rows.append(cells)
        self._live.add(self._key(cells))
        self.changed = True

    def save(self) -> None:
        """Writes both files beside their place, then renames them into it. Raises :class:`InputError`."""
        if not self.changed:
            return
        columns = list(dict.fromkeys([*COLUMNS[self._kind], *(key for row in self._rows for key in row)]))
        if self._sources:
            numbered = [{"number": str(i), "source": text} for i, text in enumerate(self._sources, start=1)]
            _write(self._sources_path, ("number", "source"), numbered)
        _write(self.path, columns, self._rows)
        self.changed = False

    def _source(self, text: str) -> str:
        if self._spelled:
            return text
        if text not in self._sources:
            self._sources.append(text)
        return str(self._sources.index(text) + 1)

    def _key(self, cells: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(cells.get(name) or "" for name in COLUMNS[self._kind] if name not in _NOT_SHAPE)


def _read(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    if not path.exists():
        return []
    found, rows = csv_file.read(path, "a table that can be read and added to")
    missing = [name for name in columns if name not in found and name not in ("spread", "tile", "split_k")]
    if missing:
        raise InputError([Problem(str(path), "", f"no column {', '.join(missing)}", f"columns {', '.join(columns)}")])
    return [{key: value or "" for key, value in row.items() if key is not None} for row in rows]


def _write(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> None:
    write_whole(path, csv_file.text(columns, *(map(row.get, columns) for row in rows)))
