"""Memory-bound kernels: bytes over the share of the memory rate that their class reaches, after a fixed fill.

``t = launches·fill + bytes·(1 - one_way·(1 - mix)) / (share·device·bandwidth)``, the usual ramp BW·b/(b + b½) with
b½ = fill·BW. ``mix`` is 1 where as much is read as written and 0 where all goes one way: a memory bus that turns round
less often moves more (BabelStream dot, add and copy on A100, H100 and H200 stand at 0.91, 0.96 and 1 of the copy's
time per byte; Azure/AI-benchmarking-guide). Parameters: ``stream.<kind>`` (``stream`` where a kind has none), at most
one; ``stream.device``, what this device's memory reaches beside others; ``stream.one_way``; ``stream.fill_us``.

Kernels of chunked recurrences (:class:`~projector.operators.types.Scan`) have one measured kernel: each lasts as long as the
slowest of its bytes, at a share of what a plain stream reaches, its small products, at a share of the matrix peak, and its
chain of steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from projector.hardware.types import Efficiency, Gpu
from projector.kernels.protocol import FloatArray
from projector.operators.types import Scan, Stream
from projector.parameter import parameter
from projector.size import most, raw, real, table

_CHUNK_SCAN = (
    "tile-ai/tilelang@be9c08f6 benchmark/mamba2/README.md: the scan of chunks, 80 heads of 64, 128 states, chunks of 256, "
    "8 x 8192 tokens on H800 in 1.278 ms; its 1.7 GB and 0.17 TFLOP"
)
_SCAN_BYTES = parameter(
    0.5,
    kind="derived",
    source=f"share of a plain stream's rate (0.8 of 3.35 TB/s): {_CHUNK_SCAN}",
    low=0.3,
    high=0.7,
    scored=True,
)
_SCAN_FLOPS = parameter(
    0.136,
    kind="derived",
    source=f"share of the 16-bit matrix peak (989 TFLOP/s): {_CHUNK_SCAN}",
    low=0.1,
    high=0.2,
    scored=True,
)
_ELEMENT_FLOPS = parameter(
    0.03,
    kind="derived",
    source="an exponential for every nine FLOP of a selective scan, 16 a clock and SM: 33 of an H100's 989 TFLOP/s",
    low=0.015,
    high=0.06,
)
_STEP_US = parameter(
    {"scale": 0.7, "product": 2.5, "element": 0.7},
    unit="us",
    kind="assumed",
    source="a load from device memory that the next step needs; the same with two dependent products of 64 x 128 x 64",
    low=0.3,
    high=5.0,
)


def seconds(ops: Sequence[Stream], gpu: Gpu, efficiency: Efficiency, number: int = 1) -> FloatArray:
    """Returns the seconds of each stream, (n · number,) for ``number`` rows of sizes: at least bytes over the peak rate."""
    usual = efficiency["stream"]
    device = efficiency.get("stream.device", 1.0)
    one_way = min(max(efficiency["stream.one_way"], 0.0), 0.5)
    fill = efficiency["stream.fill_us"] * 1e-6
    shares = {kind: min(efficiency.get(f"stream.{kind}", usual) * device, 1.0) for kind in {op.kind for op in ops}}
    cells = [(op.read, op.write, op.launches, shares[op.kind]) for op in ops]
    read, write, launches, share = table(cells, number)
    # bytes·(1 - one_way·(1 - mix)) without dividing by bytes, which may be none
    effective = (1.0 - one_way) * (read + write) + 2.0 * one_way * np.minimum(read, write)
    took: FloatArray = launches * fill + np.maximum(effective / share, read + write) / gpu.memory_bandwidth
    scans = [(i, op) for i, op in enumerate(ops) if isinstance(op, Scan)]
    for i, op in scans:
        chain = op.steps * _STEP_US[op.step] * 1e-6
        bound = real(op.launches * fill) + op.bytes / (shares[op.kind] * _SCAN_BYTES * gpu.memory_bandwidth)
        rate = _ELEMENT_FLOPS if op.step == "element" else _SCAN_FLOPS
        slowest = most(bound, op.work / (rate * gpu.peak_of("bf16")), chain)
        took[i * number : (i + 1) * number] = raw(slowest)
    return took
