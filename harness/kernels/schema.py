"""Reads any kernel table, third-party or our own, as typed rows; a row that cannot be modelled is skipped with its
reason.

The header says which schema it is: ``gpu`` and ``op`` for third-party tables (see :mod:`harness.kernels.convert`),
``family`` and the columns of an operator for this project's own (``measured/kernels/README.md``), whose GPU is the name
of the folder, or stated by the caller.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from harness.kernels import convert
from harness.kernels.convert import Cells
from harness.kernels.families import WORDS
from projector.dataclass import dataclass
from projector.errors import InputError, Problem, Unsupported, nearest, raise_all
from projector.hardware.catalogue import find_gpu, gpu_names
from projector.hardware.catalogue import gpu as catalogue_gpu
from projector.hardware.types import Gpu
from projector.io.files import read_text
from projector.kernels.constants import element_bytes
from projector.kernels.protocol import ComputeOp
from projector.kernels.tables import SHAPES, Measured, kind_of, measured, sources_of
from projector.operators.types import Gemm, Stream


@dataclass(frozen=True)
class CsvFile:
    """A CSV file. ``columns`` as the header has them; ``rows``: (line in the file, cells by column), without blank
    lines."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[tuple[int, Mapping[str, str]], ...]


def read_csv(path: Path) -> CsvFile:
    """Reads a CSV file. Raises ``InputError`` if it cannot be read, is no CSV of text, is empty, or has ragged rows
    (all)."""
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
    raise_all(problems)
    rows = tuple((line, dict(zip(columns, cells, strict=True))) for line, cells in numbered[1:])
    return CsvFile(path, columns, rows)


_RATES = {"B/s": 1.0, "GB/s": 1e9, "TB/s": 1e12}


def stream(row: Mapping[str, str]) -> dict[str, str] | None:
    """Returns the cells of a row that measures a memory rate; None for an operation that is no kernel of one device's
    own memory. Raises ``ValueError`` for a rate that is no positive number, or one in an unknown unit."""
    if row["op"] not in WORDS["moves"]:
        return None
    kind, *arrays, array, condition = WORDS["moves"][row["op"]]
    stated = re.search(r"array_bytes=([\d.e+]+)", row.get("params") or "")
    size = float(stated[1]) if stated and array == "babelstream" else float(WORDS["arrays"][array])
    read, write = (count * size for count in arrays)
    return {
        "kind": kind,
        "read_bytes": f"{read:.0f}",
        "write_bytes": f"{write:.0f}",
        "launches": "1",
        "time_us": f"{(read + write) / _rate(row) * 1e6:.6g}",
        "condition": condition,
        "source": row["source"],
    }


def _rate(row: Mapping[str, str]) -> float:
    """Returns the bytes per second of a row."""
    value = float(row["value"])
    if row["unit"] == "fraction":
        peak = re.search(r"peak ([\d.]+) GB/s", row["params"])
        if peak is None:
            raise ValueError(f"a fraction of no stated peak: {row['params']!r}")
        value *= float(peak[1]) * 1e9
    elif row["unit"] in _RATES:
        value *= _RATES[row["unit"]]
    else:
        raise ValueError(f"unit {row['unit']!r}, expected one of {', '.join(_RATES)} or fraction")
    if not value > 0.0:
        raise ValueError(f"rate {row['value']!r}, expected above 0")
    return value


def third_party(cells: Cells) -> Measured | str | None:
    """Returns the row's kernel, the reason why it is none, or None for an operation that is no stream."""
    raw = {**dict.fromkeys(("op", "params", "value", "unit", "source"), ""), **cells.raw}
    try:
        moved = stream(raw)
    except (KeyError, ValueError):
        return "a memory rate whose value or unit is not understood"
    return None if moved is None else measured("stream", moved, moved["source"] or cells.where)


def too_fast(row: Measured, device: Gpu) -> bool:
    """Tells whether more bytes a second were moved than the memory of the device can (a cache was measured)."""
    return isinstance(row.op, Stream) and row.op.bytes / row.seconds > device.memory_bandwidth


