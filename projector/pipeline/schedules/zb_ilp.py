"""The zero-bubble order that a mixed-integer programme finds for the stage times at hand, of at most 2·pp micro-batches
alive on a rank, each counted whole until its weight gradient.

Primus' scheduler of this name builds the graph of the authors' programme and takes its first heuristic solution
(AMD-AGI/Primus primus/core/projection, ``seaailab-ilp``). Here the programme is solved where it is small enough to be
closed in seconds; beyond that the best of the published rules stands for it (:func:`gap` says how far off it can be).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from projector.pipeline.bounds import lower_bound
from projector.pipeline.schedules import zero_bubble
from projector.pipeline.schedules.zb_greedy import fastest, greedy
from projector.pipeline.types import Costs, Generator, Schedule

LARGEST = 108
"""Actions of the largest pipeline that is solved (pp 4 with 9 micro-batches): what HiGHS closes in a few seconds."""
_SECONDS = 4.0


def tuned(pp: int, microbatches: int, costs: Costs) -> Schedule:
    """Returns the solved order, or where there are more than :data:`LARGEST` actions the best that rules give."""
    by_rules = fastest("zb_ilp", zero_bubble.two(pp, 1, microbatches, None, 0), 2 * pp, costs)
    if 3 * pp * microbatches > LARGEST:
        return by_rules
    from projector.pipeline.optimal import improve

    return replace(improve(by_rules, costs, [2 * pp] * pp, _SECONDS).schedule, name="zb_ilp")


def gap(schedule: Schedule, costs: Costs, makespan: float) -> float:
    """Returns the share of ``makespan`` by which no order at all could be shorter."""
    parts = (costs.forward, costs.backward_input, costs.backward_weight, costs.p2p)
    least = float(lower_bound(schedule.placement, schedule.microbatches, *parts, True))
    return max(0.0, 1.0 - least / makespan) if makespan > 0 else 0.0


GENERATOR = Generator(  # for equal times the order of ZB-2p, which is optimal for them
    "zb_ilp", partial(greedy, "zb_ilp", 2), ("seaailab-ilp", "zb-ilp"),
    "Qi et al., arXiv 2401.10241, section 3.1 and appendix G (integer programme)", chunks=1, split=True,
    tuned=tuned, configured_by=("primus",), listed=False, gap=gap, looped="interleaved_zb",
)  # fmt: skip
