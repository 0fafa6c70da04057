"""From rows and first looks to the posterior that the projector carries. Pure; held-out figures:
:mod:`harness.calibrate.held`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from harness.calibrate import weights
from harness.calibrate.fit import Conditioned, deviations, repeat_share
from harness.contracts.estimates import Observation
from projector.posterior import LEVEL, Posterior

#: Standard deviations that hold 90 % of a normal distribution.
NORMAL = 1.645


def learn(rows: Sequence[Observation], looks: Sequence[Observation], law: Mapping[str, float]) -> Posterior:
    """The posterior after all sound ``rows``, with variances from ``looks`` (their ``log_ratio`` is the one at the
    first look)."""
    known = deviations(looks)
    conditioned = Conditioned.of(rows, known)
    effects, mean, covariance = conditioned.effects()
    return Posterior(
        deviations=repeat_share(known),
        tail=tail(standardised(conditioned, looks)),
        effects=effects,
        mean=mean,
        covariance=covariance,
        counts=counts(rows),
        law=law,
    )


def standardised(known: Conditioned, asked: Iterable[Observation]) -> list[tuple[str, float]]:
    """(source, residual in standard deviations) of every asked row, each by what rows of other sources say."""
    source = np.array([row.source for row in known.rows], dtype=object)
    by_source: dict[str, list[Observation]] = {}
    for row in asked:
        by_source.setdefault(row.source, []).append(row)
    scores: list[tuple[str, float]] = []
    for name, those in by_source.items():
        mean, covariance = known.without(source == name, [row.facts for row in those])
        spread = np.sqrt(np.diag(covariance))
        left = np.array([row.log_ratio for row in those]) - mean
        scores += [(name, value) for value in (left / spread).tolist()]
    return scores


def tail(scores: Sequence[tuple[str, float]]) -> float:
    """The half width of the 90 % interval in standard deviations: conformal over sources, each weighing the same
    (Dunn, Wasserman, Ramdas, *Distribution-free prediction sets for two-layer hierarchical models*, JASA 118, 2023).
    A normal distribution's where there are too few sources to tell."""
    names = [name for name, _ in scores]
    sources = len(set(names))
    level = LEVEL * (1.0 + 1.0 / sources) if sources else math.inf
    if level > 1.0:
        return NORMAL
    return weights.quantile(np.abs([value for _, value in scores]), weights.by_cell(names), level)


def counts(rows: Iterable[Observation]) -> dict[str, tuple[int, int]]:
    """Rows and sources by GPU × framework, by GPU and by framework."""
    found: dict[str, list[str]] = {}
    for row in rows:
        facts = row.facts
        for key in (f"{facts.gpu} × {facts.framework}", facts.gpu, facts.framework):
            found.setdefault(key, []).append(row.source)
    return {key: (len(sources), len(set(sources))) for key, sources in sorted(found.items())}
