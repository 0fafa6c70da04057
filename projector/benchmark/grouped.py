"""Times the linears of several experts through torch: one kernel (``torch._grouped_mm``) or a product an expert."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from projector.benchmark.device import Device
from projector.benchmark.gemm import family, narrow
from projector.benchmark.job import FP8, Job, Ready, Skip, as_run, filled, in_two_kernels, torch_type
from projector.kernels.constants import element_bytes
from projector.operators.types import GroupedGemm

_STREAMS = 4  # streams among which Transformer Engine spreads the products of experts (its grouped linear's default)


def jobs(op: GroupedGemm, device: Device) -> tuple[Job, ...]:
    """Returns the grouped product as one job, rows spread evenly (a table has no column for another spread).

    ``fused`` without a kernel for it runs expert after expert and is recorded as ``loop``; ``multi_stream`` keeps its
    name on a CPU, which has no streams, since nothing else stands for it there: the note says so. Raises :class:`Skip`
    for a type that torch cannot run.
    """
    one_kernel = hasattr(device.torch, "_grouped_mm") and op.dtype == "bf16"
    op = as_run(op, device, backend="loop" if op.backend == "fused" and not one_kernel else op.backend)
    if op.rows < op.groups:
        raise Skip("experts without rows")
    width = element_bytes(op.dtype)
    nbytes = width * (op.rows * (op.n + op.k) + op.groups * op.n * op.k) + 2 * op.out_bytes * math.prod(_outputs(op))
    return (Job("grouped", op, family(device, op.dtype), nbytes, lambda: _build(op, device)),)


def _outputs(op: GroupedGemm) -> tuple[int, ...]:
    return (op.groups, op.n, op.k) if op.layout == "NT" else (op.rows, op.n)


def _loads(op: GroupedGemm) -> list[int]:
    even, rest = divmod(op.rows, op.groups)
    return [even + (i < rest) for i in range(op.groups)]


def _build(op: GroupedGemm, device: Device) -> Ready:
    if op.dtype in FP8:
        return _spread(op, device, _narrow_products(op, device), "operands transposed beforehand")
    dtype = torch_type(device, op.dtype)
    rows = filled(device, (op.rows, op.n if op.layout == "NT" else op.k), dtype)
    shapes = {"NT": (op.rows, op.k), "NN": (op.groups, op.k, op.n), "TN": (op.groups, op.n, op.k)}
    other = filled(device, shapes[op.layout], dtype)
    other = other.mT if op.layout == "TN" else other
    if op.backend == "fused":
        return _fused(op, device, rows, other)
    return _spread(op, device, _products(op, device, rows, other), "")


def _fused(op: GroupedGemm, device: Device, rows: Any, other: Any) -> Ready:
    torch = device.torch
    ends = torch.tensor(_loads(op), device=device.place).cumsum(0).to(torch.int32)
    left = rows.t() if op.layout == "NT" else rows
    product = partial(torch._grouped_mm, left, other, offs=ends)
    if op.out_bytes != 4 and not op.accumulate:
        return Ready(product)
    wide = torch.float32 if op.out_bytes == 4 else rows.dtype
    return in_two_kernels(product, torch.zeros(_outputs(op), dtype=wide, device=device.place), op.accumulate)


def _products(op: GroupedGemm, device: Device, rows: Any, other: Any) -> list[Callable[[], object]]:
    torch, calls, start = device.torch, list[Callable[[], object]](), 0
    wide = torch.float32 if op.out_bytes == 4 else rows.dtype
    for group, count in enumerate(_loads(op)):
        own_rows = rows[start : start + count]
        a, b = (own_rows.t(), other[start : start + count]) if op.layout == "NT" else (own_rows, other[group])
        out = torch.zeros((a.shape[0], b.shape[1]), dtype=wide, device=device.place)
        if out.dtype != a.dtype:
            calls.append(in_two_kernels(partial(torch.mm, a, b), out, op.accumulate).call)
        else:
            calls.append(
                partial(torch.addmm, out, a, b, out=out) if op.accumulate else partial(torch.mm, a, b, out=out)
            )
        start += count
    return calls


def _narrow_products(op: GroupedGemm, device: Device) -> list[Callable[[], object]]:
    if op.accumulate:
        raise Skip("8-bit grouped products that accumulate")
    out_type = device.torch.float32 if op.out_bytes == 4 else device.torch.bfloat16
    shapes = [(op.n, op.k, load) if op.layout == "NT" else (load, op.n, op.k) for load in _loads(op)]
    return [narrow(device, *shape, op.scaling, out_type) for shape in shapes]


def _spread(op: GroupedGemm, device: Device, calls: list[Callable[[], object]], note: str) -> Ready:
    if op.backend != "multi_stream" or device.type == "cpu":
        apart = "expert after expert" if op.backend == "multi_stream" else ""
        return Ready(lambda: [call() for call in calls], "; ".join(filter(None, (note, apart))))
    cuda = device.torch.cuda
    streams = [cuda.Stream(device.index) for _ in range(min(_STREAMS, len(calls)))]

    def run() -> None:
        main = cuda.current_stream(device.index)
        for stream in streams:
            stream.wait_stream(main)
        for i, call in enumerate(calls):
            with cuda.stream(streams[i % len(streams)]):
                call()
        for stream in streams:
            main.wait_stream(stream)

    return Ready(run, note)