def passes(op: ComputeOp, quantised: bool) -> tuple[ComputeOp, ...]:
    """Returns forward (TN), data gradient (NN) and weight gradient (NT) of the linear whose forward is ``op``.
    ``quantised``: with the casts of input, weight and output gradient from bf16, each read once and written twice (as it
    is and transposed), as a block-scaled FP8 linear does."""
    if not isinstance(op, Gemm):
        raise TypeError(f"a dense product, not {type(op).__name__}")
    m, n, k = op.m, op.n, op.k
    products: tuple[ComputeOp, ...] = (op, replace(op, n=k, k=n, layout="NN"), replace(op, m=n, n=k, k=m, layout="NT"))
    if not quantised:
        return products
    narrow = 2.0 * element_bytes(op.dtype)
    casts = (
        Stream(name=name, kind="cast", read=2.0 * size, write=narrow * size)
        for name, size in (("input", m * k), ("weight", n * k), ("gradient", m * n))
    )
    return (*products, *casts)


#: The values of empty cells of a table of our own.
_DEFAULTS = {"launches": "1", "out_bytes": "2.0"}
_MAY_BE_NONE = ("read_bytes", "write_bytes")
_OPTIONAL = ("source", "library", "kernel", "notes", "layout", "out_dtype", "main_grad_dtype", "dtype")


