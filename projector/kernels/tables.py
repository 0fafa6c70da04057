"""Measured kernel tables: ``measured/kernels/<gpu>/{gemm,attention,grouped,stream}.csv`` as operators with their seconds.

Columns are described in ``measured/kernels/README.md``; the files are written by ``tools/import_kernel_tables.py``
and by the live path. One row is one kernel at one shape, in device microseconds.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from projector.errors import InputError, Problem
from projector.io.places import nearest_folder
from projector.kernels.protocol import ComputeOp
from projector.operators.types import Attention, Gemm, GroupedGemm, Stream

KINDS = ("gemm", "attention", "grouped", "stream")

# Where the build puts ``measured/kernels`` in a wheel (pyproject.toml, force-include).
PACKAGED = Path(__file__).resolve().parent / "measured"


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured kernel: the operator, the library family that ran it, its seconds, and how and where it was
    measured; the macro-tile (``rows x columns [x depth]``) and the parts of K, where the kernel's name tells them.
    """

    op: ComputeOp
    family: str
    seconds: float
    condition: str
    source: str
    tile: str = ""
    split_k: int = 0


def tables_dir(start: Path | None = None) -> Path | None:
    """The nearest ``measured/kernels`` folder at or above ``start`` (default: the working directory), else beside the
    package, else the copy that an installed package carries.
    """
    return nearest_folder("measured/kernels", PACKAGED, start)


def read(folder: Path) -> tuple[Measured, ...]:
    """All rows of one GPU's folder, in file order. Raises ``InputError`` with every row that cannot be read."""
    rows: list[Measured] = []
    problems: list[Problem] = []
    for kind in KINDS:
        path = folder / f"{kind}.csv"
        if path.is_file():
            sources = sources_of(path.with_suffix(".sources.csv"))
            with path.open(newline="", encoding="utf-8") as lines:
                for number, cells in enumerate(csv.DictReader(lines), start=2):
                    _row(kind, cells, f"{path}:{number}", rows, problems, sources)
    if problems:
        raise InputError(problems)
    return tuple(rows)


def operator(kind: str, cells: Mapping[str, str]) -> ComputeOp:
    """The operator that a row of the ``kind`` table describes. Raises ``KeyError`` without a column, ``ValueError`` for
    a cell that is no number.
    """
    return _MAKE[kind](cells)


def sources_of(path: Path) -> Mapping[str, str]:
    """Source texts by the number that stands for them in the table beside, empty where the table spells them out."""
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
        seconds = float(cells["time_us"]) * 1e-6
        op = operator(kind, cells)
        source = sources.get(cells["source"], cells["source"])
        tile, split = cells.get("tile") or "", int(cells.get("split_k") or 0)
        rows.append(
            Measured(
                op,
                cells.get("family") or "" if kind == "stream" else cells["family"],
                seconds,
                cells["condition"],
                source,
                tile,
                split,
            )
        )
    except KeyError as error:
        problems.append(Problem(where, str(error.args[0]), None, "a column of this name"))
        return
    except (TypeError, ValueError) as error:
        problems.append(Problem(where, "", str(error), "numbers in every size and time column"))
        return
    if not seconds > 0.0:
        problems.append(Problem(where, "time_us", cells["time_us"], "a positive time"))


def _gemm(cells: Mapping[str, str]) -> Gemm:
    return Gemm(
        name="",
        m=int(cells["m"]),
        n=int(cells["n"]),
        k=int(cells["k"]),
        batch=int(cells["batch"]),
        dtype=cells["dtype"],
        scaling=cells["scaling"],
        layout=cells["layout"],
        out_bytes=float(cells["out_bytes"]),
        accumulate=cells["accumulate"] == "1",
    )


def _attention(cells: Mapping[str, str]) -> Attention:
    return Attention(
        name="",
        batch=int(cells["batch"]),
        heads=int(cells["heads"]),
        kv_heads=int(cells["kv_heads"]),
        seq_q=int(cells["seq_q"]),
        seq_k=int(cells["seq_k"]),
        head_dim_qk=int(cells["head_dim_qk"]),
        head_dim_v=int(cells["head_dim_v"]),
        causal=cells["causal"] == "1",
        window=int(cells.get("window") or 0) or None,
        dtype=cells["dtype"],
        backward=cells["backward"] == "1",
    )


def _grouped(cells: Mapping[str, str]) -> GroupedGemm:
    return GroupedGemm(
        name="",
        groups=int(cells["groups"]),
        rows=int(cells["rows"]),
        n=int(cells["n"]),
        k=int(cells["k"]),
        dtype=cells["dtype"],
        scaling=cells["scaling"],
        layout=cells["layout"],
        out_bytes=float(cells["out_bytes"]),
        accumulate=cells["accumulate"] == "1",
        backend=cells["backend"],
    )


def _stream(cells: Mapping[str, str]) -> Stream:
    return Stream(
        name="",
        kind=cells["kind"],
        read=float(cells["read_bytes"]),
        write=float(cells["write_bytes"]),
        launches=int(cells["launches"]),
    )


_MAKE: dict[str, Callable[[Mapping[str, str]], ComputeOp]] = {
    "gemm": _gemm,
    "attention": _attention,
    "grouped": _grouped,
    "stream": _stream,
}
