"""The laws that a calibration may follow, simplest first, and what each fitted one says of a place. Pure functions.

``factor``: one median per GPU and nothing else. ``pooled``: one θ a place, partially pooled over all runs, vendor,
architecture, GPU and framework. ``terms``: the same for every term of :data:`projector.experience.TERMS`. Which of them
is used is decided by rows that are not judged by it (:mod:`harness.calibrate.folds`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from harness.calibrate import calibration, hierarchy
from harness.calibrate.calibration import Observation
from projector.experience import TERMS, Basis

__all__ = ["LAWS", "NOTHING", "Fitted", "Ground", "Rows"]

#: The terms that each law fits.
LAWS: Mapping[str, tuple[int, ...]] = {"factor": (), "pooled": (0,), "terms": tuple(range(len(TERMS)))}
#: A place of which nothing is known.
NOTHING = Basis(values=(0.0,) * len(TERMS), errors=(0.0,) * len(TERMS), scatter=0.0, rows=0, cells=0)
# Standard deviation between kinds of runs that a median of one kind stands for: what partial pooling finds.
_LONELY = 0.15

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a place teaches. ``key``: the finest of its levels with runs; ``level``: its place among them, −1: none."""

    basis: Basis
    key: str
    level: int


class Fitted(Protocol):
    """A law fitted on some of the rows."""

    def ground(self, levels: tuple[str, ...]) -> Ground: ...

    def stack(self, framework: str) -> Basis: ...


@dataclass(frozen=True)
class Rows:
    """Observations with a measurement, and what every fit on some of them needs: made once, sliced by each."""

    observations: tuple[Observation, ...]

    @cached_property
    def members(self) -> Mapping[str, NDArray[np.int_]]:
        """Places of the rows of every key and of every framework (under ``stack:``), in order."""
        found: dict[str, list[int]] = defaultdict(list)
        for i, o in enumerate(self.observations):
            for key in (*dict.fromkeys(o.levels), f"stack:{o.framework}"):
                found[key].append(i)
        return {key: np.array(places) for key, places in found.items()}

    @cached_property
    def laws(self) -> tuple[str, ...]:
        """The laws that these rows tell apart: where no projection names its parts, terms are the step alone."""
        parts = any(any(o.shares[1:]) for o in self.observations)
        return tuple(law for law, terms in LAWS.items() if parts or len(terms) < 2)

    @cached_property
    def designs(self) -> Mapping[str, hierarchy.Design]:
        return {law: hierarchy.design(self.observations, terms) for law in self.laws if (terms := LAWS[law])}

    def fit(self, law: str, chosen: Mask) -> Fitted:
        """One of :data:`LAWS` on the chosen rows; without any, projections are left as they are."""
        if not LAWS[law] or not chosen.any():
            return _Medians(self, chosen)
        return _Pooled(self, chosen, hierarchy.fit(self.designs[law], chosen))

    def at(self, key: str, chosen: Mask) -> list[Observation]:
        """The chosen rows of a key."""
        places = self.members.get(key)
        return [] if places is None else [self.observations[i] for i in places[chosen[places]]]

    def finest(self, levels: Sequence[str], chosen: Mask) -> tuple[int, str, list[Observation]]:
        """The first of ``levels`` with chosen rows: its place, its key and its rows; −1 where none has."""
        for level, key in enumerate(levels):
            if seen := self.at(key, chosen):
                return level, key, seen
        return -1, "", []


@dataclass(frozen=True, slots=True)
class _Medians:
    """``grounds``: asked for before; it saves work and changes no answer."""

    rows: Rows
    chosen: Mask
    grounds: dict[tuple[str, ...], Ground] = field(default_factory=dict)

    def ground(self, levels: tuple[str, ...]) -> Ground:
        if levels not in self.grounds:
            self.grounds[levels] = self._ground(levels)
        return self.grounds[levels]

    def _ground(self, levels: tuple[str, ...]) -> Ground:
        level, key, seen = self.rows.finest(levels, self.chosen)
        if not seen:
            return Ground(basis=NOTHING, key="", level=-1)
        found = calibration.factor_of(seen, key)
        own = max(1.4826 * found.spread, _LONELY) / math.sqrt(found.cells)
        error = math.hypot(
            own, math.sqrt(level) * hierarchy.STEP_SD * hierarchy.FINER
        )  # what the finer levels would add
        rest = NOTHING.values[1:]
        values, errors = (math.log(found.value), *rest), (error, *rest)
        basis = Basis(values=values, errors=errors, scatter=0.0, rows=found.rows, cells=found.cells)
        return Ground(basis=basis, key=key, level=level)

    def stack(self, framework: str) -> Basis:  # noqa: ARG002 - a median per GPU knows no framework
        return NOTHING


@dataclass(frozen=True, slots=True)
class _Pooled:
    """``grounds``, ``stacks``: asked for before; they save work and change no answer."""

    rows: Rows
    chosen: Mask
    posterior: hierarchy.Posterior
    grounds: dict[tuple[str, ...], Ground] = field(default_factory=dict)
    stacks: dict[str, Basis] = field(default_factory=dict)

    def ground(self, levels: tuple[str, ...]) -> Ground:
        if levels not in self.grounds:
            level, key, seen = self.rows.finest(levels, self.chosen)
            basis = _basis(self.posterior.of_levels(levels), seen)
            self.grounds[levels] = Ground(basis=basis, key=key, level=level)
        return self.grounds[levels]

    def stack(self, framework: str) -> Basis:
        if framework not in self.stacks:
            seen = self.rows.at(f"stack:{framework}", self.chosen)
            self.stacks[framework] = _basis(self.posterior.of_stack(framework), seen)
        return self.stacks[framework]


def _basis(theta: tuple[tuple[float, ...], tuple[float, ...]], seen: Sequence[Observation]) -> Basis:
    values, errors = theta
    return Basis(values=values, errors=errors, scatter=0.0, rows=len(seen), cells=len({o.cell for o in seen}))
