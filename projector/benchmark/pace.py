"""The pace of the machine: one fixed piece of work, timed again and again beside what is measured.

It says whether two measurements saw the same machine. Nothing is ever divided by it: a machine that slows a product
down does not slow a model's step by as much.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from projector.benchmark.device import Device

_EDGE = {"cpu": 512, "cuda": 4096}  # of a product
_BYTES = {"cpu": 2**24, "cuda": 2**28}  # of a copy: beyond the caches
_CALLS, _ROUNDS = 2000, 9  # of the host's smallest operator; rounds, of which the median counts


def pace(device: Device, together: Callable[[], None]) -> float:
    """Seconds that a product, a copy and work of the host take one after the other, the median of some rounds.

    ``together``: keeps ranks at the same place, so that all of them do it at once.
    """
    torch, kind, place = device.torch, device.type, device.place
    left, right = (torch.ones(_EDGE[kind], _EDGE[kind], device=place) for _ in range(2))
    source, small = torch.ones(_BYTES[kind], dtype=torch.int8, device=place), torch.zeros(8)
    product, target = torch.empty_like(left), torch.empty_like(source)
    times = []
    together()
    for _ in range(1 + _ROUNDS):  # the first touches memory
        start = time.perf_counter()
        torch.mm(left, right, out=product)
        target.copy_(source)
        for _ in range(_CALLS):
            small.add_(1)
        device.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])
