"""Interleaved 1F1B with a split backward, its weight gradients put off by the rank's distance from the first."""

from __future__ import annotations

from projector.pipeline.schedules import zb_h1
from projector.pipeline.schedules.interleaved import lanes, or_whole_groups
from projector.pipeline.schedules.split import lagging
from projector.pipeline.types import Action, Generator, Schedule


def build(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """Warm-up of ``(vpp − 1)·group + (pp − r − 1)`` forwards on rank ``r``, W ``r`` behind B; ``group`` defaults to
    ``pp``.

    A last group that does not fill the pipeline is treated as in :mod:`projector.pipeline.schedules.interleaved`.
    """
    if vpp == 1:
        return zb_h1.GENERATOR.build(pp, 1, microbatches, None, extra_warmup)

    def orders(count: int, size: int) -> tuple[tuple[Action, ...], ...]:
        forward, backward = lanes(count, vpp, size)
        ahead = [min(len(forward), (vpp - 1) * size + pp - rank - 1 + extra_warmup) for rank in range(pp)]
        return tuple(lagging(forward, backward, ahead[rank], rank) for rank in range(pp))

    return or_whole_groups("interleaved_zb", pp, vpp, microbatches, group or pp, orders, split=True)


GENERATOR = Generator(
    name="interleaved_zb",
    build=build,
    chunks=None,
    split=True,
    aliases=("interleaved-zero-bubble", "interleavedzerobubble", "zero-bubble-interleaved"),
    run_by=("torchtitan",),
    source="torch.distributed.pipelining ScheduleInterleavedZeroBubble (PyTorch 2.x); Qi et al., arXiv 2401.10241",
    single="zb_h1",
)
