"""DualPipeV: the V-shaped half of DualPipe, forwards and backwards of the two chunks alternating in steady state."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from projector.pipeline.schedules.split import alternate, drop_missing, v_schedule
from projector.pipeline.types import Action, Generator, Kind, Schedule, actions

Parts = tuple[tuple[Action, ...], tuple[Action, ...], tuple[Action, ...]]


def build(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """Returns the published order for at least ``2·pp`` micro-batches; for fewer, the same order without those that do
    not exist. Bubble and memory are those of DualPipe with twice the ranks."""
    ranks = parts(pp, microbatches)
    whole = tuple(chain.from_iterable(rank) for rank in ranks)
    return replace(v_schedule("dualpipe_v", pp, microbatches, whole), joined=joined(ranks))


def parts(pp: int, microbatches: int) -> list[Parts]:
    """Returns the actions of every rank: before, while and after it runs whole backwards, beside forwards or alone."""
    enough = max(2 * pp, microbatches)
    ranks = ([drop_missing(part, microbatches) for part in _Rank(pp, rank, enough).parts()] for rank in range(pp))
    return [(before, together, after) for before, together, after in ranks]


def joined(ranks: Sequence[Parts]) -> tuple[tuple[int, int], ...]:
    """Returns where on every rank forwards run beside backwards and backwards are whole (``Schedule.joined``)."""
    return tuple((len(before), len(before) + len(together)) for before, together, _ in ranks)


class _Rank:
    """The eight phases of one rank."""

    def __init__(self, pp: int, rank: int, microbatches: int) -> None:
        self.below, self.above, self.m = pp - rank - 1, rank + 1, microbatches
        self.steady = microbatches - 2 * pp + rank + 1
        self.rank = rank
        self.forwards, self.backwards = [0, 0], [0, 0]
        self.put_off: deque[Action] = deque()
        # Weight gradients are put off from the middle of the first flush phase on: half a pass later on even ranks.
        self.half = 2 * (self.above // 2) + (rank % 2 == 0)

    def parts(self) -> tuple[list[Action], list[Action], list[Action]]:
        before, together = [*self._warmup()], [*self._steady(), *self._middle()]
        if self.below == 0:  # the lowest rank does not overlap its first pair
            before.append(together.pop(0))
        return before, together, [*self._flush()]

    def _warmup(self) -> Iterator[Action]:
        for _ in range(2 * self.below):
            yield self._forward(0)
        for _ in range(self.above):
            yield from (self._forward(0), self._forward(1))
        for _ in range(self.below):
            yield from (self._input(1), self.put_off.popleft(), self._forward(1))

    def _steady(self) -> Iterator[Action]:
        """Returns forwards of one chunk and whole backwards of the other, in turn; nothing is put off at either end."""
        lanes: list[tuple[Action, ...]] = []
        kinds: tuple[Kind, Kind] = ("B", "W")
        for ahead, behind in ((0, 1), (1, 0)):
            done, ended = self.forwards[ahead], self.backwards[behind]
            lanes.append(actions("F", ahead, self.m)[done : done + self.steady])
            lanes += [actions(kind, behind, self.m)[ended : ended + self.steady] for kind in kinds]
            self.forwards[ahead] += self.steady
            self.backwards[behind] += self.steady
        return alternate(*lanes)

    def _middle(self) -> Iterator[Action]:
        for _ in range(self.below):
            yield from (*self._whole(1), self._forward(1), *self._whole(0))
        for step in range(self.half):
            yield from self._whole(1 - step % 2)

    def _flush(self) -> Iterator[Action]:
        for step in range(self.half, 2 * self.above):
            yield self._input(1 - step % 2)
        for _ in range(self.below):
            if self.put_off:
                yield self.put_off.popleft()
            yield self._input(0)
        yield from self.put_off

    def _forward(self, chunk: int) -> Action:
        self.forwards[chunk] += 1
        return Action("F", chunk, self.forwards[chunk] - 1)

    def _input(self, chunk: int) -> Action:
        action = Action("B", chunk, self.backwards[chunk])
        self.backwards[chunk] += 1
        self.put_off.append(Action("W", chunk, action.microbatch))
        return action

    def _whole(self, chunk: int) -> tuple[Action, Action]:
        return self._input(chunk), self.put_off.pop()


GENERATOR = Generator(
    "dualpipe_v", build, ("dualpipev", "dual-pipe-v", "cut-in-half"),
    "deepseek-ai/DualPipe dualpipev.py; arXiv 2412.19437; torch ScheduleDualPipeV (PyTorch 2.x)",
    chunks=2, split=True, configured_by=("torchtitan",), pairs=True,
)  # fmt: skip
