"""What a row is expected to be by rows of others alone: by source, by family; first looks; and a few runs of one's
own. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.calibrate import fit, learn
from harness.calibrate.fit import Conditioned
from harness.calibrate.learn import NORMAL
from harness.contracts.estimates import Estimate, Observation
from projector.posterior import REPEAT, Posterior

Array = NDArray[np.float64]
#: Parts into which sources are divided so that the variances of each come from the first looks of the others.
FOLDS = 4
#: Runs of one's own that are tried, and how often they are drawn.
OWN, DRAWS = (0, 1, 2, 3, 5), 5


def deviations_of(
    known: Posterior, rows: Sequence[Observation] = (), looks: Sequence[Observation] = ()
) -> dict[str, float]:
    """The deviations of a posterior as a fit has them, where a repetition is part of the run.

    ``rows`` of another predictor than that of ``looks`` scatter as much more as their typical error is larger.
    """
    scale = 1.0
    if rows and looks:
        scale = max(
            float(np.median([abs(o.log_ratio) for o in rows]) / np.median([abs(o.log_ratio) for o in looks])), 1.0
        )
    run = math.hypot(known.deviations.get("run", 0.1), REPEAT)
    return {term: scale * value for term, value in {**known.deviations, "run": run}.items()}


def estimates(
    known: Conditioned, asked: Sequence[Observation], label: Callable[[Observation], str], tail: float | None = None
) -> dict[str, Estimate]:
    """By run id, each asked row by the rows of other labels. ``tail``: half widths in standard deviations; None: as
    these rows say."""
    labels = np.array([label(row) for row in known.rows], dtype=object)
    by_label: dict[str, list[Observation]] = {}
    for row in asked:
        by_label.setdefault(label(row), []).append(row)
    made: dict[str, tuple[float, float]] = {}
    scores: list[tuple[str, float]] = []
    for name, those in by_label.items():
        mean, covariance = known.without(labels == name, [row.facts for row in those])
        for row, log, variance in zip(those, mean.tolist(), np.diag(covariance).tolist(), strict=True):
            made[row.run_id] = (log, math.sqrt(max(variance, 0.0)))
            if math.isfinite(row.log_ratio):
                scores.append((row.source, (row.log_ratio - log) / made[row.run_id][1]))
    width = learn.tail(scores) if tail is None else tail
    return {run: Estimate(log=log, deviation=spread, half=width * spread) for run, (log, spread) in made.items()}


def all_in(known: Conditioned, asked: Sequence[Observation]) -> dict[str, Estimate]:
    """By run id, each asked row by all rows, its own included."""
    if not asked:
        return {}
    mean, covariance = known.without(np.zeros(len(known.rows), dtype=bool), [row.facts for row in asked])
    spread = np.sqrt(np.maximum(np.diag(covariance), 0.0)).tolist()
    return {
        row.run_id: Estimate(log=log, deviation=each, half=NORMAL * each)
        for row, log, each in zip(asked, mean.tolist(), spread, strict=True)
    }


def by_source(row: Observation) -> str:
    """Who published it: all rows of a repository, a document or a submitter are left out together."""
    return row.source


def by_family(row: Observation) -> str:
    return row.family


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One row judged by rows of other sources and ``own`` runs of its own: ``error`` = ln(measured / expected),
    ``half``: half width of its 90 % interval in ln. ``nearest``: its own runs are the most like it, else drawn at random."""

    row: Observation
    error: float
    half: float
    own: int = 0
    nearest: bool = False

    @property
    def inside(self) -> bool:
        return abs(self.error) <= self.half

    @property
    def throughput_error(self) -> float:
        """Expected / measured throughput − 1."""
        return math.expm1(self.error)


def unseen(rows: Sequence[Observation], looks: Sequence[Observation]) -> list[Judged]:
    """First looks, each judged with variances and a width from other sources' first looks, and without any row of its
    source."""
    names = sorted({row.source for row in looks})
    judged: list[Judged] = []
    start: Mapping[str, float] | None = None
    for part in range(FOLDS):
        mine = frozenset(names[part::FOLDS])
        known = fit.deviations([row for row in looks if row.source not in mine], start)
        start = known
        conditioned = Conditioned.of(rows, known)
        width = learn.tail(learn.standardised(conditioned, [row for row in looks if row.source not in mine]))
        for name in mine:
            judged += _few(conditioned, [row for row in looks if row.source == name], name, width)
    return judged


def seen(rows: Sequence[Observation], known: Posterior) -> list[Judged]:
    """Open rows as they are projected today, each without any row of its source."""
    made = estimates(Conditioned.of(rows, deviations_of(known)), rows, by_source, known.tail)
    return [Judged(row=row, error=row.log_ratio - made[row.run_id].log, half=made[row.run_id].half) for row in rows]


def _few(known: Conditioned, looks: Sequence[Observation], source: str, width: float) -> list[Judged]:
    """The looks of one source after none and after some of them."""
    left = np.array([row.source == source for row in known.rows])
    mean, covariance = known.without(left, [row.facts for row in looks])
    y, spread = np.array([row.log_ratio for row in looks]), np.sqrt(np.diag(covariance))
    judged = [
        Judged(row=row, error=error, half=half)
        for row, error, half in zip(looks, (y - mean).tolist(), (width * spread).tolist(), strict=True)
    ]
    draw = np.random.default_rng(0)
    for own in OWN[1:]:
        if len(looks) < max(own + 2, 5):
            continue
        for target in range(len(looks)):
            others = np.array([i for i in range(len(looks)) if i != target])
            like = covariance[target, others] / spread[others]
            picks = [(others[np.argsort(-like, kind="stable")[:own]], True)]
            picks += [(draw.choice(others, own, replace=False), False) for _ in range(DRAWS)]
            for chosen, nearest in picks:
                gain = np.linalg.solve(covariance[np.ix_(chosen, chosen)], covariance[chosen, target])
                expected = mean[target] + gain @ (y[chosen] - mean[chosen])
                variance = covariance[target, target] - gain @ covariance[chosen, target]
                half = width * math.sqrt(max(float(variance), REPEAT**2))
                judged.append(
                    Judged(row=looks[target], error=float(y[target] - expected), half=half, own=own, nearest=nearest)
                )
    return judged


def ratio_widths(
    known: Conditioned, rows: Sequence[Observation], pairs: Sequence[tuple[str, str]], tail: float
) -> dict[tuple[str, str], float]:
    """Half widths in ln of the ratios of pairs of ``rows`` (by run id) of one source, as rows of other sources give them."""
    place = {row.run_id: row for row in rows}
    sources = np.array([row.source for row in known.rows], dtype=object)
    by_name: dict[str, list[tuple[str, str]]] = {}
    for first, second in pairs:
        if first in place and second in place:
            by_name.setdefault(place[first].source, []).append((first, second))
    widths: dict[tuple[str, str], float] = {}
    for name, those in by_name.items():
        ids = list(dict.fromkeys(run for pair in those for run in pair))
        _, covariance = known.without(sources == name, [place[run].facts for run in ids])
        at = {run: i for i, run in enumerate(ids)}
        for first, second in those:
            i, j = at[first], at[second]
            variance = float(covariance[i, i] + covariance[j, j] - 2.0 * covariance[i, j])
            widths[first, second] = tail * math.sqrt(max(variance, 2.0 * REPEAT**2))
    return widths
