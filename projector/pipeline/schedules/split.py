"""Parts that schedules with a split backward share: weight gradients that lag, and the V-shaped placement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from projector.pipeline.types import Action, Schedule, actions, snake_placement


def lagging(forward: Sequence[Action], backward: Sequence[Action], warmup: int, lag: int) -> tuple[Action, ...]:
    """Returns 1F1B over the actions of a rank, W ``lag`` input gradients behind: F…, (F, B[, W])…, (B[, W])…, W…."""
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
    """Yields one action of each lane in turn, until a lane ends."""
    return chain.from_iterable(zip(*lanes, strict=False))


def weights(backward: Sequence[Action]) -> list[Action]:
    """Returns the weight gradients of input gradients, in their order."""
    top = 1 + max((action.microbatch for action in backward), default=-1)
    pools = [actions("W", chunk, top) for chunk in range(1 + max((action.chunk for action in backward), default=-1))]
    return [pools[chunk][microbatch] for _, chunk, microbatch in backward]


def drop_missing(order: Iterable[Action], microbatches: int) -> tuple[Action, ...]:
    """Returns ``order`` without the micro-batches that do not exist: dependencies stay within one, so it stays valid."""
    return tuple([action for action in order if action[2] < microbatches])


def v_schedule(name: str, pp: int, microbatches: int, orders: Iterable[Iterable[Action]]) -> Schedule:
    """Returns a split schedule on the V-shaped placement."""
    existing = tuple(drop_missing(order, microbatches) for order in orders)
    return Schedule(name, pp, 2, microbatches, True, existing, snake_placement(pp))
