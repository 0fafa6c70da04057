"""ZB-1p: the zero-bubble order made for the stage times at hand, within the activation memory of 1F1B."""

from __future__ import annotations

from projector.pipeline.schedules import zb_h1
from projector.pipeline.schedules.zb_greedy import fastest, greedy
from projector.pipeline.types import Costs, Generator, Schedule


def build(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """Returns the order for equal times, pp micro-batches alive at most; ``group`` and ``extra_warmup`` do not
    apply."""
    del vpp, group, extra_warmup
    return greedy("zb_1p", pp, microbatches, pp)


def tuned(pp: int, microbatches: int, costs: Costs) -> Schedule:
    """The best for these times of the orders that the rules give and of ZB-H1, which keeps to the same limit."""
    by_hand = zb_h1.GENERATOR.build(pp, 1, microbatches, None, 0)
    return fastest("zb_1p", by_hand, pp, costs)


GENERATOR = Generator(
    name="zb_1p",
    build=build,
    chunks=1,
    split=True,
    aliases=("zb1p", "zb-auto", "zero-bubble-auto"),
    source="Qi et al., arXiv 2401.10241, section 3.1 (ZB-1p: memory limit of p micro-batches)",
    tuned=tuned,
    looped="interleaved_zb",
)
