"""Measured kernel tables: ``measured/kernels/<gpu>/{gemm,attention,grouped,stream}.csv`` as operators with their seconds.

Columns are described in ``measured/kernels/README.md``; the files are written by ``tools/import_kernel_tables.py``
and by the live path. One row is one kernel at one shape, in device microseconds.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from projector.dataclass import dataclass
from projector.errors import Problem, raise_all
from projector.io.files import nearest_folder
from projector.kernels.protocol import ComputeOp
from projector.operators.types import Attention, Gemm, GroupedGemm, Stream

_PRODUCT = {"dtype": str, "scaling": str, "layout": str, "accumulate": bool, "out_bytes": float}
_LENGTHS = ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim_qk", "head_dim_v")
#: The operator of each kind of table, and the columns that describe it, with their types.
SHAPES: Mapping[str, tuple[type, Mapping[str, type]]] = {
    "gemm": (Gemm, {**_PRODUCT, **dict.fromkeys(("m", "n", "k", "batch"), int)}),
    "attention": (Attention, {"dtype": str, "backward": bool, "causal": bool, **dict.fromkeys(_LENGTHS, int)}),
    "grouped": (GroupedGemm, {**_PRODUCT, "backend": str, **dict.fromkeys(("groups", "rows", "n", "k"), int)}),
    "stream": (Stream, {"kind": str, "read_bytes": float, "write_bytes": float, "launches": int}),
}
KINDS = tuple(SHAPES)
#: Fields of an operator, by the table's column where that has another name.
_FIELDS = {"read_bytes": "read", "write_bytes": "write"}
#: Kinds of tables by a column that only they have.
_MARKS = {"seq_q": "attention", "groups": "grouped", "read_bytes": "stream", "m": "gemm"}
_READ: Mapping[type, Callable[[str], object]] = {str: str, int: int, float: float, bool: "1".__eq__}

# Where the build puts ``measured/kernels`` in a wheel (pyproject.toml, force-include).
PACKAGED = Path(__file__).resolve().parent / "measured"


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured kernel: the operator, the library family that ran it, its seconds, and how and where it was
    measured; the macro-tile (``rows x columns [x depth]``), where the kernel's name states it."""

    op: ComputeOp
    family: str
    seconds: float
    condition: str
    source: str
    tile: str = ""


def tables_dir(start: Path | None = None) -> Path | None:
    """Returns the nearest ``measured/kernels`` folder at or above ``start`` (default: the working directory), else
    beside the package, else the copy that an installed package carries."""
    return nearest_folder("measured/kernels", PACKAGED, start)


def read(folder: Path) -> tuple[Measured, ...]:
    """Returns all rows of one GPU's folder, in file order. Raises ``InputError`` with every row that cannot be read."""
    rows: list[Measured] = []
    problems: list[Problem] = []
    for kind in KINDS:
        path = folder / f"{kind}.csv"
        if path.is_file():
            sources = sources_of(path.with_suffix(".sources.csv"))
            with path.open(newline="", encoding="utf-8") as lines:
                for number, cells in enumerate(csv.DictReader(lines), start=2):
                    _row(kind, cells, f"{path}:{number}", rows, problems, sources)
    raise_all(problems)
    return tuple(rows)


@cache
def digest(folder: Path) -> str:
    """Returns a hash of the tables in a GPU's folder; empty where there is no such folder."""
    found = hashlib.sha256()
    for path in sorted(folder.glob("*.csv")):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest() if folder.is_dir() else ""


def kind_of(columns: Iterable[str]) -> str | None:
    """Returns the kind of table that has these columns, or None."""
    found = set(columns)
    return next((kind for mark, kind in _MARKS.items() if mark in found), None)


def operator(kind: str, cells: Mapping[str, str]) -> ComputeOp:
    """Returns the operator that a row of the ``kind`` table describes. Raises ``KeyError`` without a column,
    ``ValueError`` for a cell that is no number."""
    made, columns = SHAPES[kind]
    values = {_FIELDS.get(name, name): _READ[each](cells[name]) for name, each in columns.items()}
    if made is Attention:
        values["window"] = int(cells.get("window") or 0) or None
    op: ComputeOp = made(name="", **values)
    return op


def cells_of(op: ComputeOp, family: str) -> dict[str, str]:
    """Returns the cells that describe an operator in a row: the inverse of :func:`operator`."""
    columns = next(columns for made, columns in SHAPES.values() if isinstance(op, made))
    values = {name: _text(getattr(op, _FIELDS.get(name, name))) for name in columns}
    return values if isinstance(op, Stream) else {"family": family, **values}


def _text(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(int(value) if isinstance(value, bool) else value)


def measured(kind: str, cells: Mapping[str, Any], source: str) -> Measured:
    """Returns a row with its operator. Raises as :func:`operator` does."""
    op, seconds = operator(kind, cells), float(cells["time_us"]) * 1e-6
    family = cells.get("family") or "" if kind == "stream" else cells["family"]
    return Measured(op, family, seconds, cells.get("condition") or "", source, cells.get("tile") or "")


def sources_of(path: Path) -> Mapping[str, str]:
    """Returns source texts by the number that stands for them in a table, empty where the table spells them out."""
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as lines:
        return {cells["number"]: cells["source"] for cells in csv.DictReader(lines)}


def _row(
    kind: str,
    cells: Mapping[str, str],
    where: str,
    rows: list[Measured],
    problems: list[Problem],
    sources: Mapping[str, str],
) -> None:
    try:
        made = measured(kind, cells, sources.get(cells["source"], cells["source"]))
    except KeyError as error:
        problems.append(Problem(where, str(error.args[0]), None, "a column of this name"))
    except (TypeError, ValueError) as error:
        problems.append(Problem(where, "", str(error), "numbers in every size and time column"))
    else:
        rows.append(made)
        if not made.seconds > 0.0:
            problems.append(Problem(where, "time_us", cells["time_us"], "a positive time"))
