"""The variances of :mod:`projector.posterior`, from rows that nobody tuned on, and its posterior from all sound rows. Pure.

The logarithms of the standard deviations of all terms, and of how far the stacks of each framework lie from each other,
maximise the marginal likelihood of first looks, with a weak prior that keeps a term without evidence at 0.1 ± a factor
of e, and a framework without evidence near all others. Rows have tails of Student's t, by the weights of its
EM algorithm (Lange, Little, Taylor, JASA 84, 1989). A source counts at most :data:`MOST` rows, so that one with a
hundred does not say what all are like. A term leaves when the likelihood of left-out sources does not fall without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from harness.contracts.estimates import Observation
from projector.dataclass import dataclass
from projector.effects import Effect, Facts, Prior, of_stack
from projector.posterior import FREEDOM, REPEAT

Array = NDArray[np.float64]

#: Rows of one source that count towards the variances, spread over its cells.
MOST = 25
_PRIOR_LOG_SD, _PRIOR_WIDTH = math.log(0.1), 1.0
#: Deviation of ln of how far the stacks of a framework lie from each other, over frameworks.
_SCATTER = 0.4
#: A framework that no run is known of is taken for one of the widest: all but one in twenty are narrower.
_WIDEST = 1.645
_BOUNDS, _NOISE_BOUNDS, _SCATTER_BOUNDS = (-6.0, 1.0), (-4.0, 0.0), (-2.0, 2.0)
_ROUNDS, _STEPS = 4, 25
#: Where the search begins: deviations of what stacks share and of what differs by source. The likelihood has several
#: maxima (rows that lie far off can be noise, or say that a part differs), so the better one counts. What stacks share
#: begins narrow: most frameworks have one source or two, and where the search may give those sources' effects to the
#: framework, others of it are expected to be like them.
_STARTS = ((0.03, 1.0), (0.1, 1.0))
#: Where a term begins that the start does not know.
_NEW = 0.1


@dataclass(frozen=True, kw_only=True)
class Design:
    """Rows × effects: ``z`` of what each effect is multiplied with, ``term`` the number of each effect's term in
    ``terms``."""

    z: Array
    effects: tuple[Effect, ...]
    term: NDArray[np.int_]
    terms: tuple[str, ...]
    prior: Prior

    @classmethod
    def of(cls, facts: Sequence[Facts], prior: Prior) -> Design:
        effects = tuple(dict.fromkeys(effect for each in facts for effect in each.effects))
        terms = tuple(dict.fromkeys(term for term, _ in effects))
        number = {term: i for i, term in enumerate(terms)}
        return cls(
            z=prior.design(facts, effects),
            effects=effects,
            term=np.array([number[term] for term, _ in effects], dtype=int),
            terms=terms,
            prior=prior,
        )

    def part(self, term: str) -> Array:
        """Covariance of all rows by one term whose deviation is 1."""
        z = self.z[:, self.term == self.terms.index(term)]
        return np.asarray(z @ z.T, dtype=np.float64)

    @cached_property
    def variances(self) -> Array:
        """The prior variance of every effect but the noise of runs, which is :attr:`noise`."""
        return np.where([term == "run" for term, _ in self.effects], 0.0, self.prior.variances(self.effects))

    @property
    def shared(self) -> Array:
        """Prior covariance of all rows without the noise of each."""
        return np.asarray((self.z * self.variances) @ self.z.T, dtype=np.float64)

    @property
    def noise(self) -> Array:
        """Variance of the noise of each row."""
        wide = self.z[:, self.term == self.terms.index("run")]
        return np.asarray(self.prior.deviations["run"] ** 2 * (wide**2).sum(axis=1), dtype=np.float64)


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


@dataclass(frozen=True, kw_only=True, eq=False)
class _Likelihood:
    """−ln of the marginal likelihood of ``y`` times the prior, and its gradient, over ``x``: ln of the deviations of
    ``terms`` and of the noise, then of the scatter of each framework.

    ``plain``, ``own``: covariances of rows by one term each, of terms that stacks share and that they do not. ``at``: the
    framework of each row. ``weight``: by how much the noise of a row is larger than usual.
    """

    y: Array
    plain: Array
    own: Array
    at: NDArray[np.int_]
    weight: Array

    def __call__(self, x: Array) -> tuple[float, Array]:
        n, shared, of_stacks = len(self.y), len(self.plain), len(self.own)
        logs, scatter = np.split(x, [shared + of_stacks + 1])
        variance, wide = np.exp(2.0 * logs), np.exp(scatter)[self.at]
        both = np.outer(wide, wide)
        apart = (variance[shared:-1] @ self.own).reshape(n, n) * both
        noise = variance[-1] * self.weight * wide**2
        covariance = (variance[:shared] @ self.plain).reshape(n, n) + apart + np.diag(noise)
        inverse_root = np.linalg.inv(np.linalg.cholesky(covariance))
        inverse = inverse_root.T @ inverse_root
        solved = inverse @ self.y
        slope = inverse - np.outer(solved, solved)
        prior, near = (logs - _PRIOR_LOG_SD) / _PRIOR_WIDTH, scatter / _SCATTER
        value = 0.5 * (self.y @ solved + prior @ prior + near @ near) - np.log(np.diag(inverse_root)).sum()
        by_noise = np.diag(slope) * noise
        by_term = np.concatenate([self.plain @ slope.ravel(), self.own @ (slope * both).ravel()])
        by_row = (slope * apart).sum(axis=1) + by_noise
        gradient = [
            np.append(variance[:-1] * by_term, by_noise.sum()) + prior / _PRIOR_WIDTH,
            np.bincount(self.at, by_row, len(scatter)) + near / _SCATTER,
        ]
        return float(value), np.concatenate(gradient)


def prior(rows: Sequence[Observation], start: Prior | None = None) -> Prior:
    """The prior by marginal likelihood of ``log_ratio``; ``start``: from where it is sought, else from :data:`_STARTS`."""
    rows = thinned(rows)
    facts, y = [row.facts for row in rows], np.array([row.log_ratio for row in rows])
    terms = Design.of(facts, Prior(deviations={})).terms
    starts = [start] if start else [_begun(terms, *each) for each in _STARTS]
    return min((_sought(facts, y, each) for each in starts), key=lambda found: found[0])[1]


def _begun(terms: Sequence[str], shared: float, by_source: float) -> Prior:
    return Prior(deviations={name: by_source if name.endswith("source") else shared for name in terms})


def _sought(facts: Sequence[Facts], y: Array, start: Prior) -> tuple[float, Prior]:
    """The maximum near ``start``, with −ln of the likelihood of rows and of the weights of their noise there."""
    from scipy.optimize import minimize  # late: only a calibration needs it

    design = Design.of(facts, Prior(deviations={}))
    shared = [name for name in design.terms if not of_stack(name)]
    own = [name for name in design.terms if of_stack(name) and name != "run"]
    terms, frameworks = (*shared, *own, "run"), sorted({each.framework for each in facts})
    plain, apart = (np.array([design.part(name).ravel() for name in names]) for names in (shared, own))
    at, weight = np.array([frameworks.index(each.framework) for each in facts]), np.ones(len(facts))
    x = np.log(
        [start.deviations.get(name, _NEW) for name in terms] + [start.scatter.get(name, 1.0) for name in frameworks]
    )
    bounds = [_BOUNDS] * (len(terms) - 1) + [_NOISE_BOUNDS] + [_SCATTER_BOUNDS] * len(frameworks)
    for _ in range(_ROUNDS):
        target = _Likelihood(y=y, plain=plain, own=apart, at=at, weight=weight)
        at_end = minimize(target, x, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS})
        x, values = at_end.x, np.exp(at_end.x).tolist()
        scatter = {**dict(zip(frameworks, values[len(terms) :], strict=True)), "": math.exp(_WIDEST * _SCATTER)}
        found = Prior(deviations=dict(zip(terms, values[: len(terms)], strict=True)), scatter=scatter)
        of_weights = FREEDOM / 2.0 * float((np.log(weight) + 1.0 / weight).sum())
        weight = noise_weights(Design.of(facts, found), y, weight, rounds=1)
    return float(at_end.fun) + of_weights, found


def noise_weights(design: Design, y: Array, weight: Array | None = None, rounds: int = 4) -> Array:
    """By how much the noise of each row is larger than usual: what Student's t says of rows that lie far off."""
    shared, noise = design.shared, design.noise
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
    design: Design
    weight: Array
    inverse: Array
    solved: Array

    @classmethod
    def of(cls, rows: Sequence[Observation], known: Prior) -> Conditioned:
        """The rows that teach among ``rows``: those that were measured, at most :data:`MOST` of a source."""
        rows = tuple(thinned([row for row in rows if math.isfinite(row.log_ratio)]))
        design, y = Design.of([row.facts for row in rows], known), np.array([row.log_ratio for row in rows])
        weight = noise_weights(design, y)
        inverse = np.asarray(np.linalg.inv(design.shared + np.diag(design.noise * weight)), dtype=np.float64)
        return cls(rows=rows, design=design, weight=weight, inverse=inverse, solved=np.asarray(inverse @ y))

    def without(self, out: NDArray[np.bool_], asked: Sequence[Facts]) -> tuple[Array, Array]:
        """Mean (n,) and covariance (n, n) of ln(measured / projected) of ``asked``, where the rows ``out`` are not known.

        The inverse of a part follows from that of the whole (Rasmussen, Williams, 2006, A.12): nothing is inverted
        but the block of what is left out.
        """
        theirs = Design.of(asked, self.design.prior)
        own, shared = theirs.shared, [effect in self._place for effect in theirs.effects]
        columns = [self._place[effect] for effect in theirs.effects if effect in self._place]
        cross = (theirs.z * theirs.variances)[:, shared] @ self.design.z[:, columns].T
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
        return cross[:, keep] @ solved, covariance + np.diag(theirs.noise)

    def without_itself(self) -> tuple[Array, Array]:
        """Error in ln (n,) of every row that teaches, by all others, and its standard deviation as these have it; what
        was measured of the same configuration counts as the row itself (Rasmussen, Williams, 2006, 5.12)."""
        same: dict[str, list[int]] = {}
        for i, row in enumerate(self.rows):
            same.setdefault(row.facts.fingerprint, []).append(i)
        error, variance = np.zeros(len(self.rows)), np.zeros(len(self.rows))
        for own in same.values():
            block = np.linalg.inv(self.inverse[np.ix_(own, own)])
            error[own], variance[own] = block @ self.solved[own], np.diag(block)
        noise = self.design.noise
        return error, np.sqrt(variance - noise * (self.weight - 1.0))

    @cached_property
    def _place(self) -> dict[Effect, int]:
        return {effect: column for column, effect in enumerate(self.design.effects)}

    def effects(self, without_sources: bool = True) -> tuple[tuple[Effect, ...], Array, Array]:
        """The posterior of effects: names, mean and covariance; without those of one source alone, which a new one
        never has."""
        effects, variance = self.design.effects, self.design.variances
        keep = (variance > 0) & [not (without_sources and of_stack(term)) for term, _ in effects]
        z, variance = self.design.z[:, keep], variance[keep]
        gain = variance[:, None] * z.T
        mean = gain @ self.solved
        covariance = np.diag(variance) - gain @ self.inverse @ gain.T
        return tuple(e for e, kept in zip(effects, keep, strict=True) if kept), mean, covariance


def repeat_share(known: Prior) -> Prior:
    """The prior of a posterior: what a configuration has of its own is apart from what a repetition adds."""
    run = math.sqrt(max(known.deviations["run"] ** 2 - REPEAT**2, 1e-6))
    return replace(known, deviations={**known.deviations, "run": run})
