"""The machine of transformer-perf-estimates: two tiers of links, one roofline. Units: FLOP, bytes, seconds. Facts of
arXiv:2410.00273 (section 3) and of its tool, ShashankSubramanian/transformer-perf-estimates@54278b0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from projector.dataclass import dataclass
from projector.hardware import tpe_file
from projector.hardware.types import stated, stated_of

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
    """One GPU and its links, by the keys of the tool's files, in FLOP/s, bytes/s, bytes and seconds; ``fast_*``
    within a domain of ``domain`` GPUs."""

    matrix: float = stated(key="matrix_flops_fp16")
    vector: float = stated(key="vector_flops_fp16")
    memory_bandwidth: float = stated(key="hbm_bandwidth")
    capacity: float = stated(key="hbm_capacity")
    fast_bandwidth: float = stated(key="nvlink_bandwidth")
    fast_efficiency: float = stated(key="nvlink_eff")
    fast_latency: float = stated(key="nvlink_latency")
    slow_bandwidth: float = stated(key="ib_bandwidth")
    slow_efficiency: float = stated(key="ib_eff")
    slow_latency: float = stated(key="ib_latency")
    domain: int = stated(key="nvlink_size")
    nics_per_gpu: float = stated(key="nic_factor", default=1.0)
    element: float = stated(key="element_size", default=2.0)
    mask: float = stated(key="mask_element_size", default=1.0)

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


def described(data: Mapping[str, Any], file: str) -> System:
    """Returns a system of the tool's JSON (TFLOP/s, GB/s, GB, seconds). Raises :class:`InputError` with every mistake."""
    figures = tpe_file.numbers(data, file)
    values: dict[str, Any] = {name: figures[each.key] for name, each in stated_of(System).items()}
    return System(**{**values, "domain": int(values["domain"])})
