"""The machine of transformer-perf-estimates: two tiers of links, one roofline. Units: FLOP, bytes, seconds.

Facts of arXiv:2410.00273 (section 3) and of its tool, ShashankSubramanian/transformer-perf-estimates@54278b0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from projector.errors import InputError, Problem

__all__ = ["Message", "System", "described"]

#: Share of the peak that every product and every vector operation reaches, and the time before any of them starts, s.
EFFICIENCY = 0.8
LAUNCH = 20e-6


@dataclass(frozen=True)
class Message:
    """One collective: ``volume`` bytes of the whole (or reduced) buffer over ``ranks``, ``fast`` of which share a domain.

    ``kind``: allgather, reducescatter, allreduce, broadcast, reduce, p2p.
    """

    kind: str
    volume: float
    ranks: int
    fast: int


@dataclass(frozen=True)
class System:
    """FLOP/s, bytes/s, bytes and seconds of one GPU and its links; ``fast_*`` within a domain of ``domain`` GPUs."""

    matrix: float
    vector: float
    memory_bandwidth: float
    capacity: float
    fast_bandwidth: float
    fast_efficiency: float
    fast_latency: float
    slow_bandwidth: float
    slow_efficiency: float
    slow_latency: float
    domain: int
    nics_per_gpu: float = 1.0
    element: float = 2.0
    mask: float = 1.0

    def compute(self, flops: float, matrix: bool) -> float:
        return LAUNCH + flops / (EFFICIENCY * (self.matrix if matrix else self.vector))

    def collective(self, message: Message) -> float:
        """Ring over two tiers: latencies of the hops, and the slower of what the NICs and the fast links carry.

        Its factor of two for an all-reduce stands only where both tiers take part.
        """
        n, fast, volume = message.ranks, message.fast, message.volume
        if n == 1 or volume == 0:
            return 0.0
        slow_rate = self.slow_bandwidth * self.slow_efficiency
        fast_rate = self.fast_bandwidth * self.fast_efficiency
        moved = volume * (1.0 if message.kind in ("broadcast", "reduce", "p2p") else (n - 1) / n)
        domains = n // fast
        if fast == 1:
            return self.slow_latency * (n - 1) + moved / slow_rate
        if domains == 1 or message.kind == "p2p":
            return self.fast_latency * (n - 1) + moved / fast_rate
        twice = 2 if message.kind == "allreduce" else 1
        busy = twice * max(moved / (self.nics_per_gpu * fast * slow_rate), moved / fast_rate)
        return busy + self.slow_latency * (domains - 1) + self.fast_latency * (n - domains)


# its key: (our field, its unit in ours)
_FIELDS = {
    "matrix_flops_fp16": ("matrix", 1e12),
    "vector_flops_fp16": ("vector", 1e12),
    "hbm_bandwidth": ("memory_bandwidth", 1e9),
    "hbm_capacity": ("capacity", 1e9),
    "nvlink_bandwidth": ("fast_bandwidth", 1e9),
    "nvlink_eff": ("fast_efficiency", 1.0),
    "nvlink_latency": ("fast_latency", 1.0),
    "ib_bandwidth": ("slow_bandwidth", 1e9),
    "ib_eff": ("slow_efficiency", 1.0),
    "ib_latency": ("slow_latency", 1.0),
    "nvlink_size": ("domain", 1.0),
    "nic_factor": ("nics_per_gpu", 1.0),
    "element_size": ("element", 1e9),
    "mask_element_size": ("mask", 1e9),
}
_FREE = frozenset({"nvlink_latency", "ib_latency"})
# Keys of its files that none of its laws reads, or that are set otherwise.
_IGNORED = frozenset({"vector_flops_fp32", "empirical", "flops_units", "summa_nb"})


def described(data: Mapping[str, Any], file: str) -> System:
    """A system of the tool's own JSON (TFLOP/s, GB/s, GB, seconds). Raises :class:`InputError` with every mistake."""
    problems = [Problem(file, key, "nothing", "a number") for key in _FIELDS if key not in data]
    problems += [Problem(file, key, "an unknown key", "a key of its systems") for key in _unknown(data)]
    if data.get("empirical"):
        problems.append(Problem(file, "empirical", "true", "false: its measured link table is not part of the tool"))
    for key in _FIELDS.keys() & data.keys():
        value, least = data[key], "0 or more" if key in _FREE else "above 0"
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value < 0 or (value == 0 and key not in _FREE):
            problems.append(Problem(file, key, repr(value), f"a finite number {least}"))
        elif key == "nvlink_size" and value != int(value):
            problems.append(Problem(file, key, repr(value), "a whole number of GPUs"))
    if problems:
        raise InputError(sorted(problems, key=lambda p: p.key))
    made = {ours: data[its] * unit for its, (ours, unit) in _FIELDS.items()}
    return System(**{**made, "domain": int(made["domain"])})


def _unknown(data: Mapping[str, Any]) -> list[str]:
    return sorted(set(data) - set(_FIELDS) - _IGNORED)
