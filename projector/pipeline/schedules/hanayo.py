"""Hanayo: micro-batches pass the ranks in waves, down and back up as often as there are pairs of chunks."""

from __future__ import annotations

import heapq

from projector.pipeline.types import Action, Generator, Kind, Schedule, snake_placement

_FORWARD, _BACKWARD = 1, 2  # a backward takes twice a forward, as is usual


def build(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """Returns the order of ``vpp / 2`` waves; each halves the bubble of the one before it, as far as messages are free.

    Up to ``pp`` micro-batches, the paper's iteration, a rank takes the backward that is ready, else the forward that
    has come furthest. Of more, up to ``2·pp`` are on their way and forwards go first, without which ranks wait between
    iterations. The paper publishes placement and pictures; both rules are this project's reading of them. ``group`` and
    ``extra_warmup`` do not apply.
    """
    orders = _Play(pp, vpp, microbatches).orders()
    return Schedule("hanayo", pp, vpp, microbatches, False, orders, snake_placement(pp, vpp))


class _Play:
    """Plays the ranks in the order of time: each chooses when it is free among what has arrived."""

    def __init__(self, pp: int, vpp: int, microbatches: int) -> None:
        self.pp, self.last, self.m = pp, pp * vpp - 1, microbatches
        self.home = {stage: (r, c) for r, own in enumerate(snake_placement(pp, vpp)) for c, stage in enumerate(own)}
        self.forwards_first = microbatches > pp
        self.ready: list[list[tuple[bool, int, int]]] = [[] for _ in range(pp)]  # (later, −step, micro-batch)
        self.entered = 0

    def orders(self) -> tuple[tuple[Action, ...], ...]:
        orders: list[list[Action]] = [[] for _ in range(self.pp)]
        free, events = [True] * self.pp, list[tuple[int, int, int, int]]()  # (end, rank, step, micro-batch)
        for _ in range(2 * self.pp if self.forwards_first else self.m):
            self._enter()
        now = 0
        while True:
            for rank in range(self.pp):
                if free[rank] and self.ready[rank]:
                    _, step, number = heapq.heappop(self.ready[rank])
                    kind, stage = self._at(-step)
                    orders[rank].append(Action(kind, self.home[stage][1], number))
                    free[rank] = False
                    heapq.heappush(events, (now + (_FORWARD if kind == "F" else _BACKWARD), rank, -step, number))
            if not events:
                return tuple(map(tuple, orders))
            now = events[0][0]
            while events and events[0][0] == now:
                _, rank, step, number = heapq.heappop(events)
                free[rank] = True
                if step < 2 * self.last + 1:
                    self._arrive(step + 1, number)
                else:
                    self._enter()

    def _at(self, step: int) -> tuple[Kind, int]:
        """Returns what a micro-batch does at a step of its way: forward through all stages, then back."""
        return ("F", step) if step <= self.last else ("B", 2 * self.last + 1 - step)

    def _arrive(self, step: int, number: int) -> None:
        later = (step <= self.last) != self.forwards_first
        heapq.heappush(self.ready[self.home[self._at(step)[1]][0]], (later, -step, number))

    def _enter(self) -> None:
        if self.entered < self.m:
            self._arrive(0, self.entered)
            self.entered += 1


GENERATOR = Generator(
    "hanayo", build, ("wave", "wave-pipeline"), "Liu et al., SC 2023, arXiv 2308.15762", multiples={"vpp": 2}
)
