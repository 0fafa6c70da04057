"""What schedules with a split backward share: weight gradients that lag, and orders read off a table of slots."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, repeat
from operator import itemgetter

from projector.pipeline.types import Action, Schedule, actions, v_placement

__all__ = ["alternate", "by_slot", "keep", "lagging", "v_schedule", "weights"]


def lagging(forward: Sequence[Action], backward: Sequence[Action], warmup: int, lag: int) -> tuple[Action, ...]:
    """1F1B over the actions of a rank, W ``lag`` input gradients behind: F…, (F, B[, W])…, (B[, W])…, W…."""
    weight = weights(backward)
    paired, size = len(forward) - warmup, len(backward)
    first, then = sorted((paired, min(lag, size)))
    order = [*forward[:warmup], *alternate(forward[warmup : warmup + first], backward)]
    if paired > lag:
        order += alternate(forward[warmup + first :], backward[first:then], weight)
    else:
        order += backward[first:then]
    done = max(0, then - lag)
    order += alternate(backward[then:], weight[done:])
    return (*order, *weight[done + size - then :])


def alternate(*lanes: Sequence[Action]) -> Iterator[Action]:
    """One action of each lane in turn, until a lane ends."""
    return chain.from_iterable(zip(*lanes, strict=False))


def weights(backward: Sequence[Action]) -> list[Action]:
    """The weight gradients of input gradients, in their order."""
    top = 1 + max((action.microbatch for action in backward), default=-1)
    pools = [actions("W", chunk, top) for chunk in range(1 + max((action.chunk for action in backward), default=-1))]
    return [pools[chunk][microbatch] for _, chunk, microbatch in backward]


def by_slot(lanes: Iterable[tuple[int, int, Sequence[Action]]]) -> tuple[Action, ...]:
    """F and B at time slots, each W in the first slot free after its B, first come first served.

    A lane is (slot of the first, slots from one to the next, actions). The order of slots is all that is kept; slots
    that respect every dependency between ranks cannot deadlock.
    """
    queue: list[tuple[int, Action, Action | None]] = []
    for first, period, lane in lanes:
        behind: Iterable[Action | None] = weights(lane) if lane and lane[0].kind == "B" else repeat(None)
        queue += zip(count(first, period), lane, behind, strict=False)
    queue.sort(key=itemgetter(0))
    order: list[Action] = []
    pending: deque[Action] = deque()
    now = queue[0][0] if queue else 0
    for slot, action, weight in queue:
        while now < slot and pending:
            order.append(pending.popleft())
            now += 1
        now = (slot if slot > now else now) + 1
        order.append(action)
        if weight is not None:
            pending.append(weight)
    return (*order, *pending)


def keep(order: Iterable[Action], microbatches: int) -> tuple[Action, ...]:
    """``order`` without the micro-batches that do not exist: dependencies stay within one, so it stays valid."""
    return tuple([action for action in order if action[2] < microbatches])


def v_schedule(name: str, pp: int, microbatches: int, orders: Iterable[Iterable[Action]]) -> Schedule:
    """A split schedule on the V-shaped placement."""
    kept = tuple(keep(order, microbatches) for order in orders)
    return Schedule(name, pp, 2, microbatches, True, kept, v_placement(pp))
