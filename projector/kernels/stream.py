"""Memory-bound kernels: bytes over the share of the memory rate that their class reaches, after a fixed fill.

``t = launches·fill + bytes·(1 - one_way·(1 - mix)) / (share·device·bandwidth)``, the usual ramp BW·b/(b + b½) with
b½ = fill·BW. ``mix`` is 1 where as much is read as written and 0 where all goes one way: a memory bus that turns round
less often moves more (BabelStream dot, add and copy on A100, H100 and H200 stand at 0.91, 0.96 and 1 of the copy's
time per byte; Azure/AI-benchmarking-guide). Parameters: ``stream.<kind>`` (``stream`` where a kind has none), at most
one; ``stream.device``, what this device's memory reaches beside others; ``stream.one_way``; ``stream.fill_us``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from projector.hardware.types import Efficiency, Gpu
from projector.kernels.protocol import FloatArray
from projector.operators.types import Stream

__all__ = ["seconds"]


def seconds(ops: Sequence[Stream], gpu: Gpu, efficiency: Efficiency) -> FloatArray:
    """Seconds of each stream, (n,), at least its bytes over the memory's peak rate."""
    usual = efficiency["stream"]
    device = efficiency.get("stream.device", 1.0)
    one_way = min(max(efficiency["stream.one_way"], 0.0), 0.5)
    fill = efficiency["stream.fill_us"] * 1e-6
    shares = {kind: min(efficiency.get(f"stream.{kind}", usual) * device, 1.0) for kind in {op.kind for op in ops}}
    cells = np.array([(op.read, op.write, op.launches, shares[op.kind]) for op in ops], dtype=np.float64)
    read, write, launches, share = cells.reshape(-1, 4).T
    # bytes·(1 - one_way·(1 - mix)) without dividing by bytes, which may be none
    effective = (1.0 - one_way) * (read + write) + 2.0 * one_way * np.minimum(read, write)
    took: FloatArray = launches * fill + np.maximum(effective / share, read + write) / gpu.memory_bandwidth
    return took
