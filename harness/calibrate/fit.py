"""The variances of :mod:`projector.posterior`, from rows that nobody tuned on, and its posterior from all sound rows. Pure.

The logarithms of the standard deviations of all terms maximise the marginal likelihood of first looks, with a weak
prior that keeps a term without evidence at 0.1 ± a factor of e. Rows have tails of Student's t, by the weights of its
EM algorithm (Lange, Little, Taylor, JASA 84, 1989). A source counts at most :data:`MOST` rows, so that one with a
hundred does not say what all are like. A term leaves when the likelihood of left-out sources does not fall without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from harness.contracts.estimates import Observation
from projector.dataclass import dataclass
from projector.posterior import FREEDOM, REPEAT, Effect, Facts

Array = NDArray[np.float64]

#: Rows of one source that count towards the variances, spread over its cells.
MOST = 25
_PRIOR_LOG_SD, _PRIOR_WIDTH = math.log(0.1), 1.0
_BOUNDS, _NOISE_BOUNDS = (-6.0, 1.0), (-4.0, 0.0)
_ROUNDS, _STEPS = 4, 25
#: Where the search begins. What differs by source begins wide: the likelihood has a second, lower maximum where these
#: terms are narrow and rows that lie far off pass for noise.
_NARROW, _WIDE = 0.1, 1.0


@dataclass(frozen=True, kw_only=True)
class Design:
    """Rows × effects: ``z`` of what each effect is multiplied with, ``term`` the number of each effect's term in
    ``terms``."""

    z: Array
    effects: tuple[Effect, ...]
    term: NDArray[np.int_]
    terms: tuple[str, ...]

    @classmethod
    def of(cls, facts: Sequence[Facts]) -> Design:
        place: dict[Effect, int] = {}
        cells: list[tuple[int, int, float]] = []
        for row, each in enumerate(facts):
            cells += [(row, place.setdefault(effect, len(place)), x) for effect, x in each.effects.items()]
        z = np.zeros((len(facts), len(place)))
        for row, column, x in cells:
            z[row, column] = x
        terms = tuple(dict.fromkeys(term for term, _ in place))
        number = {term: i for i, term in enumerate(terms)}
        return cls(
            z=z, effects=tuple(place), term=np.array([number[term] for term, _ in place], dtype=int), terms=terms
        )

    def prior(self, deviations: Mapping[str, float]) -> Array:
        """The prior variance of every effect."""
        return np.array([deviations.get(term, 0.0) ** 2 for term in self.terms])[self.term]

    def covariance(self, deviations: Mapping[str, float]) -> Array:
        """Prior covariance of all rows."""
        return np.asarray((self.z * self.prior(deviations)) @ self.z.T, dtype=np.float64)


def thinned(rows: Sequence[Observation], most: int = MOST) -> list[Observation]:
    """At most ``most`` rows of each source, spread evenly over its cells and ids."""
    by_source: dict[str, list[Observation]] = {}
    for row in sorted(rows, key=lambda o: (o.cell, o.run_id)):
        by_source.setdefault(row.source, []).append(row)
    chosen: list[Observation] = []
    for those in by_source.values():
        at = np.unique(np.linspace(0, len(those) - 1, min(most, len(those))).round().astype(int))
        chosen += [those[i] for i in at.tolist()]
    return chosen


def deviations(rows: Sequence[Observation], start: Mapping[str, float] | None = None) -> dict[str, float]:
    """The standard deviation of every term by marginal likelihood of ``log_ratio``; ``start``: from where it is sought."""
    from scipy.optimize import minimize  # late: only a calibration needs it

    rows = thinned(rows)
    design = Design.of([row.facts for row in rows])
    y = np.array([row.log_ratio for row in rows])
    shared = [name for name in design.terms if name != "run"]
    parts = np.array([((z := design.z[:, design.term == design.terms.index(name)]) @ z.T).ravel() for name in shared])
    n, weight = len(rows), np.ones(len(rows))
    first = {name: _WIDE if name.endswith("source") else _NARROW for name in (*shared, "run")} | dict(start or {})
    theta = np.array([math.log(first[name]) for name in (*shared, "run")])

    def objective(logs: Array) -> tuple[float, Array]:
        variance = np.exp(2.0 * logs)
        covariance = (variance[:-1] @ parts).reshape(n, n)
        covariance[np.diag_indices(n)] += variance[-1] * weight
        inverse_root = np.linalg.inv(np.linalg.cholesky(covariance))
        inverse = inverse_root.T @ inverse_root
        solved = inverse @ y
        slope = inverse - np.outer(solved, solved)
        prior = (logs - _PRIOR_LOG_SD) / _PRIOR_WIDTH
        value = 0.5 * (y @ solved) - np.log(np.diag(inverse_root)).sum() + 0.5 * (prior @ prior)
        own = variance[-1] * float(np.diag(slope) @ weight)
        return float(value), np.append(variance[:-1] * (parts @ slope.ravel()), own) + prior / _PRIOR_WIDTH

    bounds = [_BOUNDS] * len(shared) + [_NOISE_BOUNDS]
    for _ in range(_ROUNDS):
        theta = minimize(objective, theta, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS}).x
        found = dict(zip((*shared, "run"), np.exp(theta).tolist(), strict=True))
        weight = noise_weights(design, found, y, weight, rounds=1)
    return found


def noise_weights(
    design: Design, known: Mapping[str, float], y: Array, weight: Array | None = None, rounds: int = 4
) -> Array:
    """By how much the noise of each row is larger than usual: what Student's t says of rows that lie far off."""
    shared = design.covariance({term: sd for term, sd in known.items() if term != "run"})
    noise = known["run"] ** 2
    weight = np.ones(len(y)) if weight is None else weight
    for _ in range(rounds):
        own = noise * weight
        inverse = np.linalg.inv(shared + np.diag(own))
        left, spread = own * (inverse @ y), own - own**2 * np.diag(inverse)
        weight = (FREEDOM + (left**2 + spread) / noise) / (FREEDOM + 1.0)
    return np.asarray(weight, dtype=np.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Conditioned:
    """Rows that teach, ready to be left out by any label: ``inverse`` of their covariance, ``solved`` = inverse · y."""

    rows: tuple[Observation, ...]
    deviations: Mapping[str, float]
    design: Design
    weight: Array
    inverse: Array
    solved: Array

    @classmethod
    def of(cls, rows: Sequence[Observation], known: Mapping[str, float]) -> Conditioned:
        """The rows that teach among ``rows``: those that were measured, at most :data:`MOST` of a source."""
        rows = tuple(thinned([row for row in rows if math.isfinite(row.log_ratio)]))
        design, y = Design.of([row.facts for row in rows]), np.array([row.log_ratio for row in rows])
        weight = noise_weights(design, known, y)
        own = known["run"] ** 2 * weight
        shared = design.covariance({term: sd for term, sd in known.items() if term != "run"})
        inverse = np.asarray(np.linalg.inv(shared + np.diag(own)), dtype=np.float64)
        return cls(
            rows=rows, deviations=known, design=design, weight=weight, inverse=inverse, solved=np.asarray(inverse @ y)
        )

    def without(self, out: NDArray[np.bool_], asked: Sequence[Facts]) -> tuple[Array, Array]:
        """Mean (n,) and covariance (n, n) of ln(measured / projected) of ``asked``, where the rows ``out`` are not known.

        The inverse of a part follows from that of the whole (Rasmussen, Williams, 2006, A.12): nothing is inverted
        but the block of what is left out.
        """
        theirs = Design.of(asked)
        known = {term: sd for term, sd in self.deviations.items() if term != "run"}
        own, shared = theirs.covariance(known), [effect in self._place for effect in theirs.effects]
        columns = [self._place[effect] for effect in theirs.effects if effect in self._place]
        cross = (theirs.z * theirs.prior(known))[:, shared] @ self.design.z[:, columns].T
        keep, drop = np.flatnonzero(~out), np.flatnonzero(out)
        inverse, solved = self.inverse[np.ix_(keep, keep)], self.solved[keep]
        if len(drop):
            side = self.inverse[np.ix_(keep, drop)]
            block = np.linalg.solve(self.inverse[np.ix_(drop, drop)], np.column_stack([self.solved[drop], side.T]))
            solved = solved - side @ block[:, 0]
            cross_side = cross[:, keep] @ side
            reduced = cross[:, keep] @ inverse - cross_side @ block[:, 1:]
        else:
            reduced = cross[:, keep] @ inverse
        covariance = own - reduced @ cross[:, keep].T
        return cross[:, keep] @ solved, covariance + self.deviations["run"] ** 2 * np.eye(len(asked))

    @cached_property
    def _place(self) -> dict[Effect, int]:
        return {effect: column for column, effect in enumerate(self.design.effects)}

    def effects(self, without_sources: bool = True) -> tuple[tuple[Effect, ...], Array, Array]:
        """The posterior of effects: names, mean and covariance; without those of one source alone, which a new one
        never has."""
        prior = self.design.prior(self.deviations)
        keep = np.array(
            [
                prior[i] > 0
                and not (without_sources and (term.endswith("source") or term.startswith("assumed") or term == "run"))
                for i, (term, _) in enumerate(self.design.effects)
            ]
        )
        z, prior = self.design.z[:, keep], prior[keep]
        gain = prior[:, None] * z.T
        mean = gain @ self.solved
        covariance = np.diag(prior) - gain @ self.inverse @ gain.T
        return tuple(e for e, kept in zip(self.design.effects, keep, strict=True) if kept), mean, covariance


def repeat_share(known: Mapping[str, float]) -> dict[str, float]:
    """The deviations of a posterior: what a configuration has of its own is apart from what a repetition adds."""
    return {**known, "run": math.sqrt(max(known["run"] ** 2 - REPEAT**2, 1e-6))}
