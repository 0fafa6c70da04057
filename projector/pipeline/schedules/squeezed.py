"""V-Half and V-Min: building blocks repeated at a fixed period, both ends drawn together (arXiv 2405.15362).

A block gives the slots of one micro-batch's four passes on every rank; repeated, it leaves slots idle before the first
micro-batch is back and after the last one entered. Every action of these two ends moves to the earliest slot that is
free on its rank, comes after what the action needs, and keeps no more micro-batches alive than the block itself does.
First the weight gradients keep their slots, then, once idle slots are gone, those of the second end make room and
follow. The orders are those of sail-sg/zero-bubble-pipeline-parallelism zbv_greedy.py (compared for 2 to 12 ranks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from projector.pipeline.schedules.split import v_schedule
from projector.pipeline.types import Action, Generator, Kind, Schedule, actions

_PERIOD = 6  # slots of a micro-batch on a rank: F, B and W of two chunks
PASSES: tuple[tuple[Kind, int], ...] = (("F", 0), ("F", 1), ("B", 1), ("B", 0))
_LAST, _W = 3, 4  # the last pass of a micro-batch; weight gradients, in the order of their B


def squeezed(pp: int, microbatches: int, block: Callable[[int], Sequence[int]]) -> tuple[tuple[Action, ...], ...]:
    """Returns the order of every rank; ``block(rank)``: the slots of F of chunk 0 and 1, B of chunk 1 and 0 of one
    micro-batch. From ``2·pp`` micro-batches on the two ends do not meet."""
    return steady(lambda count: in_full(pp, count, block), microbatches, 2 * pp + 2)


def in_full(pp: int, microbatches: int, block: Callable[[int], Sequence[int]]) -> list[tuple[Action, ...]]:
    """Returns the orders of :func:`squeezed` by moving every micro-batch."""
    firsts = [block(rank) for rank in range(pp)]
    lanes = [[list(range(slot, slot + _PERIOD * microbatches, _PERIOD)) for slot in first] for first in firsts]
    ranks = [_Rank(own) for own in lanes]
    most = max(max(rank.alive) for rank in ranks)
    for rank, lane, n, earliest in _ends([[*rank.lanes, rank.weights] for rank in ranks]):
        ranks[rank].move(lane, n, earliest, most)
    ranks = [_Rank(own) for own in _without_idle(ranks)]
    for rank, lane, n, earliest in _ends([rank.lanes for rank in ranks]):
        ranks[rank].make_room(lane, n, earliest, most)
    return [_Rank(rank.lanes).order() for rank in ranks]


class _Rank:
    """The slots of one rank. ``lanes[p][n]``: of pass ``p`` of micro-batch ``n``; ``weights[n]``: of the n-th W; after
    each slot ``alive`` chunks of micro-batches and ``pending`` weight gradients."""

    def __init__(self, lanes: list[list[int]]) -> None:
        self.lanes = lanes
        self.events = [0] * (2 + max(slots[-1] for slots in lanes) + 2 * len(lanes[0]))
        for lane, slots in enumerate(lanes):
            for slot in slots:
                self.events[slot] = 1 if lane < 2 else -1
        self.alive, self.pending, self.weights = [0] * len(self.events), [0] * len(self.events), list[int]()
        self.taken = [event != 0 for event in self.events]
        alive = pending = 0
        for slot, event in enumerate(self.events):
            if event > 0:
                alive += 1
            elif event < 0:
                pending += 1
            elif pending:
                self.weights.append(slot)
                self.taken[slot] = True
                alive, pending = alive - 1, pending - 1
            self.alive[slot], self.pending[slot] = alive, pending

    def move(self, lane: int, n: int, earliest: int, most: int) -> None:
        """Moves an action to the first free slot from ``earliest`` on with at most ``most`` alive; W stay."""
        slots = self.weights if lane == _W else self.lanes[lane]
        old, step = slots[n], 1 if lane < 2 else -1 if lane == _W else 0
        low = earliest
        if step > 0:
            low = old
            while low > earliest and self.alive[low - 1] < most:
                low -= 1
        new = next((slot for slot in range(low, old) if not self.taken[slot]), old)
        slots[n] = new
        self.taken[old], self.taken[new] = False, True
        for slot in range(new, old if step else new):
            self.alive[slot] += step

    def make_room(self, lane: int, n: int, earliest: int, most: int) -> None:
        """Moves an action like :meth:`move`, but weight gradients give way."""
        old = self.lanes[lane][n]
        for new in range(earliest, old):
            if self.events[new] == 0 and (then := self._then(new, old, most)) is not None:
                self.lanes[lane][n] = new
                self.events[new], self.events[old] = self.events[old], 0
                for slot, (alive, pending) in enumerate(then, new):
                    self.alive[slot], self.pending[slot] = alive, pending
                return

    def _then(self, new: int, old: int, most: int) -> list[tuple[int, int]] | None:
        """Returns what is alive and pending from ``new`` on when the action of ``old`` stands there; None: more than
        ``most``."""
        alive, pending = (self.alive[new - 1], self.pending[new - 1]) if new else (0, 0)
        counts: list[tuple[int, int]] = []
        for slot in range(new, len(self.events)):
            event = self.events[old] if slot == new else 0 if slot == old else self.events[slot]
            alive, pending = _after(event, alive, pending)
            if alive > most:
                return None
            if slot > old and (alive, pending) == (self.alive[slot], self.pending[slot]):
                break
            counts.append((alive, pending))
        return counts

    def order(self) -> tuple[Action, ...]:
        placed = [
            (slot, Action(kind, chunk, n))
            for (kind, chunk), slots in zip(PASSES, self.lanes, strict=True)
            for n, slot in enumerate(slots)
        ]
        backwards = [action for _, action in sorted(placed) if action.kind == "B"]
        weights = [Action("W", action.chunk, action.microbatch) for action in backwards]
        placed += zip(self.weights, weights, strict=True)
        return tuple(action for _, action in sorted(placed))


def _after(event: int, alive: int, pending: int) -> tuple[int, int]:
    """Returns (alive, pending) after a slot with a forward (1), a backward (−1), or none (0), which a pending W takes."""
    if event > 0:
        return alive + 1, pending
    if event < 0:
        return alive, pending + 1
    return (alive - 1, pending - 1) if pending else (alive, pending)


def _ends(ranks: Sequence[Sequence[list[int]]]) -> Iterator[tuple[int, int, int, int]]:
    """Yields (rank, lane, number, earliest slot) of what may move, in the order of slots: both ends where W stand in a
    lane of their own, else the second. ``earliest`` follows from where the actions before it have moved to meanwhile."""
    begin = ranks[0][_LAST][0], 0  # the first micro-batch is back
    entered = ((lanes[0][-1], rank) for rank, lanes in enumerate(ranks))
    end = min((place for place in entered if place > begin), default=None)  # a rank has seen the last one enter
    weights = len(ranks[0]) > _W
    for slot, rank, lane, n in in_order(ranks):
        if (end is not None and (slot, rank) > end) or (weights and (slot, rank) < begin):
            yield rank, lane, n, 1 + _needed(ranks, rank, lane, n)


def in_order(ranks: Sequence[Sequence[list[int]]]) -> list[tuple[int, int, int, int]]:
    """Returns (slot, rank, lane, number) of all actions, by slot."""
    return sorted(
        (slot, rank, lane, n)
        for rank, own in enumerate(ranks)
        for lane, slots in enumerate(own)
        for n, slot in enumerate(slots)
    )


def _needed(ranks: Sequence[Sequence[list[int]]], rank: int, lane: int, n: int) -> int:
    """Returns the last slot of what an action waits for: its lane, its micro-batch here and on the rank before."""
    lanes = ranks[rank]
    last = lanes[lane][n - 1] if n else -1
    if lane == _W:
        return max(last, sorted([*lanes[2], *lanes[_LAST]])[n])
    neighbour = rank - 1 if lane in (0, 2) else rank + 1
    here = lanes[lane - 1][n] if lane else -1
    there = ranks[neighbour][lane][n] if 0 <= neighbour < len(ranks) else -1
    return max(last, here, there)


def _without_idle(ranks: Sequence[_Rank]) -> list[list[list[int]]]:
    """Returns the passes of every rank as early as those before them allow, W among them, each taking one slot."""
    lanes = [[*rank.lanes, rank.weights] for rank in ranks]
    earliest = [[[-1] * len(slots) for slots in own] for own in lanes]
    free = [0] * len(ranks)
    for _, rank, lane, n in in_order(lanes):
        needed = -1 if lane == _W else _needed(earliest, rank, lane, n)
        earliest[rank][lane][n] = max(free[rank], needed + 1)
        free[rank] = earliest[rank][lane][n] + 1
    return [own[:_W] for own in earliest]


Order = tuple[Action, ...]


def steady(in_full: Callable[[int], Sequence[Order]], microbatches: int, enough: int) -> tuple[Order, ...]:
    """Returns ``in_full(microbatches)``, the order of every rank, made from ``in_full(enough)``: where the actions of
    one micro-batch are followed by those of the next, the missing ones are put in.

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
    """Returns where ``period`` actions are followed by the same of the next micro-batch: from the middle on, or anywhere."""
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


def half(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """Returns V-Half, with about half of 1F1B's activations."""
    gap = 3 if pp % 2 == 0 else 0  # keeps the four passes of a rank in different residues of the period

    def block(rank: int) -> tuple[int, int, int, int]:
        return 2 * rank, 3 * pp - rank - 2, 3 * pp + gap + 2 * rank - 1, 6 * pp + gap - rank - 2

    return v_schedule("v_half", pp, microbatches, squeezed(pp, microbatches, block))


def least(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """Returns V-Min, the block with the least memory, about a third of 1F1B's activations."""
    gap = 2 if pp % 3 == 0 else 0  # as in half()

    def block(rank: int) -> tuple[int, int, int, int]:
        return rank, 2 * pp - rank - 1, 2 * pp + gap + rank, 4 * pp + gap - rank - 1

    return v_schedule("v_min", pp, microbatches, squeezed(pp, microbatches, block))


GENERATORS = tuple(
    Generator(
        f"v_{word}", build, (f"v{word}", f"zbv-greedy-{word}", f"zbv-{word}"),
        "Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362",
        chunks=2, split=True, configured_by=("primus",),
    )
    for word, build in (("half", half), ("min", least))
)  # fmt: skip
