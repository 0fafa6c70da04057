"""Memory-bound rows of kernel tables, third-party (by the rules of :mod:`harness.kernels.stream_schema`) and our own."""

from __future__ import annotations

from harness.kernels import stream_schema
from harness.kernels.cells import Cells
from projector.hardware.types import Gpu
from projector.kernels.tables import Measured, measured
from projector.operators.types import Stream


def third_party(cells: Cells) -> Measured | str | None:
    """The row's kernel, the reason why it is none, or None for an operation that is no stream."""
    raw = {**dict.fromkeys(("op", "params", "value", "unit", "source"), ""), **cells.raw}
    try:
        found = stream_schema.stream(raw)
    except (KeyError, ValueError):
        return "a memory rate whose value or unit is not understood"
    return None if found is None else measured("stream", found, found["source"] or cells.where)


def too_fast(row: Measured, device: Gpu) -> bool:
    """Whether more bytes a second were moved than the memory of the device can (a cache was measured)."""
    return isinstance(row.op, Stream) and row.op.bytes / row.seconds > device.memory_bandwidth
