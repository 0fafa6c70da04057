"""What schedules with a split backward share: weight gradients that lag, and orders read off a table of slots."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from projector.pipeline.types import Action, Schedule, v_placement

__all__ = ["by_slot", "keep", "lagging", "v_schedule"]


def lagging(
    forward: Sequence[tuple[int, int]], backward: Sequence[tuple[int, int]], warmup: int, lag: int
) -> tuple[Action, ...]:
    """1F1B over ``(chunk, microbatch)`` lists, W ``lag`` input gradients behind: F…, (F, B[, W])…, (B[, W])…, W…."""
    order = [Action("F", *at) for at in forward[:warmup]]
    pending: deque[tuple[int, int]] = deque()
    for number, behind in enumerate(backward):
        if warmup + number < len(forward):
            order.append(Action("F", *forward[warmup + number]))
        order.append(Action("B", *behind))
        pending.append(behind)
        if len(pending) > lag:
            order.append(Action("W", *pending.popleft()))
    order += (Action("W", *at) for at in pending)
    return tuple(order)


def by_slot(slots: Iterable[tuple[int, Action]]) -> tuple[Action, ...]:
    """F and B at the given time slots, each W in the first slot free after its B, first come first served.

    The order of slots is all that is kept; slots that respect every dependency between ranks cannot deadlock.
    """
    queue = deque(sorted(slots, key=lambda slot: slot[0]))
    order: list[Action] = []
    pending: deque[Action] = deque()
    now = queue[0][0] if queue else 0
    while queue:
        slot, action = queue[0]
        if slot <= now or not pending:
            queue.popleft()
            order.append(action)
            now = max(slot, now)
            if action.kind == "B":
                pending.append(Action("W", action.chunk, action.microbatch))
        else:
            order.append(pending.popleft())
        now += 1
    return (*order, *pending)


def keep(order: Iterable[Action], microbatches: int) -> tuple[Action, ...]:
    """``order`` without the micro-batches that do not exist: dependencies stay within one, so it stays valid."""
    return tuple(action for action in order if action.microbatch < microbatches)


def v_schedule(name: str, pp: int, microbatches: int, orders: Iterable[Iterable[Action]]) -> Schedule:
    """A split schedule on the V-shaped placement."""
    kept = tuple(keep(order, microbatches) for order in orders)
    return Schedule(name, pp, 2, microbatches, True, kept, v_placement(pp))
