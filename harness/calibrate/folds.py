"""Held-out estimates under nested selection: what judges a correction has chosen neither it nor its parameters.

For every label (a source, a model family; in transfer tests a framework or a GPU) the rows of all other labels are the
training fold. Inside it every law of :data:`harness.calibrate.hierarchy.LAWS`, from no correction at all to one for every
GPU and framework, predicts each source from all others. A law is used where it beats the simpler one by more than the
standard error of that gain over sources (the rule of Breiman, Friedman, Olshen, Stone, *Classification and Regression
Trees*, 1984, 3.4.3): a correction that does not help sources which it has not seen is not applied. The interval comes
from the same residuals, so that nothing of the label has touched the choice, the parameters or the width. Pure and
deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from harness.calibrate import hierarchy, intervals
from harness.calibrate.hierarchy import LAWS, Array, Fitted, Units
from harness.calibrate.intervals import Learnt
from harness.contracts.estimates import Estimate, Observation
from projector import experience
from projector.experience import Basis

Label = Callable[[Observation], str]

#: Sources without which nothing can be said of sources.
FEWEST = 3


@dataclass(frozen=True, kw_only=True)
class Fold:
    """The law chosen on a training fold, fitted on it, with what its inner residuals taught.

    ``scores``: inner error of each law, empty where there was nothing to choose by.
    """

    fitted: Fitted
    scores: Mapping[str, float]
    learnt: Learnt | None

    @property
    def law(self) -> str:
        return self.fitted.law

    @cached_property
    def _grounds(self) -> dict[tuple[str, ...], Basis]:
        return {}

    @cached_property
    def _stacks(self) -> dict[str, Basis]:
        return {}

    def ground(self, levels: tuple[str, ...]) -> Basis:
        """What a place teaches (asked for before: remembered)."""
        if levels not in self._grounds:
            self._grounds[levels] = self.fitted.ground(levels)
        return self._grounds[levels]

    def stack(self, framework: str) -> Basis:
        """What a framework teaches (asked for before: remembered)."""
        if framework not in self._stacks:
            self._stacks[framework] = self.fitted.stack(framework)
        return self._stacks[framework]

    def rests_on(self, levels: tuple[str, ...]) -> int:
        """The finest of ``levels`` with runs of the fold; −1: none."""
        seen = (any(o.levels[i] == key for o in self.fitted.units) for i, key in enumerate(levels))
        return next((i for i, found in enumerate(seen) if found), -1)

    def estimate(self, o: Observation) -> Estimate:
        """Of a row that the fold has not seen."""
        ground, stack = self.ground(o.levels), self.stack(o.framework)
        half = math.inf
        if self.learnt is not None:
            told = experience.features(o.traits, ground.sources, stack.sources)
            half = float(intervals.half_widths(np.array([told]), self.learnt)[0]) * experience.wider(o.framework)
        log = experience.correct(ground, stack)
        level = self.rests_on(o.levels)
        key = o.levels[level] if level >= 0 else ""
        return Estimate(law=self.law, log=log, key=key, level=level, half=half)


def by_family(o: Observation) -> str:
    return o.family


def by_source(o: Observation) -> str:
    """Who published it: all rows of a repository, of a document or of an MLPerf submitter are left out together, whatever
    their model, framework and GPU (the rule: :func:`harness.contracts.sources.publisher`)."""
    return o.source


#: What rows are held out by. The first two are headlines: a user is a new source, and often has a new model.
LABELS: Mapping[str, Label] = {
    "source": by_source,
    "family": by_family,
    "framework": lambda o: o.framework,
    "GPU": lambda o: o.gpu,
}


def judge(observations: Sequence[Observation], label: Label = by_source) -> tuple[Fold, dict[str, Estimate]]:
    """What is shipped (the fold that leaves nothing out, its law chosen by the same rule), and :meth:`Bench.held_out`."""
    bench = Bench.of(observations, label)
    return bench.fold(None), bench.held_out()


@dataclass(frozen=True)
class Bench:
    """Rows to hold out by a label. ``every``: with rows that were not measured, which are estimated and teach nothing."""

    every: tuple[Observation, ...]
    units: Units
    label: Label

    @classmethod
    def of(cls, observations: Sequence[Observation], label: Label = by_source) -> Bench:
        measured = (o for o in observations if math.isfinite(o.log_ratio))
        return cls(tuple(observations), Units.made(measured), label)

    @cached_property
    def labels(self) -> NDArray[np.object_]:
        """Of the units."""
        return np.array([self.label(o) for o in self.units.first], dtype=object)

    @property
    def groups(self) -> int:
        """Labels that can be left out."""
        return len(set(self.labels.tolist()))

    def held_out(self, law: str | None = None, asked: Sequence[Observation] | None = None) -> dict[str, Estimate]:
        """By run id, each row by the fold that leaves its label out. ``law``: this one, without a choice; ``asked``: rows
        to estimate that need not be among those that teach."""
        rows = self.every if asked is None else asked
        folds = {name: self.fold(name, law) for name in dict.fromkeys(map(self.label, rows))}
        return {o.run_id: folds[self.label(o)].estimate(o) for o in rows}

    def fold(self, name: str | None, law: str | None = None) -> Fold:
        """The fold that leaves ``name`` out; None: nothing. ``law``: this one, without a choice."""
        kept = np.ones(len(self.labels), dtype=bool) if name is None else self.labels != name
        source = self.units.source[kept]
        if len(set(source.tolist())) < FEWEST:
            return Fold(fitted=self.units.fit(law or "none", kept), scores={}, learnt=None)
        inner = _Inner.of(self.units, kept)
        fits = {one: self.units.fit(one, kept) for one in (LAWS if law is None else (law,))}
        left = {one: inner.residuals(fitted.without_source(source)) for one, fitted in fits.items()}
        chosen = inner.earned(left)
        scores = {one: float(inner.weight @ found) for one, found in left.items()}
        return Fold(fitted=fits[chosen], scores=scores, learnt=inner.learn(left[chosen]))


@dataclass(frozen=True, kw_only=True)
class _Inner:
    """The rows of a training fold, each of whose sources is held out in turn. ``unit``: of each row, among those kept;
    ``weight``: of each in the score, where every source weighs the same and its cells do, 1 in all; ``source``: its code."""

    rows: tuple[Observation, ...]
    logs: Array
    unit: NDArray[np.int_]
    weight: Array
    source: NDArray[np.int_]

    @classmethod
    def of(cls, units: Units, kept: NDArray[np.bool_]) -> _Inner:
        at = np.flatnonzero(kept[units.of])
        rows = tuple(units.rows[i] for i in at)
        unit, source = (np.cumsum(kept) - 1)[units.of[at]], hierarchy.codes(o.source for o in rows)
        weight = intervals.by_source(source.tolist(), unit.tolist())
        logs = np.array([o.log_ratio for o in rows])
        return cls(rows=rows, logs=logs, unit=unit, weight=weight / weight.sum(), source=source)

    def residuals(self, expected: Array) -> Array:
        """|ln(measured / estimated)| of the rows, from what the units are expected to be off by."""
        return np.abs(self.logs - expected[self.unit])

    def earned(self, left: Mapping[str, Array]) -> str:
        """The simplest law that none behind it beats by more than the standard error of the gain over sources."""
        chosen, *others = left
        for law in others:
            gain = np.bincount(self.source, self.weight * (left[chosen] - left[law]))
            error = math.sqrt(len(gain) * float(np.var(gain, ddof=1)))
            if float(gain.sum()) > error:
                chosen = law
        return chosen

    def learn(self, residuals: Array) -> Learnt | None:
        # every row's own source is left out of what is known of its GPU and its framework
        grounds, stacks = (
            _others(self.source, hierarchy.codes(labels))
            for labels in ((o.levels[0] for o in self.rows), (o.framework for o in self.rows))
        )
        told = [
            experience.features(o.traits, ground, stack)
            for o, ground, stack in zip(self.rows, grounds.tolist(), stacks.tolist(), strict=True)
        ]
        return intervals.learn(np.array(told), residuals, self.source.tolist(), self.unit.tolist())


def _others(source: NDArray[np.int_], place: NDArray[np.int_]) -> NDArray[np.int_]:
    """How many other sources have rows at the place of each row."""
    pairs = np.unique(np.stack([place, source]), axis=1)
    return np.bincount(pairs[0])[place] - 1
