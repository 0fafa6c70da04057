"""Learns the posterior that the projector carries from rows and first looks. Pure; held-out figures:
:mod:`harness.calibrate.held_out`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from harness.calibrate import weights
from harness.calibrate.conditioned import Conditioned
from harness.calibrate.fit import prior, repeat_share
from harness.contracts.estimates import Observation
from projector.dataclass import dataclass
from projector.io.rows import grouped
from projector.posterior import LEVEL, REPEAT, Posterior, agreement

Array = NDArray[np.float64]
#: Numbers of runs of one's own that are tried, and the draws of each.
OWN, DRAWS = (1, 2, 3, 5), 5
#: Standard deviations that hold 90 % of a normal distribution.
NORMAL = 1.645


def learn(rows: Sequence[Observation], looks: Sequence[Observation], law: Mapping[str, float]) -> Posterior:
    """Returns the posterior after all sound ``rows``, with variances from ``looks``, whose ``log_ratio`` is the first
    one."""
    known = prior(looks)
    conditioned = Conditioned.of(rows, known)
    effects, mean, covariance = conditioned.effects()
    return Posterior(
        prior=repeat_share(known),
        tail=tails(left_out(conditioned, looks)),
        effects=effects,
        mean=mean,
        covariance=covariance,
        counts=counts(rows),
        law=law,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutRow:
    """One row left out with all of its source but ``own`` runs: ``expected`` ln(measured / projected), and its standard
    deviation by the other rows, ``before`` the own runs are known. ``nearest``: the own runs are the most like the row,
    else drawn at random. ``half``: half width of its 90 % interval in ln."""

    row: Observation
    expected: float
    deviation: float
    before: float
    own: int = 0
    nearest: bool = False
    half: float = math.inf

    @property
    def error(self) -> float:
        """Returns ln(measured / expected)."""
        return self.row.log_ratio - self.expected

    @property
    def throughput_error(self) -> float:
        """Returns expected / measured throughput − 1."""
        return math.expm1(self.error)

    @property
    def inside(self) -> bool:
        return abs(self.error) <= self.half

    def judged(self, tails: tuple[float, float]) -> LeftOutRow:
        """Returns the row with its interval; more runs of one's own never widen it."""
        return replace(self, half=min(tails[self.own > 0] * self.deviation, tails[0] * self.before))


def left_out(known: Conditioned, asked: Iterable[Observation], counts: Sequence[int] = OWN) -> list[LeftOutRow]:
    """Returns every asked row estimated by rows of other sources, and after each of ``counts`` rows of its own source."""
    by_source = grouped((row.source, row) for row in asked)
    rows: list[LeftOutRow] = []
    for members in by_source.values():
        mean, covariance = known.expected([row.facts for row in members])
        spread = np.sqrt(np.maximum(np.diag(covariance), 0.0)).tolist()
        pairs = zip(members, mean.tolist(), spread, strict=True)
        rows += [LeftOutRow(row=row, expected=log, deviation=s, before=s) for row, log, s in pairs]
        for own in counts:
            rows += _after_own(members, mean, covariance, own)
    return rows


def _after_own(members: Sequence[Observation], mean: Array, covariance: Array, own: int) -> Iterator[LeftOutRow]:
    """Yields rows of one source after ``own`` of the others, for sources with five rows or more. ``mean`` (n,),
    ``covariance`` (n, n): before."""
    if len(members) < max(own + 2, 5):
        return
    error = np.array([row.log_ratio for row in members]) - mean
    draw, spread = np.random.default_rng(own), np.sqrt(np.diag(covariance))
    for target, row in enumerate(members):
        others = np.delete(np.arange(len(members)), target)
        like = covariance[target, others] / spread[others]
        picks = [(others[np.argsort(-like, kind="stable")[:own]], True)]
        picks += [(draw.choice(others, own, replace=False), False) for _ in range(DRAWS)]
        for chosen, nearest in picks:
            taught = np.column_stack([covariance[chosen, target], error[chosen]])
            gain, solved = np.linalg.solve(covariance[np.ix_(chosen, chosen)], taught).T
            variance = float(covariance[target, target] - gain @ covariance[chosen, target])
            yield LeftOutRow(
                row=row,
                expected=float(mean[target] + gain @ error[chosen]),
                deviation=math.sqrt(max(variance, REPEAT**2)) * agreement(float(error[chosen] @ solved), own),
                before=float(spread[target]),
                own=own,
                nearest=nearest,
            )


def tails(left: Sequence[LeftOutRow]) -> tuple[float, float]:
    """Returns :func:`tail` without runs of one's own, and with some that were drawn at random."""
    scores = [(row.row.source, row.error / row.deviation, row.own) for row in left if not row.nearest]
    without = tail([(name, value) for name, value, own in scores if not own])
    return without, max(without, tail([(name, value) for name, value, own in scores if own]))


def tail(scores: Sequence[tuple[str, float]]) -> float:
    """Returns the half width of the 90 % interval in standard deviations: conformal over sources, each weighing the same
    (Dunn, Wasserman, Ramdas, *Distribution-free prediction sets for two-layer hierarchical models*, JASA 118, 2023).
    With too few sources it is that of a normal distribution."""
    names = [name for name, _ in scores]
    sources = len(set(names))
    level = LEVEL * (1.0 + 1.0 / sources) if sources else math.inf
    if level > 1.0:
        return NORMAL
    return weights.quantile(np.abs([value for _, value in scores]), weights.by_cell(names), level)


def counts(rows: Iterable[Observation]) -> dict[str, tuple[int, int]]:
    """Returns the number of rows and sources by GPU × framework, by GPU and by framework."""
    sources_by_key = grouped(
        (key, row.source)
        for row in rows
        for key in (f"{row.facts.gpu} × {row.facts.framework}", row.facts.gpu, row.facts.framework)
    )
    return {key: (len(sources), len(set(sources))) for key, sources in sorted(sources_by_key.items())}
