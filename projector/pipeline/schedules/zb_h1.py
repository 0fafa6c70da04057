"""ZB-H1: 1F1B's warm-up and memory, with weight gradients put off to fill the flush."""

from __future__ import annotations

from projector.pipeline.schedules.split import lagging
from projector.pipeline.types import Generator, Schedule, actions, loop_placement


def build(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """Rank ``r`` runs ``pp − r − 1`` forwards ahead and keeps ``r`` weight gradients back. For F = B = W the bubble of
    a rank's span is ``(pp − 1)·(F + B − W)``, a third of 1F1B's, and no rank holds more than ``pp`` micro-batches.
    """
    del vpp, group
    forward, backward = actions("F", 0, microbatches), actions("B", 0, microbatches)
    orders = tuple(
        lagging(forward, backward, min(microbatches, pp - rank - 1 + extra_warmup), rank) for rank in range(pp)
    )
    return Schedule("zb_h1", pp, 1, microbatches, True, orders, loop_placement(pp, 1))


GENERATOR = Generator(
    name="zb_h1",
    build=build,
    chunks=1,
    split=True,
    aliases=("zbh1", "zbb", "zb", "zero-bubble", "zerobubble"),
    run_by=("primus",),
    source="Qi et al., arXiv 2401.10241, section 2.1",
    looped="interleaved_zb",
)
