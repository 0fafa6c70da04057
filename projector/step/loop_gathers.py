"""Gathers that a compiler starts no earlier than their own iteration of the loop over layers.

XLA combines the gathers of a loop's body up to a number of bytes (openxla/xla xla/service/all_gather_combiner.cc) and
runs them one at a time in the order of use, in the iteration before only where collectives are pipelined and loops
unrolled by two (openxla/xla issue 14332, pull request 5473). So a gather runs beside the compute that earlier gathers
serve: the first one beside nothing, and nothing is left to gather beside the compute that the last one serves.
Splitting reductions, which follow the last gradient of an iteration, gains nothing (amd-agi/maxtext-slurm@3012f6e
pp-vs-fsdp-deepseek3-671b.md, 384 MiB of both).

The same table: one gather a layer in place of one for each weight costs DeepSeek-V3 on 64 MI355X a tenth to a sixth of
its tokens; on 64 B200 9 % (@64a75df docs/b200-benchmark-report.md, jobs 1200 and 1588), where pipelining alone gains
nothing (1529), as unrolling alone on MI355X (14579).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from projector.dataclass import dataclass
from projector.operators.types import Collective, Gemm, GroupedGemm, Operator
from projector.size import least, most
from projector.step.timing import Clock


@dataclass(frozen=True, slots=True)
class Limit:
    """The most seconds of ``traffic`` that may run beside compute, and of the ``compute`` that it may run beside."""

    traffic: float
    compute: float


#: The limit of traffic that is started an iteration ahead.
ANYTHING = Limit(inf, inf)


@dataclass(frozen=True, slots=True)
class _Served:
    """The gathers of one group and the compute that they serve, in seconds, and the share of one ``bucket`` in each."""

    gather: float
    compute: float
    bucket: float


def limit(
    operators: Sequence[Operator], gathers: Sequence[Collective], clock: Clock, combined: float, *, backward: bool
) -> Limit:
    """Returns how much of the ``gathers`` of a unit may hide, in buckets of ``combined`` bytes and of a whole weight at
    least, beside its ``operators``, which use all of its weights; ``backward``: those of the experts first."""
    served = list(_served(operators, gathers, clock, combined, backward))
    if not served:
        return Limit(0.0, 0.0)
    return Limit(
        traffic=sum(group.gather for group in served) - served[0].bucket * served[0].gather,
        compute=sum(group.compute for group in served) - served[-1].bucket * served[-1].compute,
    )


def _served(
    operators: Sequence[Operator], gathers: Sequence[Collective], clock: Clock, combined: float, backward: bool
) -> Iterator[_Served]:
    """Yields, in the order of use, the weights that all ranks share, and those of experts from their first product on."""
    edge = _edge(operators, backward)
    for ops, expert in ((operators[:edge], backward), (operators[edge:], not backward)):
        group_gathers = [op for op in gathers if op.group.startswith("edp") == expert]
        size = sum(op.bytes for op in group_gathers)
        if size > 0:
            weights = sum(isinstance(op, GroupedGemm if expert else Gemm) for op in ops)
            bucket = least(1.0, most(combined / size, 1.0 / max(1, weights)))
            yield _Served(sum(map(clock.collective, group_gathers)), clock.work(ops), bucket)


def _edge(operators: Sequence[Operator], backward: bool) -> int:
    """Returns where the products of experts begin, in a backward where they end."""
    products = [place for place, op in enumerate(operators) if isinstance(op, GroupedGemm)]
    if not products:
        return 0 if backward else len(operators)
    return products[-1] + 1 if backward else products[0]
