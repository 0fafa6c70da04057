"""Interleaved 1F1B with a split backward, its weight gradients put off by the rank's distance from the first."""

from __future__ import annotations

from projector.pipeline.compiler import deadlocks
from projector.pipeline.schedules import zb_h1
from projector.pipeline.schedules.interleaved import table
from projector.pipeline.schedules.split import lagging
from projector.pipeline.types import Generator, Schedule, loop_placement

__all__ = ["GENERATOR"]


def build(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """Warm-up of ``(vpp − 1)·group + (pp − r − 1)`` forwards on rank ``r``, W ``r`` behind B; ``group`` defaults to
    ``pp``.

    Where a partial last group leaves the warm-up too short, it grows by the fewest forwards that let the schedule run.
    """
    if vpp == 1:
        return zb_h1.GENERATOR.build(pp, 1, microbatches, None, extra_warmup)
    forward = table(microbatches, vpp, group or pp)
    backward = [(vpp - 1 - chunk, mb) for chunk, mb in forward]
    for more in range(extra_warmup, extra_warmup + len(forward) + 1):
        ahead = [min(len(forward), (vpp - 1) * (group or pp) + pp - rank - 1 + more) for rank in range(pp)]
        orders = tuple(lagging(forward, backward, ahead[rank], rank) for rank in range(pp))
        schedule = Schedule("interleaved_zb", pp, vpp, microbatches, True, orders, loop_placement(pp, vpp))
        if not deadlocks(schedule):
            break
    return schedule


GENERATOR = Generator(
    name="interleaved_zb",
    build=build,
    chunks=None,
    split=True,
    aliases=("interleaved-zero-bubble", "interleavedzerobubble", "zero-bubble-interleaved"),
    source="torch.distributed.pipelining ScheduleInterleavedZeroBubble (PyTorch 2.x); Qi et al., arXiv 2401.10241",
)
