"""Interleaved 1F1B: ``vpp`` model chunks a rank, micro-batches in groups that pass one chunk after the other."""

from __future__ import annotations

from projector.pipeline.compiler import deadlocks
from projector.pipeline.schedules import one_f_one_b
from projector.pipeline.types import Action, Generator, Schedule, loop_placement

__all__ = ["GENERATOR", "table"]


def table(microbatches: int, vpp: int, group: int) -> list[tuple[int, int]]:
    """``(chunk, microbatch)`` in forward order: a group of micro-batches through chunk 0, then through chunk 1, …

    The last group is whatever remains. Megatron-LM ``get_schedule_table``; the backward mirrors the chunks.
    """
    return [
        (chunk, mb)
        for first in range(0, microbatches, group)
        for chunk in range(vpp)
        for mb in range(first, min(first + group, microbatches))
    ]


def build(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """Warm-up of ``min(m·vpp, 2(pp − r − 1) + (vpp − 1)·group)`` forwards on rank ``r``; ``group`` defaults to ``pp``.

    Megatron refuses a group, or a last group, of fewer than ``pp`` micro-batches. Here it is legal: where the warm-up
    is then too short for the ranks to feed each other, it grows on all ranks alike by the fewest forwards that let the
    schedule run. One chunk a rank is plain 1F1B.
    """
    if vpp == 1:
        return one_f_one_b.GENERATOR.build(pp, 1, microbatches, None, extra_warmup)
    group = group or pp
    for more in range(extra_warmup, extra_warmup + microbatches * vpp + 1):
        schedule = _build(pp, vpp, microbatches, group, more)
        if (group >= pp and microbatches % group == 0) or not deadlocks(schedule):
            break
    return schedule


def _build(pp: int, vpp: int, microbatches: int, group: int, more: int) -> Schedule:
    forward = table(microbatches, vpp, group)
    backward = [(vpp - 1 - chunk, mb) for chunk, mb in forward]
    total = len(forward)
    orders = []
    for rank in range(pp):
        warmup = min(total, 2 * (pp - rank - 1) + (vpp - 1) * group + more)
        order = [Action("F", *at) for at in forward[:warmup]]
        for ahead, behind in zip(forward[warmup:], backward, strict=False):
            order += (Action("F", *ahead), Action("B", *behind))
        order += (Action("B", *at) for at in backward[total - warmup :])
        orders.append(tuple(order))
    return Schedule("interleaved", pp, vpp, microbatches, False, tuple(orders), loop_placement(pp, vpp))


GENERATOR = Generator(
    name="interleaved",
    build=build,
    chunks=None,
    split=False,
    aliases=("1f1b-interleaved", "interleaved-1f1b", "interleaved1f1b", "virtual-pipeline", "vpp", "interleaving"),
    source="Narayanan et al., arXiv 2104.04473; Megatron-LM megatron/core/pipeline_parallel/schedules.py",
)
