"""ZB-2p: the zero-bubble order made for the stage times at hand, within twice the activation memory of 1F1B."""

from __future__ import annotations

from projector.pipeline.schedules import zb_h2
from projector.pipeline.schedules.zb_greedy import fastest, greedy
from projector.pipeline.types import Costs, Generator, Schedule


def build(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """Returns the order for equal times, 2·pp micro-batches alive at most; ``group`` and ``extra_warmup`` do not
    apply."""
    del vpp, group, extra_warmup
    return greedy("zb_2p", pp, microbatches, 2 * pp)


def tuned(pp: int, microbatches: int, costs: Costs) -> Schedule:
    """The best for these times of the orders that the rules give and of ZB-H2, which keeps to the same limit; where that
    is faster, the limit counts half of a micro-batch from its B on."""
    by_hand = zb_h2.GENERATOR.build(pp, 1, microbatches, None, 0)
    return fastest("zb_2p", by_hand, 2 * pp, costs, half=True)


GENERATOR = Generator(
    name="zb_2p",
    build=build,
    chunks=1,
    split=True,
    aliases=("zb2p", "zero-bubble-heuristic", "zerobubble-heuristic"),
    source="Qi et al., arXiv 2401.10241, section 3.1 (ZB-2p: memory limit of 2p micro-batches)",
    tuned=tuned,
    run_by=("primus",),
    looped="interleaved_zb",
)
