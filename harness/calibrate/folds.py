"""Held-out estimates under nested selection: what judges a law has chosen neither it nor its parameters.

For every label (a model family; in transfer tests a framework or a GPU) the rows of all other labels are the training
fold. Inside it every law of :mod:`harness.calibrate.laws` is scored by leaving out one label at a time, by the mean
|ln error| with each (family × GPU × framework) cell weighing the same; the simplest within :data:`MARGIN` of the best
is fitted on the whole training fold and serves the label. Its interval comes from the same inner residuals, so that
nothing of the label has touched it: neither the choice, nor the parameters, nor the width. Pure and deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from harness.calibrate import intervals, scatter, weights
from harness.calibrate.calibration import Observation
from harness.calibrate.intervals import Learnt
from harness.calibrate.laws import Fitted, Ground, Rows
from harness.calibrate.scatter import Scatter
from harness.contracts.estimates import Estimate
from projector import experience
from projector.experience import Basis, Correction

__all__ = ["Bench", "Fold", "Label", "by_family", "judge"]

Label = Callable[[Observation], str]

#: Where too few labels are left to choose by: pooled, which does no harm without rows.
DEFAULT = "pooled"
# A law of more parameters has to be better by this share: less than that changes with every constant of the models.
MARGIN = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """The law chosen on a training fold, fitted on it, with what its inner residuals taught.

    ``scores``: inner error of each law, empty where there was nothing to choose by.
    """

    law: str
    fitted: Fitted
    scores: Mapping[str, float]
    scatter: Scatter
    learnt: Learnt | None

    def ground(self, levels: tuple[str, ...], without: str = "") -> Ground:
        """What a place teaches, its scatter included; ``without``: the scatter of a label's own rows."""
        ground = self.fitted.ground(levels)
        return replace(ground, basis=replace(ground.basis, scatter=self.scatter.of_levels(levels, without)))

    def stack(self, framework: str, without: str = "") -> Basis:
        """What a framework teaches, its scatter included."""
        return replace(self.fitted.stack(framework), scatter=self.scatter.of_stack(framework, without))

    def says(self, o: Observation, without: str = "") -> tuple[Ground, Correction, tuple[float, ...]]:
        """The ground that a row stands on, its correction, and what is known of its own uncertainty."""
        ground, stack = self.ground(o.levels, without), self.stack(o.framework, without)
        found = experience.correct(o.shares, ground.basis, stack)
        return ground, found, experience.features(o.assumed, o.shares, ground.basis, stack)

    def estimate(self, o: Observation) -> Estimate:
        """Of a row that the fold has not seen."""
        ground, found, told = self.says(o)
        half = math.inf
        if self.learnt is not None:
            half = float(intervals.half_widths(np.array([told]), np.array([found.error]), self.learnt)[0])
        return Estimate(
            law=self.law,
            log=found.value,
            error=found.error,
            key=ground.key,
            level=ground.level,
            cells=ground.basis.cells,
            half=half,
        )


def by_family(o: Observation) -> str:
    return o.family


def judge(observations: Sequence[Observation], label: Label = by_family) -> tuple[Fold, dict[str, Estimate]]:
    """What is shipped (the fold that leaves nothing out, its law chosen by the same rule), and :meth:`Bench.held_out`."""
    bench = Bench.of(observations, label)
    return bench.fold(None), bench.held_out()


@dataclass(frozen=True)
class Bench:
    """Rows to hold out by a label, and the fits made so far: the fit without two labels serves both of their folds.

    ``every``: with the rows that were not measured, which are estimated and teach nothing.
    """

    every: tuple[Observation, ...]
    rows: Rows
    labels: NDArray[np.object_]
    label: Label
    fits: dict[tuple[str, frozenset[str]], Fitted] = field(default_factory=dict)

    @classmethod
    def of(cls, observations: Sequence[Observation], label: Label = by_family) -> Bench:
        measured = tuple(o for o in observations if math.isfinite(o.log_ratio))
        labels = np.array([label(o) for o in measured], dtype=object)
        return cls(tuple(observations), Rows(measured), labels, label)

    @property
    def groups(self) -> int:
        """Labels that can be left out."""
        return len(set(self.labels.tolist()))

    def held_out(self, law: str | None = None) -> dict[str, Estimate]:
        """By run id, each row by the fold that leaves its label out. ``law``: this one, without a choice."""
        folds = {name: self.fold(name, law) for name in dict.fromkeys(self.label(o) for o in self.every)}
        return {o.run_id: folds[self.label(o)].estimate(o) for o in self.every}

    def fit(self, law: str, *without: str) -> Fitted:
        key = (law, frozenset(without))
        if key not in self.fits:
            kept = np.ones(len(self.labels), dtype=bool)
            for name in without:
                kept &= self.labels != name
            self.fits[key] = self.rows.fit(law, kept)
        return self.fits[key]

    def fold(self, name: str | None, law: str | None = None) -> Fold:
        """The fold that leaves ``name`` out; None: nothing. ``law``: this one, without a choice."""
        out = () if name is None else (name,)
        training = [o for o in self.rows.observations if self.label(o) not in out]
        enough = len({self.label(o) for o in training}) > 1
        laws = self.rows.laws if law is None else (law,)
        residuals = {one: self._inner(one, training, out) for one in laws} if enough else {}
        cells = [o.cell for o in training]
        scores = {one: weights.macro(np.abs(found), cells) for one, found in residuals.items()}
        law = _simplest(scores) if scores else law or DEFAULT
        fold = Fold(law=law, fitted=self.fit(law, *out), scores=scores, scatter=Scatter({}, {}), learnt=None)
        if not enough:
            return fold
        spread = scatter.gather(training, residuals[law], [self.label(o) for o in training])
        return replace(fold, scatter=spread, learnt=self._learn(law, training, residuals[law], spread, out))

    def _inner(self, law: str, training: Sequence[Observation], out: tuple[str, ...]) -> list[float]:
        """ln(measured / estimated) of each training row, by the fit without its label."""
        made = []
        for o in training:
            fitted = self.fit(law, *out, self.label(o))
            ground, stack = fitted.ground(o.levels).basis, fitted.stack(o.framework)
            made.append(o.log_ratio - experience.correct(o.shares, ground, stack).value)
        return made

    def _learn(
        self,
        law: str,
        training: Sequence[Observation],
        residuals: Sequence[float],
        spread: Scatter,
        out: tuple[str, ...],
    ) -> Learnt | None:
        told, errors = [], []
        for o in training:
            label = self.label(o)
            inner = Fold(law=law, fitted=self.fit(law, *out, label), scores={}, scatter=spread, learnt=None)
            _, found, features = inner.says(o, label)
            told.append(features)
            errors.append(found.error)
        return intervals.learn(np.array(told), np.array(errors), np.abs(residuals), [o.cell for o in training])


def _simplest(scores: Mapping[str, float]) -> str:
    """The first law (the simplest stands first) whose score is as good as the best, but for :data:`MARGIN`."""
    best = min(scores.values())
    return next(law for law, score in scores.items() if score <= best * (1.0 + MARGIN))
