"""What a row is expected to be by rows of others alone: by source, by family; first looks; and a few runs of one's
own. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from harness.calibrate import fit, learn
from harness.calibrate.conditioned import Conditioned
from harness.calibrate.learn import NORMAL, Left
from harness.contracts.estimates import Estimate, Observation
from projector.dataclass import dataclass
from projector.effects import Prior
from projector.io.rows import grouped
from projector.posterior import REPEAT, Posterior

#: Parts into which sources are divided so that the variances of each come from the first looks of the others.
FOLDS = 4
#: Rows that a source has of which one is judged by the others, too.
FEW = 3


def prior_of(known: Posterior, rows: Sequence[Observation] = (), looks: Sequence[Observation] = ()) -> Prior:
    """The prior of a posterior as a fit has it, where a repetition is part of the run.

    ``rows`` of another predictor than that of ``looks`` scatter as much more as their typical error is larger.
    """
    scale = 1.0
    if rows and looks:
        scale = max(
            float(np.median([abs(o.log_ratio) for o in rows]) / np.median([abs(o.log_ratio) for o in looks])), 1.0
        )
    of = known.prior.deviations
    run = math.hypot(of.get("run", 0.1), REPEAT)
    return replace(known.prior, deviations={term: scale * value for term, value in {**of, "run": run}.items()})


def estimates(known: Conditioned, asked: Sequence[Observation], tail: float | None = None) -> dict[str, Estimate]:
    """By run id, each asked row by the rows of other sources. ``tail``: half widths in standard deviations; None: as
    these rows say."""
    left = learn.left_out(known, asked, counts=())
    if tail is None:
        tail = learn.tails([each for each in left if math.isfinite(each.error)])[0]
    return {
        each.row.run_id: Estimate(log=each.expected, deviation=each.deviation, half=tail * each.deviation)
        for each in left
    }


def all_in(known: Conditioned, asked: Sequence[Observation]) -> dict[str, Estimate]:
    """By run id, each asked row by all rows, its own included."""
    by_source = grouped((row.source, row) for row in asked)
    found: dict[str, Estimate] = {}
    for those in by_source.values():
        mean, covariance = known.expected([row.facts for row in those], own=True)
        spread = np.sqrt(np.maximum(np.diag(covariance), 0.0)).tolist()
        for row, log, each in zip(those, mean.tolist(), spread, strict=True):
            found[row.run_id] = Estimate(log=log, deviation=each, half=NORMAL * each)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged(Left):
    """A row that was left out, with ``half``: half width of its 90 % interval in ln."""

    half: float

    @property
    def inside(self) -> bool:
        return abs(self.error) <= self.half

    @property
    def throughput_error(self) -> float:
        """Expected / measured throughput − 1."""
        return math.expm1(self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Rows judged by others: first looks (:func:`unseen`), and rows as they are projected today without (:func:`seen`) and
    with others of their source (:func:`known`)."""

    unseen: Sequence[Judged]
    seen: Sequence[Judged]
    known: Sequence[Judged]


def judged(rows: Sequence[Observation], looks: Sequence[Observation], posterior: Posterior) -> Judgement:
    """All three. ``posterior``: what judges rows as they are projected today."""
    return Judgement(unseen=unseen(rows, looks), seen=seen(rows, posterior), known=known(rows, posterior))


def unseen(rows: Sequence[Observation], looks: Sequence[Observation]) -> list[Judged]:
    """First looks, each judged with variances and a width from other sources' first looks, and without any row of its
    source."""
    names = sorted({row.source for row in looks})
    judged: list[Judged] = []
    start: Prior | None = None
    for part in range(FOLDS):
        mine = frozenset(names[part::FOLDS])
        start = fit.prior([row for row in looks if row.source not in mine], start)
        left = learn.left_out(Conditioned.of(rows, start), looks)
        tails = learn.tails([each for each in left if each.row.source not in mine])
        judged += [_judged(each, tails) for each in left if each.row.source in mine]
    return judged


def _judged(left: Left, tails: tuple[float, float]) -> Judged:
    values = {each.name: getattr(left, each.name) for each in fields(Left)}
    half = min(tails[left.own > 0] * left.deviation, tails[0] * left.before)  # more runs never widen
    return Judged(**values, half=half)


def seen(rows: Sequence[Observation], known: Posterior) -> list[Judged]:
    """Open rows as they are projected today, each without any row of its source."""
    left = learn.left_out(Conditioned.of(rows, prior_of(known)), rows, counts=())
    return [_judged(each, known.tail) for each in left]


def known(rows: Sequence[Observation], posterior: Posterior) -> list[Judged]:
    """Rows of sources with :data:`FEW` or more as they are projected today, each by all others, those of its own source
    among them."""
    those = Conditioned.of(rows, prior_of(posterior))
    number = Counter(row.source for row in those.rows)
    alone = {each.row.run_id: each.deviation for each in learn.left_out(those, those.rows, counts=())}
    return [
        _judged(
            Left(
                row=row,
                expected=row.log_ratio - error,
                deviation=deviation,
                before=alone[row.run_id],
                own=number[row.source] - 1,
            ),
            posterior.tail,
        )
        for row, error, deviation in zip(those.rows, *(each.tolist() for each in those.without_itself()), strict=True)
        if number[row.source] >= FEW
    ]


def ratio_widths(
    known: Conditioned, rows: Sequence[Observation], pairs: Sequence[tuple[str, str]], tail: float
) -> dict[tuple[str, str], float]:
    """Half widths in ln of the ratios of pairs of ``rows`` (by run id) of one source, as rows of other sources give them."""
    place = {row.run_id: row for row in rows}
    by_name: dict[str, list[tuple[str, str]]] = {}
    for first, second in pairs:
        if first in place and second in place:
            by_name.setdefault(place[first].source, []).append((first, second))
    widths: dict[tuple[str, str], float] = {}
    for those in by_name.values():
        ids = list(dict.fromkeys(run for pair in those for run in pair))
        _, covariance = known.expected([place[run].facts for run in ids])
        at = {run: i for i, run in enumerate(ids)}
        for first, second in those:
            i, j = at[first], at[second]
            variance = float(covariance[i, i] + covariance[j, j] - 2.0 * covariance[i, j])
            widths[first, second] = tail * math.sqrt(max(variance, 2.0 * REPEAT**2))
    return widths
