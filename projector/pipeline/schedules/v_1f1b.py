"""V-1F1B: whole backwards on the V-shaped placement, at about two thirds of 1F1B's activations."""

from __future__ import annotations

from collections.abc import Iterator

from projector.pipeline.schedules.squeezed import PASSES, in_order
from projector.pipeline.types import Action, Generator, Schedule, snake_placement

_PERIOD = 6  # slots a micro-batch takes on a rank: F of two chunks, and their backwards of two slots each


def build(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """Returns the building block of one micro-batch repeated every six slots; then every action, in the order of slots,
    moves to the earliest slot that is free after what it needs, forwards as far as no rank holds more than the block."""
    ranks = [_Rank([list(range(slot, slot + _PERIOD * microbatches, _PERIOD)) for slot in own]) for own in _block(pp)]
    most = max(max(rank.alive) for rank in ranks)
    for _, rank, lane, n in in_order([rank.lanes for rank in ranks]):
        ranks[rank].move(lane, n, 1 + _needed(ranks, rank, lane, n), most)
    orders = tuple(rank.order() for rank in ranks)
    return Schedule("v_1f1b", pp, 2, microbatches, False, orders, snake_placement(pp))


def _block(pp: int) -> list[tuple[int, ...]]:
    """Returns the slots of the passes on every rank: backwards wait three slots after each third rank, so that they
    fall where forwards are not."""
    backward = list(_backward_slots(pp))
    return [(rank, 2 * pp - 1 - rank, backward[rank], backward[2 * pp - 1 - rank]) for rank in range(pp)]


def _backward_slots(pp: int) -> Iterator[int]:
    slot, turn = 2 * pp + (3 if pp % 3 == 0 else 0), -(pp + 2) % 3
    for _ in range(2 * pp):
        yield slot
        turn = (turn + 1) % 3
        slot += 2 if turn else 5


class _Rank:
    """The slots of one rank. ``lanes[p][n]``: of pass ``p`` of micro-batch ``n``; a backward takes the slot after it,
    too. ``alive``: chunks of micro-batches after each slot."""

    def __init__(self, lanes: list[list[int]]) -> None:
        self.lanes = lanes
        size = 2 + max(slots[-1] for slots in lanes)
        change, self.taken = [0] * size, [False] * size
        for lane, slots in enumerate(lanes):
            for slot in slots:
                change[slot + (lane > 1)] = 1 if lane < 2 else -1
                self.taken[slot] = self.taken[slot + (lane > 1)] = True
        self.alive, alive = [], 0
        for step in change:
            alive += step
            self.alive.append(alive)

    def move(self, lane: int, n: int, earliest: int, most: int) -> None:
        old, taken = self.lanes[lane][n], self.taken
        if lane < 2:
            new = old
            while new > earliest and self.alive[new - 1] < most:
                new -= 1
            while new < old and taken[new]:
                new += 1
        else:
            new = next((slot for slot in range(earliest, old) if not (taken[slot] or taken[slot + 1])), old)
        if new == old:
            return
        more = lane > 1
        self.lanes[lane][n] = new
        taken[old] = taken[old + more] = False
        taken[new] = taken[new + more] = True
        for slot in range(new + more, old + more):
            self.alive[slot] += -1 if more else 1

    def order(self) -> tuple[Action, ...]:
        placed = [
            (slot, n, kind) for kind, slots in zip(PASSES, self.lanes, strict=True) for n, slot in enumerate(slots)
        ]
        return tuple(Action(kind, chunk, n) for _, n, (kind, chunk) in sorted(placed))


def _needed(ranks: list[_Rank], rank: int, lane: int, n: int) -> int:
    """Returns the last slot of what an action waits for: its lane, its micro-batch here and on the rank before."""
    lanes = ranks[rank].lanes
    neighbour = rank - 1 if lane in (0, 2) else rank + 1
    last = lanes[lane][n - 1] + (lane > 1) if n else -1
    if 0 <= neighbour < len(ranks):
        return max(last, ranks[neighbour].lanes[lane][n] + (lane > 1))
    return max(last, lanes[lane - 1][n] + (lane > 2)) if lane else last


GENERATOR = Generator(
    "v_1f1b", build, ("v1f1b", "1f1b-v"),
    "Qi et al., arXiv 2405.15362, appendix (1F1B-V); sail-sg/zero-bubble-pipeline-parallelism@39f2c18 v1f1b.py",
    chunks=2,
)  # fmt: skip
