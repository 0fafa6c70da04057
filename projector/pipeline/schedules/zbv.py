"""ZB-V: two chunks a rank in a V, zero bubble for F = B = W at 1F1B's memory."""

from __future__ import annotations

from collections.abc import Iterator

from projector.pipeline.schedules.split import v_schedule
from projector.pipeline.types import Action, Generator, Kind, Schedule

__all__ = ["GENERATOR"]


def build(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """The published order for at least ``2·pp − 1`` micro-batches; for fewer, the same order without those that do not
    exist. A rank holds up to ``2·pp`` half-size chunks.
    """
    del vpp, group, extra_warmup
    enough = max(2 * pp - 1, microbatches)
    return v_schedule("zbv", pp, microbatches, (_rank(pp, rank, enough) for rank in range(pp)))


class _Counter:
    """Hands out micro-batches in order, for each kind and chunk."""

    def __init__(self) -> None:
        self.next: dict[tuple[Kind, int], int] = {}

    def __call__(self, kind: Kind, chunk: int) -> Action:
        microbatch = self.next.get((kind, chunk), 0)
        self.next[kind, chunk] = microbatch + 1
        return Action(kind, chunk, microbatch)

    def done(self, kind: Kind, chunk: int) -> int:
        return self.next.get((kind, chunk), 0)


def _rank(pp: int, rank: int, m: int) -> Iterator[Action]:
    take = _Counter()
    for _ in range(2 * (pp - rank) - 1):
        yield take("F", 0)
    for _ in range(rank):
        yield from (take("F", 1), take("F", 0))
    for _ in range(pp - rank):
        yield from (take("F", 1), take("B", 1), take("W", 1))
    while take.done("F", 1) < take.done("F", 0) or take.done("F", 0) < m:
        if take.done("F", 0) < m:
            yield take("F", 0)
        yield from (take("B", 0), take("W", 0), take("F", 1), take("B", 1), take("W", 1))
    yield from _flush(take, pp, rank, m)


def _flush(take: _Counter, pp: int, rank: int, m: int) -> Iterator[Action]:
    for _ in range(rank):
        yield from (take("B", 0), take("B", 1))
    for _ in range(pp - rank):
        yield from (take("B", 0), take("W", 0))
    for chunk in (1, 0):
        while take.done("W", chunk) < m:
            yield take("W", chunk)


GENERATOR = Generator(
    name="zbv",
    build=build,
    chunks=2,
    split=True,
    aliases=("zb-v", "zbv-formatted", "zbv-zero-bubble", "zbvzerobubble", "zbv-optimized"),
    source="Qi et al., arXiv 2401.10241, section 6",
)
