"""Partial pooling in closed form: the error of a unit = what places share + what its source adds + its own, all Gaussian.

A unit is a cell (family × GPU × framework) of one source: the median of its rows' ln(measured / projected). A law names the
places that share an error: none, all runs, the framework, the GPU with its architecture and vendor (:data:`LAWS`). Every
place, source and unit draws from a prior of zero mean and a stated variance, so that twenty units of one source say little
more than one of them, and a place without units says nothing (Laird, Ware, *Random-effects models for longitudinal data*,
Biometrics 38, 1982). How far a unit may count from the middle of them all is bounded: beyond it a run is broken.

With the inverse P of the covariance of all units, those of a source are predicted by all others as y − P_ss⁻¹ (P y)_s: one
inversion holds every source out in turn (Rasmussen, Williams, *Gaussian Processes for Machine Learning*, 2006, 5.4.2, there
for single points). Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from harness.calibrate import weights
from harness.contracts.estimates import Observation
from projector.experience import Basis

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


#: What a law lets places share, simplest first: ``all`` runs, the ``framework``, the ``finer`` levels below all.
LAWS: Mapping[str, frozenset[str]] = {
    "none": frozenset(),
    "one": frozenset({"all"}),
    "stack": frozenset({"all", "framework"}),
    "places": frozenset({"all", "framework", "finer"}),
}
# Prior standard deviations, before any run is seen: a projector whose constants come from data sheets and published
# measurements is off by some 15 % in all, and its GPUs and frameworks differ by half of that.
ALL_SD = 0.15
PLACE_SD = 0.5 * ALL_SD
SOURCE_SD = 0.1
UNIT_SD = 0.12
# How far from the middle of all a unit may count: this, or where all scatter widely, three of their standard deviations.
MOST = math.log(2.0)
DEVIATIONS = 3.0 * 1.4826


@dataclass(frozen=True)
class Units:
    """Measured observations by unit. ``of``: the unit of each; ``first``: one observation of each unit."""

    rows: tuple[Observation, ...]
    of: NDArray[np.int_]
    first: tuple[Observation, ...]

    @classmethod
    def made(cls, rows: Iterable[Observation]) -> Units:
        rows, of = tuple(rows), []
        places: dict[Hashable, int] = {}
        first: list[Observation] = []
        for o in rows:
            key = (o.source, o.cell, o.levels)
            if key not in places:
                places[key] = len(first)
                first.append(o)
            of.append(places[key])
        return cls(rows, np.array(of, dtype=int), tuple(first))

    @cached_property
    def y(self) -> Array:
        """ln(measured / projected) of every unit."""
        logs = np.array([o.log_ratio for o in self.rows])
        return np.array([np.median(logs[self.of == unit]) for unit in range(len(self.first))])

    @cached_property
    def source(self) -> NDArray[np.int_]:
        return codes(o.source for o in self.first)

    @cached_property
    def _shared(self) -> Mapping[str, Array]:
        """Prior covariances (units, units) by what is shared."""
        depth = len(self.first[0].levels) if self.first else 1
        finer = sum((self._same(level) for level in map(_level, range(depth - 1))), np.zeros((len(self.first),) * 2))
        return {
            "all": ALL_SD**2 * self._same(_level(-1)),
            "framework": PLACE_SD**2 * self._same(lambda o: o.framework),
            "finer": PLACE_SD**2 * finer,
            "own": SOURCE_SD**2 * self._same(lambda o: o.source) + UNIT_SD**2 * np.eye(len(self.first)),
        }

    def _same(self, key: Callable[[Observation], Hashable]) -> Array:
        code = codes(map(key, self.first))
        return np.asarray(code[:, None] == code[None, :], dtype=np.float64)

    def fit(self, law: str, chosen: Mask) -> Fitted:
        """A law on the chosen units; what the others measured is not looked at."""
        at = np.flatnonzero(chosen)
        shared = [self._shared[name] for name in sorted(LAWS[law])]
        covariance = sum(shared, self._shared["own"])[np.ix_(at, at)]
        y = self.y[at]
        if len(at):
            weight = weights.by_cell(self.source[at].tolist())
            middle = weights.median(y, weight)
            most = max(MOST, DEVIATIONS * weights.median(np.abs(y - middle), weight))
            y = np.minimum(np.maximum(y, middle - most), middle + most)
        return Fitted(law, tuple(self.first[i] for i in at), y, np.asarray(np.linalg.inv(covariance), dtype=np.float64))


@dataclass(frozen=True, eq=False)
class Fitted:
    """``y``: of the ``units`` that were chosen; ``precision``: the inverse of their prior covariance."""

    law: str
    units: tuple[Observation, ...]
    y: Array
    precision: Array

    @cached_property
    def _solved(self) -> Array:
        return np.asarray(self.precision @ self.y, dtype=np.float64)

    def without_source(self, source: NDArray[np.int_]) -> Array:
        """What every unit is expected to be off by where no unit of its ``source`` (codes of the units) is known."""
        found = np.zeros(len(self.y))
        if LAWS[self.law]:
            for code in np.unique(source):
                at = np.flatnonzero(source == code)
                found[at] = self.y[at] - np.linalg.solve(self.precision[np.ix_(at, at)], self._solved[at])
        return found

    def ground(self, levels: Sequence[str]) -> Basis:
        """What a place (``levels``, finest first; "": not said) teaches; counted are the units of the first that is said."""
        shared, prior = np.zeros(len(self.units)), 0.0
        for i, label in enumerate(levels):
            whole = i == len(levels) - 1
            if ("all" if whole else "finer") in LAWS[self.law]:
                sd = ALL_SD if whole else PLACE_SD
                shared += sd**2 * np.array([o.levels[i] == label for o in self.units], dtype=float)
                prior += sd**2
        return self._basis(shared, prior, self._at(levels))

    def _at(self, levels: Sequence[str]) -> list[Observation]:
        said = next((i for i, label in enumerate(levels) if label), 0)
        return [o for o in self.units if o.levels[said] == levels[said]]

    def stack(self, framework: str) -> Basis:
        """What a framework adds."""
        members = [o for o in self.units if o.framework == framework]
        if "framework" not in LAWS[self.law]:
            return self._basis(np.zeros(len(self.units)), 0.0, members)
        mine = np.array([o.framework == framework for o in self.units], dtype=float)
        return self._basis(PLACE_SD**2 * mine, PLACE_SD**2, members)

    def _basis(self, shared: Array, prior: float, members: Sequence[Observation]) -> Basis:
        left = prior - float(shared @ self.precision @ shared)
        return Basis(
            value=float(shared @ self._solved),
            error=math.sqrt(max(left, 0.0)),
            sources=len({o.source for o in members}),
            cells=len({o.cell for o in members}),
        )


def _level(place: int) -> Callable[[Observation], str]:
    return lambda o: o.levels[place]


def codes(labels: Iterable[Hashable]) -> NDArray[np.int_]:
    """A number for every label, in order of first appearance."""
    found: dict[Hashable, int] = {}
    return np.array([found.setdefault(label, len(found)) for label in labels], dtype=int)
