"""Memory-bound rows of kernel tables, third-party (by the rules of :mod:`harness.kernels.stream_schema`) and our own."""

from __future__ import annotations

from collections.abc import Mapping

from harness.kernels import stream_schema
from harness.kernels.cells import Cells
from projector.hardware.types import Gpu
from projector.kernels.tables import Measured, operator
from projector.operators.types import Stream

#: Columns by which the header of this project's stream table is known.
OWN = ("kind", "read_bytes", "write_bytes", "time_us")


def third_party(cells: Cells) -> Measured | str | None:
    """The row's kernel, the reason why it is none, or None for an operation that is no stream."""
    raw = {**dict.fromkeys(("op", "params", "value", "unit", "source"), ""), **cells.raw}
    try:
        found = stream_schema.stream(raw)
    except (KeyError, ValueError):
        return "a memory rate whose value or unit is not understood"
    return None if found is None else measured(found, found["source"] or cells.where)


def own(cells: Cells) -> Mapping[str, str] | None:
    """The cells of our own table, checked; None (and problems noted) where one is wrong."""
    before = len(cells.problems)
    for name in ("read_bytes", "write_bytes"):
        if cells[name] not in ("0", "0.0"):
            cells.positive(name)
    if cells.positive("time_us") is None and not cells["time_us"]:
        cells.wrong("time_us", "a positive number")
    made = {**cells.raw, "launches": str(cells.count("launches", 1))}
    return made if len(cells.problems) == before else None


def measured(cells: Mapping[str, str], source: str) -> Measured:
    seconds = float(cells["time_us"]) * 1e-6
    op = operator("stream", cells)
    return Measured(op, cells.get("family") or "", seconds, cells.get("condition") or "", source)


def too_fast(row: Measured, device: Gpu) -> bool:
    """Whether more bytes a second were moved than the memory of the device can (a cache was measured)."""
    return isinstance(row.op, Stream) and row.op.bytes / row.seconds > device.memory_bandwidth
