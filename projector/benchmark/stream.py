"""Memory-bound operators as kernels that torch has: the pass of the same kind that moves bytes most alike, as often as
the operator launches, with as many elements as give its bytes."""

from __future__ import annotations

import math
from collections.abc import Callable

from projector.benchmark.device import Device
from projector.benchmark.job import Job, Ready, Skip
from projector.benchmark.passes import PASSES, Pass
from projector.operators.types import Stream

#: Above this many bytes a rate no longer changes (the ramp of a stream ends some hundred times earlier).
_MOST = {"cuda": 2 * 2**30, "cpu": 2**28}
_STEP = math.sqrt(2.0)  # sizes are rounded to its powers: a rate hardly changes within one
_SMALL_ROWS = 16  # rows that a tensor has at least before its rows become shorter


def jobs(op: Stream, device: Device) -> tuple[Job, ...]:
    """The stream as one job. Raises :class:`Skip` for a kind without a pass, and for one without bytes."""
    found = chosen(op)
    if op.bytes <= 0:
        raise Skip("streams without bytes")
    times = max(1, round(op.launches / found.launches))
    per_element = found.read + found.write
    each = min(op.bytes, _MOST[device.type]) / times / per_element
    rows, width = _shape(each, found.width)
    elements = rows * width * times
    ran = Stream(
        name="",
        kind=op.kind,
        read=found.read * elements,
        write=found.write * elements,
        launches=found.launches * times,
    )
    return (Job("stream", ran, found.name, ran.bytes / times, lambda: _build(found, device, rows, width, times)),)


def chosen(op: Stream) -> Pass:
    """The pass that reads as large a share of its bytes as ``op`` does. Raises :class:`Skip` for an unknown kind."""
    alike = [each for each in PASSES if each.kind == op.kind]
    if not alike:
        raise Skip(f"streams of kind {op.kind}")
    share = op.read / op.bytes if op.bytes else 0.5
    return min(alike, key=lambda each: abs(each.read / (each.read + each.write) - share))


def _shape(elements: float, width: int) -> tuple[int, int]:
    """(rows, width) of about as many elements: a power of the step, in whole rows."""
    rounded = _STEP ** round(math.log(max(elements, 1.0), _STEP))
    while width > 1 and rounded < _SMALL_ROWS * width:
        width //= 2
    return max(1, round(rounded / width)), width


def _build(found: Pass, device: Device, rows: int, width: int, times: int) -> Ready:
    call = found.setup(device, rows, width)
    return Ready(call if times == 1 else _repeated(call, times), found.name)


def _repeated(call: Callable[[], object], times: int) -> Callable[[], object]:
    def run() -> None:
        for _ in range(times):
            call()

    return run
