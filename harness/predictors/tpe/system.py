"""The machine of transformer-perf-estimates: two tiers of links, one roofline. Units: FLOP, bytes, seconds. Facts of
arXiv:2410.00273 (section 3) and of its tool, ShashankSubramanian/transformer-perf-estimates@54278b0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from projector.dataclass import dataclass
from projector.hardware import tpe_file

#: Share of the peak that every product and every vector operation reaches, and the seconds before any of them starts.
EFFICIENCY = 0.8
LAUNCH = 20e-6


@dataclass(frozen=True)
class Transfer:
    """One collective: ``volume`` bytes of the whole (or reduced) buffer over ``ranks``, ``fast`` of which share a domain.

    ``kind``: allgather, reducescatter, allreduce, broadcast, reduce, p2p.
    """

    kind: str
    volume: float
    ranks: int
    fast: int


@dataclass(frozen=True)
class System:
    """One GPU and its links, in FLOP/s, bytes/s, bytes and seconds; ``fast_*`` within a domain of ``domain`` GPUs."""

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

    def collective(self, message: Transfer) -> float:
        """Returns the seconds of a ring over two tiers: latencies of the hops, and the slower of what the NICs and the
        fast links carry. The tool's factor of two for an all-reduce stands only where both tiers take part."""
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


_FIELDS = {
    "matrix_flops_fp16": "matrix",
    "vector_flops_fp16": "vector",
    "hbm_bandwidth": "memory_bandwidth",
    "hbm_capacity": "capacity",
    "nvlink_bandwidth": "fast_bandwidth",
    "nvlink_eff": "fast_efficiency",
    "nvlink_latency": "fast_latency",
    "ib_bandwidth": "slow_bandwidth",
    "ib_eff": "slow_efficiency",
    "ib_latency": "slow_latency",
    "nvlink_size": "domain",
    "nic_factor": "nics_per_gpu",
    "element_size": "element",
    "mask_element_size": "mask",
}


def described(data: Mapping[str, Any], file: str) -> System:
    """Returns a system of the tool's JSON (TFLOP/s, GB/s, GB, seconds). Raises :class:`InputError` with every mistake."""
    values: dict[str, Any] = {_FIELDS[key]: value for key, value in tpe_file.numbers(data, file).items()}
    return System(**{**values, "domain": int(values["domain"])})
