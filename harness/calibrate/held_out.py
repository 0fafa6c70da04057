"""Estimates rows from rows of others alone, by source; judges first looks, and the gain from a few runs of one's own.
Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harness.calibrate import fit, learn
from harness.calibrate.conditioned import Conditioned
from harness.calibrate.learn import NORMAL, LeftOutRow
from harness.contracts.estimates import Estimate, Observation
from projector.dataclass import dataclass
from projector.effects import Prior
from projector.io.rows import grouped
from projector.posterior import REPEAT, Posterior

#: Parts of the sources: the variances for each part come from the first looks of the other parts.
FOLDS = 4
#: Least rows of a source for judging each by its others, too.
FEW = 3


def prior_of(known: Posterior, rows: Sequence[Observation] = (), looks: Sequence[Observation] = ()) -> Prior:
    """Returns the prior of a posterior as a fit has it, in which a repetition is part of the run. ``rows`` of another
    predictor than that of ``looks`` scatter more by the ratio of their typical errors."""
    scale = 1.0
    if rows and looks:
        scale = max(
            float(np.median([abs(o.log_ratio) for o in rows]) / np.median([abs(o.log_ratio) for o in looks])), 1.0
        )
    of = known.prior.deviations
    run = math.hypot(of.get("run", 0.1), REPEAT)
    return replace(known.prior, deviations={term: scale * value for term, value in {**of, "run": run}.items()})


def estimates(known: Conditioned, asked: Sequence[Observation], tail: float | None = None) -> dict[str, Estimate]:
    """Returns by run id the estimate of each asked row by the rows of other sources. ``tail``: half widths in standard
    deviations; None: as these rows give it."""
    rows = learn.left_out(known, asked, counts=())
    if tail is None:
        tail = learn.tails([row for row in rows if math.isfinite(row.error)])[0]
    return {
        row.row.run_id: Estimate(log=row.expected, deviation=row.deviation, half=tail * row.deviation) for row in rows
    }


def all_in(known: Conditioned, asked: Sequence[Observation]) -> dict[str, Estimate]:
    """Returns by run id the estimate of each asked row by all rows, its own included."""
    by_source = grouped((row.source, row) for row in asked)
    by_id: dict[str, Estimate] = {}
    for members in by_source.values():
        mean, covariance = known.expected([row.facts for row in members], own=True)
        spread = np.sqrt(np.maximum(np.diag(covariance), 0.0)).tolist()
        for row, log, deviation in zip(members, mean.tolist(), spread, strict=True):
            by_id[row.run_id] = Estimate(log=log, deviation=deviation, half=NORMAL * deviation)
    return by_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Rows judged by others: first looks (:func:`unseen`), and rows as they are projected today without (:func:`seen`)
    and with others of their source (:func:`known`)."""

    unseen: Sequence[LeftOutRow]
    seen: Sequence[LeftOutRow]
    known: Sequence[LeftOutRow]


def judged(rows: Sequence[Observation], looks: Sequence[Observation], posterior: Posterior) -> Judgement:
    """Returns all three judgements. ``posterior``: judges rows as they are projected today."""
    return Judgement(unseen=unseen(rows, looks), seen=seen(rows, posterior), known=known(rows, posterior))


def unseen(rows: Sequence[Observation], looks: Sequence[Observation]) -> list[LeftOutRow]:
    """Judges first looks, each by variances and a width of other sources' first looks, and by no row of its source."""
    names = sorted({row.source for row in looks})
    judged: list[LeftOutRow] = []
    start: Prior | None = None
    for part in range(FOLDS):
        in_part = frozenset(names[part::FOLDS])
        start = fit.prior([row for row in looks if row.source not in in_part], start)
        rows_left = learn.left_out(Conditioned.of(rows, start), looks)
        tails = learn.tails([row_left for row_left in rows_left if row_left.row.source not in in_part])
        judged += [row_left.judged(tails) for row_left in rows_left if row_left.row.source in in_part]
    return judged


def seen(rows: Sequence[Observation], known: Posterior) -> list[LeftOutRow]:
    """Judges open rows as they are projected today, each without any row of its source."""
    rows_left = learn.left_out(Conditioned.of(rows, prior_of(known)), rows, counts=())
    return [row.judged(known.tail) for row in rows_left]


def known(rows: Sequence[Observation], posterior: Posterior) -> list[LeftOutRow]:
    """Judges rows of sources with :data:`FEW` or more as projected today, by all others, those of their source included."""
    conditioned = Conditioned.of(rows, prior_of(posterior))
    number = Counter(row.source for row in conditioned.rows)
    alone = {r.row.run_id: r.deviation for r in learn.left_out(conditioned, conditioned.rows, counts=())}
    return [
        LeftOutRow(
            row=row,
            expected=row.log_ratio - error,
            deviation=deviation,
            before=alone[row.run_id],
            own=number[row.source] - 1,
        ).judged(posterior.tail)
        for row, error, deviation in zip(
            conditioned.rows, *(row_left.tolist() for row_left in conditioned.without_itself()), strict=True
        )
        if number[row.source] >= FEW
    ]


def ratio_widths(
    known: Conditioned, rows: Sequence[Observation], pairs: Sequence[tuple[str, str]], tail: float
) -> dict[tuple[str, str], float]:
    """Returns half widths in ln of ratios of pairs of ``rows`` (run ids) of one source, learnt from other sources."""
    place = {row.run_id: row for row in rows}
    by_name = grouped((place[pair[0]].source, pair) for pair in pairs if pair[0] in place and pair[1] in place)
    widths: dict[tuple[str, str], float] = {}
    for members in by_name.values():
        ids = list(dict.fromkeys(run for pair in members for run in pair))
        _, covariance = known.expected([place[run].facts for run in ids])
        at = {run: i for i, run in enumerate(ids)}
        for first, second in members:
            i, j = at[first], at[second]
            variance = float(covariance[i, i] + covariance[j, j] - 2.0 * covariance[i, j])
            widths[first, second] = tail * math.sqrt(max(variance, 2.0 * REPEAT**2))
    return widths
