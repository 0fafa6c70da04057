"""Memory-bound kernels: bytes over the share of the memory rate that their class reaches, after a fixed fill.

``t = launches·fill + bytes / (share·bandwidth)`` is the usual ramp BW·b/(b + b½) with b½ = fill·share·bandwidth.
Shares: parameters ``stream.<kind>`` (``stream`` where a kind has none), at most one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from projector.hardware.types import Efficiency, Gpu
from projector.kernels.protocol import FloatArray
from projector.operators.types import Stream

__all__ = ["seconds"]


def seconds(ops: Sequence[Stream], gpu: Gpu, efficiency: Efficiency) -> FloatArray:
    """Seconds of each stream, (n,)."""
    usual = efficiency.get("stream", 0.8)
    fill = efficiency.get("stream.fill_us", 2.0) * 1e-6
    shares = {kind: min(efficiency.get(f"stream.{kind}", usual), 1.0) for kind in {op.kind for op in ops}}
    cells = np.array([(op.read + op.write, op.launches, shares[op.kind]) for op in ops], dtype=np.float64).reshape(
        -1, 3
    )
    return cells[:, 1] * fill + cells[:, 0] / (cells[:, 2] * gpu.memory_bandwidth)
