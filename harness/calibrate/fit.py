"""Fits the variances of :mod:`projector.posterior` to rows that nobody tuned on. Pure.

The logarithms of the standard deviations of all terms, and of how far the stacks of each framework lie from each other,
maximise the marginal likelihood of first looks, with a weak prior that keeps a term without evidence at 0.1 ± a factor
of e, and a framework without evidence near all others. Rows have tails of Student's t, by the weights of its EM
algorithm (Lange, Little, Taylor, JASA 84, 1989). A source counts at most a few rows, so that one with a hundred does not
decide for all. A term leaves when the likelihood of left-out sources does not fall without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from harness.calibrate.conditioned import Block, blocks_of, effects_after, shared_effects, taught_by, thinned
from harness.contracts.estimates import Observation
from projector.dataclass import dataclass
from projector.effects import Facts, Prior
from projector.posterior import FREEDOM, REPEAT

Array = NDArray[np.float64]
Indices = NDArray[np.int_]

_PRIOR_LOG_SD, _PRIOR_WIDTH = math.log(0.1), 1.0
#: Prior standard deviation, over frameworks, of ln of how far the stacks of a framework lie from each other.
_SCATTER = 0.4
#: A framework without a known run counts as one of the widest: all but one in twenty are narrower.
_WIDEST = 1.645
_BOUNDS, _NOISE_BOUNDS, _SCATTER_BOUNDS = (-6.0, 1.0), (-4.0, 0.0), (-2.0, 2.0)
_ROUNDS, _STEPS = 4, 25
#: Where the search begins: deviations of effects that stacks share and of those that differ by source. The likelihood has
#: several maxima (rows that lie far off can be noise, or say that a part differs), so the better one counts. Shared effects
#: begin narrow: most frameworks have one source or two, and where the search may give those sources' effects to the
#: framework, others of it are expected to be like them.
_STARTS = ((0.03, 1.0), (0.1, 1.0))
#: The first deviation of a term that the start does not have.
_NEW = 0.1


@dataclass(frozen=True, kw_only=True, eq=False)
class _Likelihood:
    """−ln of the marginal likelihood of rows times the prior, and its gradient, over ``x``: ln of the deviations of
    terms, that of the noise the last, then of the scatter of each framework.

    ``blocks``: the rows, where all deviations and scatters are 1. ``shared`` (m,): the term of each shared effect; by
    block, ``own`` (k,): the term of each effect of its own, ``at`` (n,): the framework of each row.
    """

    blocks: Sequence[Block]
    shared: Indices
    own: Sequence[Indices]
    at: Sequence[Indices]
    terms: int

    def __call__(self, x: Array) -> tuple[float, Array]:
        logs, scatter = np.split(x, [self.terms])
        deviation, wide = np.exp(logs), np.exp(scatter)
        blocks = [
            replace(
                block,
                shared=block.shared * deviation[self.shared[block.columns]],
                own=block.own * deviation[own] * wide[at][:, None],
                noise=(deviation[-1] * wide[at]) ** 2,
            )
            for block, own, at in zip(self.blocks, self.own, self.at, strict=True)
        ]
        mean, covariance = effects_after(taught_by(blocks, len(self.shared)))
        prior, near = (logs - _PRIOR_LOG_SD) / _PRIOR_WIDTH, scatter / _SCATTER
        value = 0.5 * (prior @ prior + near @ near - np.linalg.slogdet(covariance)[1])
        by_term, by_framework = prior / _PRIOR_WIDTH, near / _SCATTER
        np.add.at(by_term, self.shared, 1.0 - np.diag(covariance) - mean**2)
        for block, own, at in zip(blocks, self.own, self.at, strict=True):
            inverse, solved = block.solved(mean, covariance)
            value += 0.5 * (block.y @ solved - np.linalg.slogdet(block.inverse)[1])
            slope = inverse - np.outer(solved, solved)
            by_effect, by_noise = (slope @ block.own) * block.own, np.diag(slope) * block.noise * block.weight
            np.add.at(by_term, own, by_effect.sum(axis=0))
            by_term[-1] += by_noise.sum()
            np.add.at(by_framework, at, by_effect.sum(axis=1) + by_noise)
        return float(value), np.concatenate([by_term, by_framework])


def prior(rows: Sequence[Observation], start: Prior | None = None) -> Prior:
    """Returns the prior by marginal likelihood of ``log_ratio``; ``start``: where the search begins, else
    :data:`_STARTS`."""
    rows = thinned(rows)
    facts, y = [row.facts for row in rows], np.array([row.log_ratio for row in rows])
    terms = list(dict.fromkeys(term for run in facts for term, _ in run.effects))
    starts = (
        [start]
        if start
        else [
            Prior(deviations={name: by_source if name.endswith("source") else shared for name in terms})
            for shared, by_source in _STARTS
        ]
    )
    return min((_maximise(facts, y, terms, begin) for begin in starts), key=lambda result: result[0])[1]


def _maximise(facts: Sequence[Facts], y: Array, terms: Sequence[str], start: Prior) -> tuple[float, Prior]:
    """Returns −ln of the likelihood of rows and noise weights at the maximum near ``start``, and the prior there."""
    from scipy.optimize import minimize  # late: only a calibration needs it

    terms, frameworks = sorted(terms, key="run".__eq__), sorted({run.framework for run in facts})
    weight = np.ones(len(facts))
    x = np.log(
        [start.deviations.get(name, _NEW) for name in terms] + [start.scatter.get(name, 1.0) for name in frameworks]
    )
    bounds = [_BOUNDS] * (len(terms) - 1) + [_NOISE_BOUNDS] + [_SCATTER_BOUNDS] * len(frameworks)
    for _ in range(_ROUNDS):
        target = _likelihood(facts, y, terms, frameworks, weight)
        at_end = minimize(target, x, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS})
        x, values = at_end.x, np.exp(at_end.x).tolist()
        scatter = {**dict(zip(frameworks, values[len(terms) :], strict=True)), "": math.exp(_WIDEST * _SCATTER)}
        fitted = Prior(deviations=dict(zip(terms, values[: len(terms)], strict=True)), scatter=scatter)
        of_weights = FREEDOM / 2.0 * float((np.log(weight) + 1.0 / weight).sum())
        blocks = blocks_of(facts, y, fitted, weight, rounds=1)
        weight = np.concatenate([block.weight for block in blocks.values()])
    return float(at_end.fun) + of_weights, fitted


def _likelihood(
    facts: Sequence[Facts], y: Array, terms: Sequence[str], frameworks: Sequence[str], weight: Array
) -> _Likelihood:
    number, unit = {term: i for i, term in enumerate(terms)}, Prior(deviations=dict.fromkeys(terms, 1.0))
    blocks = blocks_of(facts, y, unit, weight, rounds=0)
    return _Likelihood(
        blocks=list(blocks.values()),
        shared=np.array([number[term] for term, _ in shared_effects(facts, unit)], dtype=int),
        own=[np.array([number[term] for term, _ in block.effects], dtype=int) for block in blocks.values()],
        at=[np.array([frameworks.index(f.framework) for f in facts if f.source == name]) for name in blocks],
        terms=len(terms),
    )


def repeat_share(known: Prior) -> Prior:
    """Returns the prior of a posterior, in which the noise of a repetition is separate from that of a configuration."""
    run = math.sqrt(max(known.deviations["run"] ** 2 - REPEAT**2, 1e-6))
    return replace(known, deviations={**known.deviations, "run": run})
