"""A schedule with times: what each rank does when, and how long it waits."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from projector.dataclass import dataclass
from projector.pipeline.types import KINDS, Compiled, Kind
from projector.size import Floats


@dataclass(frozen=True, eq=False)
class Timeline:
    """Times of one evaluation, in seconds from the start of the step.

    ``end`` is ``[actions]`` in the order of ``compiled``, or ``[batch, actions]``; every derived figure then carries
    the same leading batch axis. ``durations`` ``[…, 3·stages]``: the table F | B | W of the evaluation (an unsplit B
    holds both). ``transfer``, ``blocked`` ``[…, actions]``, ``release`` ``[…, stages]``: see
    :mod:`projector.pipeline.evaluator`. ``hidden`` ``[actions]``: seconds that an action saves beside its partner
    (``None``: none); a pair is one action, from the start of its forward, and its backward takes no time of its own.
    """

    compiled: Compiled
    durations: Floats
    transfer: Floats
    blocked: Floats
    release: Floats
    end: Floats
    hidden: Floats | None = None

    def __repr__(self) -> str:
        schedule = self.compiled.schedule
        return f"Timeline: {schedule.name}, {schedule.pp} ranks, {schedule.microbatches} micro-batches"

    def plot(self) -> Any:
        """Returns a matplotlib figure with a line for each pipeline rank. Needs matplotlib."""
        from projector.pipeline.draw import drawn

        return drawn([self], titles=[repr(self)])

    @cached_property
    def start(self) -> Floats:
        """Returns ``[…, actions]``: when each action starts (exactly the recurrence, not ``end`` minus a duration)."""
        plan = self.compiled
        mine = np.where(plan.before >= 0, self.end[..., plan.before] + self.blocked, 0.0)
        other = np.where(plan.source >= 0, self.end[..., plan.source] + self.transfer, 0.0)
        floor = np.where(plan.kind == 0, self.release[..., plan.stage], 0.0)
        start = np.maximum(np.maximum(mine, other), floor)
        forward, backward = plan.pairs
        if len(forward):
            start[..., forward] = np.maximum(start[..., forward], other[..., backward])
            start[..., backward] = self.end[..., backward]
        return start

    @cached_property
    def duration(self) -> Floats:
        """Returns ``[…, actions]``: how long each action lasts."""
        return paired_durations(self.compiled, self.durations, self.hidden)

    @cached_property
    def shown(self) -> tuple[Floats, Floats]:
        """Returns (start, end) ``[…, actions]`` for views: a pair as its forward, then its backward."""
        start, end = self.start, self.end
        forward, backward = self.compiled.pairs
        if not len(forward):
            return start, end
        start, end = start.copy(), end.copy()
        alone = self.durations[..., self.compiled.duration_index]
        both = alone[..., forward] + alone[..., backward]
        share = np.divide(alone[..., forward], both, out=np.ones_like(both), where=both > 0)
        cut = start[..., forward] + share * (end[..., forward] - start[..., forward])
        end[..., forward], start[..., backward] = cut, cut
        return start, end

    @cached_property
    def makespan(self) -> Floats:
        """Returns ``[…]``: when the last action of any rank ends."""
        return np.asarray(self.rank_end.max(axis=-1))

    @cached_property
    def rank_busy(self) -> Floats:
        """Returns ``[…, pp]``: seconds in which a rank computes."""
        return self._per_rank(np.add, self.duration)

    @cached_property
    def rank_start(self) -> Floats:
        """Returns ``[…, pp]``: when a rank starts its first action."""
        return self._per_rank(np.minimum, self.start)

    @cached_property
    def rank_end(self) -> Floats:
        """Returns ``[…, pp]``: when a rank ends its last action."""
        plan = self.compiled
        return self.end[..., plan.by_rank[[*(plan.rank_starts[1:] - 1), -1]]]

    @property
    def rank_span(self) -> Floats:
        """Returns ``[…, pp]``: from the first start to the last end of a rank."""
        return self.rank_end - self.rank_start

    @property
    def bubble_of_makespan(self) -> Floats:
        """Returns ``[…, pp]``: the share of the makespan in which a rank does not compute (0 when nothing takes time)."""
        return _idle(self.rank_busy, self.makespan[..., None])

    @property
    def bubble_of_span(self) -> Floats:
        """Returns ``[…, pp]``: the share of a rank's own span in which it does not compute, as arXiv 2401.10241 counts."""
        return _idle(self.rank_busy, self.rank_span)

    @property
    def bubble(self) -> Floats:
        """Returns ``[…]``: the share of all ranks' time that is not compute."""
        return np.asarray(self.bubble_of_makespan.mean(axis=-1))

    @cached_property
    def last_backward(self) -> Floats:
        """Returns ``[…, stages]``: when the last weight gradient of a virtual stage is complete."""
        return self.last_end("W" if self.compiled.schedule.split else "B")

    def last_end(self, kind: Kind) -> Floats:
        """Returns ``[…, stages]``: when a virtual stage ends its last action of this kind (−infinite if it has none)."""
        placement = np.asarray(self.compiled.schedule.placement)
        last = self.compiled.last_of[KINDS.index(kind)]
        ends = np.full((*self.end.shape[:-1], self.compiled.stages), -np.inf)
        if (last >= 0).all():
            np.maximum.at(ends, (..., placement), self.end[..., last])  # type: ignore[arg-type]
        return ends

    def at(self, row: int) -> Timeline:
        """Returns one evaluation out of a batch."""

        def pick(array: Floats) -> Floats:
            return array if array.ndim == 1 else array[row if array.shape[0] > 1 else 0]

        names = ("durations", "transfer", "blocked", "release", "end")
        parts: dict[str, Any] = {name: pick(getattr(self, name)) for name in names}
        return replace(self, **parts)

    def _per_rank(self, how: np.ufunc, values: Floats) -> Floats:
        ordered = values[..., self.compiled.by_rank]
        return np.asarray(how.reduceat(ordered, self.compiled.rank_starts, axis=-1))


def paired_durations(compiled: Compiled, table: Floats, hidden: Floats | None) -> Floats:
    """Returns ``[…, actions]``: seconds of each action out of the table F | B | W; a forward with a partner takes both."""
    seconds = table[..., compiled.duration_index]
    forward, backward = compiled.pairs
    if len(forward):
        saved = 0.0 if hidden is None else hidden[..., forward] + hidden[..., backward]
        seconds[..., forward] = np.maximum(seconds[..., forward] + seconds[..., backward] - saved, 0.0)
        seconds[..., backward] = 0.0
    return seconds


def _idle(busy: Floats, total: Floats) -> Floats:
    share = np.divide(busy, total, out=np.ones(np.broadcast_shapes(busy.shape, total.shape)), where=total > 0)
    return 1.0 - share