@dataclass(frozen=True, slots=True)
class Row:
    """One measured kernel of ``gpu`` (catalogue name), from ``where`` (file:line). ``kind``: ``gemm``, ``gemm_step``
    (forward and both gradients in one time), ``attention``, ``grouped``, ``stream``. ``parts``: the operators whose sum
    was timed, where that is not ``measured.op`` alone."""

    gpu: str
    measured: Measured
    where: str
    kind: str
    parts: tuple[ComputeOp, ...] = ()

    @property
    def ops(self) -> tuple[ComputeOp, ...]:
        return self.parts or (self.measured.op,)

    @property
    def flops(self) -> float:
        """Returns the FLOP of the row; zero for streams."""
        return sum(0.0 if isinstance(op, Stream) else op.flops for op in self.ops)

    @property
    def dtype(self) -> str:
        """Returns the type of the operands; for a stream its kind."""
        op = self.measured.op
        return op.kind if isinstance(op, Stream) else op.dtype

    @property
    def scaling(self) -> str:
        return str(getattr(self.measured.op, "scaling", ""))


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that no model here covers: its place, the GPU as the table names it, the operation, and the reason."""

    where: str
    gpu: str
    op: str
    reason: str


@dataclass(frozen=True)
class Loaded:
    """The content of some tables: their paths, the rows that are modelled, and the rows that are skipped."""

    paths: tuple[Path, ...]
    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...]


def read(path: Path, gpu: str | None = None) -> Loaded:
    """Returns the rows of a kernel table. ``gpu``: the device of an own table outside a folder that is named after one.
    Raises ``InputError`` with every mistake of the file."""
    file = read_csv(path)
    if {"gpu", "op"} <= set(file.columns):
        return _third_party_table(file)
    kind = kind_of(file.columns)
    if kind is None or not {"time_us", "kind" if kind == "stream" else "family"} <= set(file.columns):
        shown = ", ".join(file.columns[:8])
        expected = "columns gpu, op, dtype and the shape, or family, time_us and the columns of measured/kernels"
        raise InputError([Problem(f"{path}:1", "", shown, expected)])
    return _own_table(file, kind, gpu)


def _third_party_table(file: CsvFile) -> Loaded:
    kinds = {kind for _, raw in file.rows if (kind := convert.kind_of(raw["op"].strip()))}
    problems = [
        Problem(f"{file.path}:1", name, "no such column", f"a column that {kind} rows need")
        for kind in sorted(kinds)
        for name in convert.COLUMNS[kind]
        if name not in file.columns
    ]
    if kinds and not {"time_us", "tflops", "value"} & set(file.columns):
        problems.append(Problem(f"{file.path}:1", "time_us", "no such column", "time_us, tflops, or metric and value"))
    raise_all(problems)
    found = []
    for line, raw in file.rows:
        cells = Cells({**dict.fromkeys(_OPTIONAL, ""), **raw}, f"{file.path}:{line}", problems)
        row = _row(cells)
        found.append(Skipped(cells.where, raw["gpu"], raw["op"], row) if isinstance(row, str) else row)
    return _loaded(file.path, found, problems)


def _loaded(path: Path, found: Sequence[Row | Skipped], problems: Iterable[Problem]) -> Loaded:
    raise_all([*dict.fromkeys(problems)])
    rows = tuple(row for row in found if isinstance(row, Row))
    return Loaded((path,), rows, tuple(row for row in found if isinstance(row, Skipped)))


def _row(cells: Cells) -> Row | str:
    device = _device(cells["gpu"])
    if device is None:
        return f"a device that the catalogue does not have: {cells['gpu'] or 'no name'}"
    if convert.kind_of(cells["op"]) is None:
        stream = third_party(cells)
        if isinstance(stream, str):
            return stream
        if stream is not None:
            return _plausible(Row(device.name, stream, cells.where, "stream"), device)
    before = len(cells.problems)
    converted = convert.convert(cells, device)
    if isinstance(converted, str):
        return converted
    if len(cells.problems) > before:
        return "wrong cells"
    try:
        table = "gemm" if converted.kind == "gemm_step" else converted.kind
        kernel = measured(table, converted.cells, converted.cells["source"] or cells.where)
    except (ValueError, OverflowError):  # too many digits, or characters that only look like digits
        return "a cell that is no number"
    parts = passes(kernel.op, converted.quantised) if converted.kind == "gemm_step" else ()
    return _plausible(Row(device.name, kernel, cells.where, converted.kind, parts), device)


def _plausible(row: Row, device: Gpu) -> Row | str:
    if row.kind == "stream":
        return "faster than the device's memory" if too_fast(row.measured, device) else row
    try:
        # a cool board runs above the clock that its peak is stated at
        peak = device.peak_of(row.dtype) * max(1.0, device.boost_clock_mhz / device.peak_clock_mhz)
    except (KeyError, Unsupported):
        return f"operands of type {row.dtype} on a device without a matrix rate for them"
    return row if row.flops / row.measured.seconds <= peak else "faster than the device's peak"


def _own_table(file: CsvFile, kind: str, stated: str | None) -> Loaded:
    missing = [name for name in SHAPES[kind][1] if name not in (*file.columns, "launches")]
    problems = [Problem(f"{file.path}:1", name, "no such column", f"a column of the {kind} table") for name in missing]
    name = find_gpu(file.path.resolve().parent.name) or stated
    if name is None:
        expected = f"a GPU's folder ({nearest(file.path.resolve().parent.name, gpu_names())}), or one --gpu"
        problems.append(Problem(str(file.path), "", "a table without its GPU", expected))
    if problems or name is None:
        raise InputError(problems)
    device, sources = catalogue_gpu(name), sources_of(file.path.with_suffix(".sources.csv"))
    found: list[Row | Skipped] = []
    for line, raw in file.rows:
        cells = Cells(raw, f"{file.path}:{line}", problems)
        normal = _normal(cells, kind)
        if normal is None:
            continue
        source = sources.get(cells["source"], cells["source"]) or cells.where
        try:
            row = _plausible(Row(device.name, measured(kind, normal, source), cells.where, kind), device)
        except (ValueError, OverflowError):  # as above
            row = "a cell that is no number"
        found.append(Skipped(cells.where, device.name, kind, row) if isinstance(row, str) else row)
    return _loaded(file.path, found, problems)


def _normal(cells: Cells, kind: str) -> Mapping[str, str] | None:
    """Returns the cells as the operators read them; None (and problems noted) where one of them is wrong."""
    before = len(cells.problems)
    normal = {**cells.raw, **{name: text for name, text in _DEFAULTS.items() if not cells[name]}}
    for name, cell_type in SHAPES[kind][1].items():
        if not cells[name] and name in _DEFAULTS:
            continue
        if cell_type is int:
            normal[name] = str(cells.count(name))
        elif cell_type is bool:
            normal[name] = str(int(cells.flag(name)))
        elif cell_type is float and (name not in _MAY_BE_NONE or cells[name] not in ("0", "0.0")):
            cells.positive(name)
    if cells.positive("time_us") is None and not cells["time_us"]:
        cells.wrong("time_us", "a positive number")
    return normal if len(cells.problems) == before else None


@cache
def _device(name: str) -> Gpu | None:
    known = find_gpu(name)
    return None if known is None else catalogue_gpu(known)
