"""ZB-1p and ZB-2p: zero bubble by list scheduling for the stage times at hand, within once or twice the activation
memory of 1F1B. Every rank takes what is ready; weight gradients fill the gaps."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import accumulate
from typing import NamedTuple

from projector.pipeline.compiler import compile_schedule
from projector.pipeline.evaluator import evaluate
from projector.pipeline.schedules import zero_bubble
from projector.pipeline.types import Action, Costs, Generator, Schedule, actions, loop_placement

Rule = tuple[bool, float]
"""(alternate, share): whether a forward that is ready goes before a backward after a backward; how much of a weight
gradient must fit into a gap before the next arrival for it to be taken."""

_USUAL: Rule = (True, 0.5)
SHARES = (1.0, 0.5, 0.0)
_NEVER = float("inf")
_ROUNDING = 1e-12  # share of a makespan by which sums of the same times may differ


class _Played(NamedTuple):
    """The outcome of one rule. ``orders``: empty where they were given up; ``span``: the longest of a rank from its
    first start to its last end; ``chosen``: whether a forward and a backward ever were ready together after a backward,
    so that an order without ``alternate`` differs."""

    orders: tuple[tuple[Action, ...], ...]
    makespan: float
    span: float
    chosen: bool = False


def greedy(
    name: str, times: int, pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int
) -> Schedule:
    """Returns the order for equal times and messages for nothing, of at most ``times``·pp micro-batches alive on any
    rank; ``group`` and ``extra_warmup`` do not apply."""
    return _schedule(name, pp, microbatches, _play(pp, microbatches, times * pp, Costs.equal(pp), _USUAL, 0.0))


def fastest(name: str, by_hand: Schedule, limit: int, costs: Costs, half: bool = False) -> Schedule:
    """Returns the order of least makespan for ``costs``, messages beside compute: ``by_hand``, which keeps to
    ``limit``, or one that the rules give. Of equal ones it is the order whose ranks work in the shortest span.

    ``half``: where it is faster, the limit is kept with half of a micro-batch given back by its B, as the authors'
    planner is configured (sail-sg/zero-bubble-pipeline-parallelism@39f2c18 scheduler/graph.py: ``mem_b``, ``mem_w``).
    """
    best = _least(_timed(by_hand, costs), by_hand.microbatches, limit, costs, SHARES)
    if half:
        best = _least(best, by_hand.microbatches, limit, costs, (0.5,), 0.5, keys=1)
    return _schedule(name, by_hand.pp, by_hand.microbatches, best)


def _least(
    best: _Played, m: int, limit: int, costs: Costs, shares: Sequence[float], released: float = 0.0, keys: int = 2
) -> _Played:
    """Returns the shortest by the first ``keys`` of makespan and span: ``best``, or what the rules of these ``shares``
    give. Sums of times that differ by rounding alone are equal, and the first of equals is kept."""
    scale = 1e9 / max(best.makespan, 1e-300)

    def length(played: _Played) -> tuple[int, ...]:
        return (round(played.makespan * scale), round(played.span * scale))[:keys]

    for alternate in (True, False):
        again = []
        for share in shares:
            played = _play(len(best.orders), m, limit, costs, (alternate, share), released, best.makespan)
            if played.orders and length(played) < length(best):
                best = played
            if played.chosen:
                again.append(share)
        shares = again
    return best


def _timed(schedule: Schedule, costs: Costs) -> _Played:
    parts = (costs.forward, costs.backward_input, costs.backward_weight, costs.p2p)
    timeline = evaluate(_compiled(schedule), *parts, overlap_p2p=True)
    return _Played(schedule.orders, float(timeline.makespan), float(timeline.rank_span.max()))


_compiled = lru_cache(maxsize=16)(compile_schedule)  # orders made by hand are the same for all times


def _schedule(name: str, pp: int, microbatches: int, played: _Played) -> Schedule:
    return Schedule(name, pp, 1, microbatches, True, played.orders, loop_placement(pp, 1))


def _play(pp: int, m: int, limit: int, costs: Costs, rule: Rule, released: float, bound: float = _NEVER) -> _Played:
    """Plays the ranks in the order of time: each chooses by ``rule`` when it is free among what has arrived. Gives up
    without orders as soon as nothing that may follow ends before ``bound``. A micro-batch is alive from the start of its F
    to the end of its W; its B gives ``released`` of it back. After Qi et al., arXiv 2401.10241, section 3.1, whose rules
    are richer.

    After a gap a rank still has its forwards and backwards to do, and before the last of them as many weight gradients
    as the limit asks for; that backward's gradient then passes all ranks up to the first, which starts at 0 and has a
    weight gradient left. So neither makespan nor span is shorter than the end of these.
    """
    alternate, share = rule
    forward, backward, weight = (actions(kind, 0, m) for kind in ("F", "B", "W"))
    to_f, to_b, to_w, hops = costs.forward, costs.backward_input, costs.backward_weight, (*costs.p2p, 0.0)
    gaps = [seconds * share for seconds in to_w]
    push, pop = heapq.heappush, heapq.heappop
    last, most_before = pp - 1, float(limit - 1)
    orders: list[list[Action]] = [[] for _ in range(pp)]
    inputs: list[list[float]] = [[0.0] * m, *([] for _ in range(last))]  # when each micro-batch reaches a rank
    gradients: list[list[float]] = [[] for _ in range(pp)]
    ahead, behind, owed = [0] * pp, [0] * pp, [0] * pp  # forwards, backwards and weight gradients done
    alive = [0.0] * pp
    free, was_forward, began = [0.0] * pp, [False] * pp, [0.0] * pp
    heap, chosen = [(0.0, 0)], False
    forced = max(0.0, (m - limit - released * (m - 1)) / (1.0 - released))
    passes = [*accumulate((hop + each for hop, each in zip(hops, to_b, strict=True)), initial=to_w[0])]
    bound *= 1.0 - _ROUNDING
    while heap:
        now, rank = pop(heap)
        if now < free[rank]:
            continue
        f, b = ahead[rank], behind[rank]
        if now > free[rank]:
            remaining = (m - f) * to_f[rank] + (m - b) * to_b[rank] + max(0.0, forced - owed[rank]) * to_w[rank]
            if now + remaining + passes[rank] >= bound:
                return _Played((), _NEVER, _NEVER, chosen)
        can_f = inputs[rank][f] if f < len(inputs[rank]) and alive[rank] <= most_before else _NEVER
        can_b = gradients[rank][b] if b < len(gradients[rank]) else _NEVER
        both = can_b <= now and can_f <= now and not was_forward[rank]
        chosen = chosen or both
        if can_b <= now and not (alternate and both):
            orders[rank].append(backward[b])
            behind[rank], was_forward[rank] = b + 1, False
            alive[rank] -= released
            free[rank] = end = now + to_b[rank]
            if rank:
                to, at = rank - 1, end + hops[rank - 1]
                gradients[to].append(at)
                if free[to] <= now:
                    push(heap, (at, to))
        elif can_f <= now:
            orders[rank].append(forward[f])
            began[rank] = began[rank] if f else now
            ahead[rank], was_forward[rank] = f + 1, True
            alive[rank] += 1.0
            free[rank] = end = now + to_f[rank]
            if rank == last:
                gradients[rank].append(end)
            else:
                to, at = rank + 1, end + hops[rank]
                inputs[to].append(at)
                if free[to] <= now:
                    push(heap, (at, to))
        else:
            w, following = owed[rank], min(can_f, can_b)
            if w < b and following - now >= gaps[rank]:
                orders[rank].append(weight[w])
                alive[rank] -= 1.0 - released
                owed[rank], free[rank] = w + 1, now + to_w[rank]
                push(heap, (free[rank], rank))
            elif following < _NEVER:
                push(heap, (following, rank))
            continue
        push(heap, (end, rank))
    spans = [end - start for start, end in zip(began, free, strict=True)]
    return _Played(tuple(map(tuple, orders)), max(free), max(spans), chosen)


def one(pp: int, microbatches: int, costs: Costs) -> Schedule:
    """Returns the best for these times of the orders that the rules give and of ZB-H1, which keeps to the same limit."""
    return fastest("zb_1p", zero_bubble.one(pp, 1, microbatches, None, 0), pp, costs)


def two(pp: int, microbatches: int, costs: Costs) -> Schedule:
    """Returns the best for these times of the orders that the rules give and of ZB-H2, which keeps to the same limit;
    where that is faster, the limit counts half of a micro-batch from its B on."""
    return fastest("zb_2p", zero_bubble.two(pp, 1, microbatches, None, 0), 2 * pp, costs, half=True)


# fmt: off
GENERATORS = (
    Generator("zb_1p", partial(greedy, "zb_1p", 1), ("zb1p", "zb-auto", "zero-bubble-auto"),
              "Qi et al., arXiv 2401.10241, section 3.1 (ZB-1p: memory limit of p micro-batches)",
              chunks=1, split=True, tuned=one, looped="interleaved_zb"),
    Generator("zb_2p", partial(greedy, "zb_2p", 2), ("zb2p", "zero-bubble-heuristic", "zerobubble-heuristic"),
              "Qi et al., arXiv 2401.10241, section 3.1 (ZB-2p: memory limit of 2p micro-batches)",
              chunks=1, split=True, tuned=two, looped="interleaved_zb", configured_by=("primus",)),
)
# fmt: on
