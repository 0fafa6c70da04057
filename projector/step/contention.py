"""What a kernel loses while communication runs beside it on the same device.

Communication kernels hold compute units for as long as they run: NCCL 16–24 thread blocks for a large gather or scatter
on H100, RCCL 48–64 channels on gfx94x and gfx950, DeepEP 20 by default. A matrix product or an attention call then runs
on the units that are left, with its waves counted again: one that fills a single wave of 132 needs a second one beside a
24-block gather (NVIDIA developer forum, topic 337991). A memory-bound kernel keeps its rate on fewer units, but
shares the memory with the messages, each of whose bytes is read or written two to three times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from projector.hardware.types import Gpu
from projector.mechanism import mechanism
from projector.memo import Same
from projector.operators.types import Operator, Stream
from projector.size import least, most


@dataclass(frozen=True, slots=True)
class Losses:
    """Seconds lost a second of an operator's own beside one kind of traffic: of products and attention by ``matrix``, the
    same of every memory-bound kernel (``stream``)."""

    matrix: Mapping[Operator, float]
    stream: float


Crowding = Mapping[str, Losses]
"""For each kind of traffic: ``tp``, ``cp``, ``ep``, ``dp``, ``dispatch``."""

MOST = 1.0  # nothing loses more than half of its rate (bound on nonsense for devices with few units)


def without_units(gpu: Gpu, taken: int) -> Gpu:
    """``gpu`` with ``taken`` of its compute units busy elsewhere (at least half of them stay), memory as it is: one object
    for the same device, so that its kernels are priced once.
    """
    return _without_units(Same(gpu), taken)


@lru_cache(maxsize=256)
def _without_units(whole: Same[Gpu], taken: int) -> Gpu:
    gpu = whole.value
    left = max(gpu.compute_units - taken, (gpu.compute_units + 1) // 2)
    share = left / gpu.compute_units
    peak = {dtype: rate * share for dtype, rate in gpu.peak.items()}
    return replace(gpu, compute_units=left, peak=peak, vector_flops=gpu.vector_flops * share)


@dataclass(frozen=True, slots=True)
class Taken:
    """What one kind of traffic takes while it runs: compute units, and bytes/s of device memory."""

    units: int
    memory: float


def crowding(taken: Mapping[str, Taken], gpu: Gpu, matrix: Callable[[int], Mapping[Operator, float]]) -> Crowding:
    """Losses beside each kind of traffic by what it has ``taken``. ``matrix``: of products by the units that are taken."""
    found: dict[str, Losses] = {}
    for kind, each in taken.items():
        share = least(each.memory / gpu.memory_bandwidth, 0.5)
        found[kind] = Losses(matrix(each.units), share / (1.0 - share))
    return found


@mechanism(off=lambda ops, *_: dict.fromkeys((op for op in ops if not isinstance(op, Stream)), 0.0))
def matrix_losses(
    ops: Iterable[Operator],
    gpu: Gpu,
    units: int,
    price: Callable[[Gpu, Sequence[Operator]], Sequence[float]],
    known: Mapping[Operator, float] | None = None,
) -> dict[Operator, float]:
    """Of ``ops`` that are not memory-bound, on a ``gpu`` of whose ``units`` so many are taken.

    ``price``: seconds of operators on a device, by analytical models; ``known``: those on ``gpu`` itself, where these
    models have given them already.
    """
    matrix = [op for op in dict.fromkeys(ops) if not isinstance(op, Stream)]
    if not units:
        return dict.fromkeys(matrix, 0.0)
    alone = price(gpu, matrix) if known is None else [known[op] for op in matrix]
    beside = price(without_units(gpu, units), matrix)
    return {op: least(most(b / a - 1.0, 0.0), MOST) for op, a, b in zip(matrix, alone, beside, strict=True)}
