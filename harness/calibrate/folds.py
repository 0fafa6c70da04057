"""Held-out estimates under nested selection: what judges a law has chosen neither it nor its parameters.

For every label (a model family; in transfer tests a framework or a GPU) the rows of all other labels are the training
fold. Inside it every law of :mod:`harness.calibrate.laws` is scored by leaving out one label at a time, by the mean
|ln error| with each (family × GPU × framework) cell weighing the same; the simplest within :data:`MARGIN` of the best
is fitted on the whole training fold and serves the label. Its interval comes from the same inner residuals, so that
nothing of the label has touched it: neither the choice, nor the parameters, nor the width. Pure and deterministic.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from harness.calibrate import intervals, scatter
from harness.calibrate.calibration import Observation
from harness.calibrate.intervals import Learnt
from harness.calibrate.laws import Fitted, Ground, Rows
from harness.calibrate.scatter import Scatter
from harness.contracts.estimates import Estimate
from projector import experience
from projector.experience import Basis

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

    def ground(self, levels: tuple[str, ...]) -> Ground:
        """What a place teaches, its scatter included."""
        return _with_scatter(self.fitted.ground(levels), self.scatter.of_levels(levels))

    def stack(self, framework: str) -> Basis:
        """What a framework teaches, its scatter included."""
        return replace(self.fitted.stack(framework), scatter=self.scatter.of_stack(framework))

    def estimate(self, o: Observation) -> Estimate:
        """Of a row that the fold has not seen."""
        ground, stack = self.ground(o.levels), self.stack(o.framework)
        found = experience.correct(o.shares, ground.basis, stack)
        half = math.inf
        if self.learnt is not None:
            told = experience.features(o.assumed, o.shares, ground.basis, stack)
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
        scores = {one: _macro(training, found) for one, found in residuals.items()}
        law = _simplest(scores) if scores else law or DEFAULT
        labels = [self.label(o) for o in training]
        spread = scatter.gather(training, residuals[law], labels) if enough else Scatter({}, {})
        return Fold(
            law=law,
            fitted=self.fit(law, *out),
            scores=scores,
            scatter=spread,
            learnt=self._learn(law, training, residuals[law], spread, out) if enough else None,
        )

    def _inner(self, law: str, training: Sequence[Observation], out: tuple[str, ...]) -> list[float]:
        """ln(measured / estimated) of each training row, by the fit without its label."""
        made = []
        for o in training:
            fitted = self.fit(law, *out, self.label(o))
            made.append(
                o.log_ratio
                - experience.correct(o.shares, fitted.ground(o.levels).basis, fitted.stack(o.framework)).value
            )
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
            fitted = self.fit(law, *out, label)
            ground = _with_scatter(fitted.ground(o.levels), spread.of_levels(o.levels, label))
            stack = replace(fitted.stack(o.framework), scatter=spread.of_stack(o.framework, label))
            told.append(experience.features(o.assumed, o.shares, ground.basis, stack))
            errors.append(experience.correct(o.shares, ground.basis, stack).error)
        return intervals.learn(np.array(told), np.array(errors), np.abs(residuals), [o.cell for o in training])


def _simplest(scores: Mapping[str, float]) -> str:
    """The first law (the simplest stands first) whose score is as good as the best, but for :data:`MARGIN`."""
    best = min(scores.values())
    return next(law for law, score in scores.items() if score <= best * (1.0 + MARGIN))


def _with_scatter(ground: Ground, scatter: float) -> Ground:
    return replace(ground, basis=replace(ground.basis, scatter=scatter))


def _macro(rows: Sequence[Observation], residuals: Sequence[float]) -> float:
    cells: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for o, residual in zip(rows, residuals, strict=True):
        cells[o.cell].append(abs(residual))
    return math.fsum(math.fsum(v) / len(v) for v in cells.values()) / len(cells)
