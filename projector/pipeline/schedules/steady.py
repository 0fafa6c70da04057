"""What repeats in the middle of an order: a few micro-batches are generated, further ones are copies of the steady state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from projector.pipeline.types import Action, actions

Order = tuple[Action, ...]


def steady(in_full: Callable[[int], Sequence[Order]], microbatches: int, enough: int) -> tuple[Order, ...]:
    """``in_full(microbatches)``, the order of every rank, out of ``in_full(enough)``: where the actions of one micro-batch
    are followed by those of the next, the missing ones are put in.

    ``enough``: from which number on only that middle grows, which the tests of a schedule show. Where an order has no
    such place, it is generated in full.
    """
    more = microbatches - enough
    if more <= 0:
        return tuple(in_full(microbatches))
    short = in_full(enough)
    period = len(short[0]) // enough
    places = [_repeats(order, period) for order in short]
    if None in places:
        return tuple(in_full(microbatches))
    return tuple(
        _lengthened(order, at or 0, period, more, microbatches) for order, at in zip(short, places, strict=True)
    )


def _lengthened(order: Order, at: int, period: int, more: int, total: int) -> Order:
    copies = (_later(order[at : at + period], step, total) for step in range(1, more + 1))
    return (*order[: at + period], *chain.from_iterable(copies), *_later(order[at + period :], more, total))


def _repeats(order: Order, period: int) -> int | None:
    """Where ``period`` actions are followed by the same of the next micro-batch: from the middle on, else anywhere."""
    for begin in (len(order) // 2 - period, 0):
        run = 0
        for at in range(max(0, begin), len(order) - period):
            (kind, chunk, number), (again, same, following) = order[at], order[at + period]
            run = run + 1 if kind == again and chunk == same and number + 1 == following else 0
            if run == period:
                return at - period + 1
    return None


def _later(part: Order, by: int, total: int) -> list[Action]:
    return [actions(kind, chunk, total)[number + by] for kind, chunk, number in part]
