"""Zero bubble by list scheduling under a memory limit: every rank takes what is ready, weight gradients fill the gaps."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import replace
from itertools import product

from projector.pipeline.compiler import compile_schedule
from projector.pipeline.evaluator import evaluate
from projector.pipeline.types import Action, Costs, Schedule, actions, loop_placement

__all__ = ["DEFAULT", "RULES", "Rule", "fastest", "greedy"]

Rule = tuple[bool, float]
"""(alternate, share): whether a forward that is ready goes before a backward after a backward; how much of a weight
gradient must fit into a gap before the next arrival for it to be taken."""

DEFAULT: Rule = (True, 0.5)
RULES: tuple[Rule, ...] = tuple(product((True, False), (1.0, 0.5, 0.0)))
_NEVER = float("inf")


def greedy(
    name: str, pp: int, microbatches: int, limit: int, costs: Costs | None = None, rule: Rule = DEFAULT
) -> Schedule:
    """The order that ``rule`` gives, of at most ``limit`` micro-batches alive on any rank.

    A micro-batch is alive from the start of its F to the end of its W. ``costs`` per rank (default: all equal, messages
    for nothing). Source: Qi et al., arXiv 2401.10241, section 3.1, whose rules these are a simpler set of.
    """
    orders = _play(pp, microbatches, limit, costs or Costs.equal(pp), rule)
    return Schedule(name, pp, 1, microbatches, True, orders, loop_placement(pp, 1))


def fastest(name: str, candidates: Iterable[Schedule], costs: Costs) -> Schedule:
    """The candidate with the least makespan for ``costs``, messages beside compute; it takes ``name``."""
    parts = (costs.forward, costs.backward_input, costs.backward_weight, costs.p2p)

    def makespan(schedule: Schedule) -> float:
        return float(evaluate(compile_schedule(schedule), *parts, overlap_p2p=True).makespan)

    return replace(min(candidates, key=makespan), name=name)


def _play(pp: int, m: int, limit: int, costs: Costs, rule: Rule) -> tuple[tuple[Action, ...], ...]:
    """Ranks in the order of time, each choosing when it is free among what has arrived."""
    alternate, share = rule
    forward, backward, weight = (actions(kind, 0, m) for kind in ("F", "B", "W"))
    last = pp - 1
    orders: list[list[Action]] = [[] for _ in range(pp)]
    inputs: list[list[float]] = [[0.0] * m, *([] for _ in range(last))]  # when each micro-batch reaches a rank
    gradients: list[list[float]] = [[] for _ in range(pp)]
    ahead, behind, owed = [0] * pp, [0] * pp, [0] * pp  # forwards, backwards and weight gradients done
    free, was_forward = [0.0] * pp, [False] * pp
    heap = [(0.0, 0)]
    while heap:
        now, rank = heapq.heappop(heap)
        if now < free[rank]:
            continue
        f, b, w = ahead[rank], behind[rank], owed[rank]
        can_f = inputs[rank][f] if f < len(inputs[rank]) and f - w < limit else _NEVER
        can_b = gradients[rank][b] if b < len(gradients[rank]) else _NEVER
        if can_b <= now and not (alternate and can_f <= now and not was_forward[rank]):
            orders[rank].append(backward[b])
            behind[rank], was_forward[rank] = b + 1, False
            end, to, reached, hop = now + costs.backward_input[rank], rank - 1, gradients, rank - 1
        elif can_f <= now:
            orders[rank].append(forward[f])
            ahead[rank], was_forward[rank] = f + 1, True
            end, to, reached, hop = now + costs.forward[rank], rank + 1, inputs, rank
        else:
            following = min(can_f, can_b)
            if w < b and following - now >= costs.backward_weight[rank] * share:
                orders[rank].append(weight[w])
                owed[rank], free[rank] = w + 1, now + costs.backward_weight[rank]
                heapq.heappush(heap, (free[rank], rank))
            elif following < _NEVER:
                heapq.heappush(heap, (following, rank))
            continue
        free[rank] = end
        heapq.heappush(heap, (end, rank))
        if to > last:
            gradients[rank].append(end)
        elif to >= 0:
            at = end + costs.p2p[hop]
            reached[to].append(at)
            if free[to] <= now:
                heapq.heappush(heap, (at, to))
    return tuple(map(tuple, orders))
