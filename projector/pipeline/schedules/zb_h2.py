"""ZB-H2: twice 1F1B's warm-up, so that the bubble before the first backward fills too."""

from __future__ import annotations

from projector.pipeline.schedules.split import lagging
from projector.pipeline.types import Generator, Schedule, actions, loop_placement


def build(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """Rank ``r`` runs ``2(pp − r − 1)`` forwards ahead and keeps ``2r`` weight gradients back: up to ``2·pp − 1``
    micro-batches alive. For F = B = W and ``m >= 2·pp − 1`` no rank waits within its own span.
    """
    del vpp, group
    forward, backward = actions("F", 0, microbatches), actions("B", 0, microbatches)
    orders = tuple(
        lagging(forward, backward, min(microbatches, 2 * (pp - rank - 1) + extra_warmup), 2 * rank)
        for rank in range(pp)
    )
    return Schedule("zb_h2", pp, 1, microbatches, True, orders, loop_placement(pp, 1))


GENERATOR = Generator(
    name="zb_h2",
    build=build,
    chunks=1,
    split=True,
    aliases=("zbh2",),
    source="Qi et al., arXiv 2401.10241, section 2.2",
    looped="interleaved_zb",
)
