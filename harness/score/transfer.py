"""What is left out: a source or a model family (the headline is the worse of the two), a framework, a whole GPU. Pure.

A source: a new user. A family: a new model. A framework or a GPU asks for more: a software stack, or a device, of which no
run was ever seen. Each has its own inner selection and its own intervals (:mod:`harness.calibrate.folds`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.calibrate import observe
from harness.calibrate.folds import LABELS, Bench
from harness.contracts import frame
from harness.contracts.estimates import Estimate
from harness.score import accuracy
from harness.score.accuracy import Coverage, Summary

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """One way of holding out, or one law: its error, its intervals, and the rows themselves."""

    name: str
    groups: int
    summary: Summary
    coverage: Coverage | None
    chosen: Mapping[str, int]
    rows: pd.DataFrame


@dataclass(frozen=True, kw_only=True, eq=False)
class Transfer:
    """The rows of one predictor before any fit, and what they are held out by: a bench a label."""

    rows: pd.DataFrame
    benches: Mapping[str, Bench]

    def outcome(self, name: str, law: str | None = None) -> Outcome:
        """Held out by ``name``. ``law``: this one in every fold; None: as the folds choose."""
        bench = self.benches[name]
        found = bench.held_out(law)
        made = rows_of(self.rows, found)
        return Outcome(
            name=law or name,
            groups=bench.groups,
            summary=accuracy.summarise(made),
            coverage=accuracy.coverage(made),
            chosen=Counter(estimate.law for estimate in found.values()),
            rows=made,
        )


def of_rows(rows: pd.DataFrame, predictor: str) -> Transfer:
    """``rows``: unique ones; what was fitted before is not looked at."""
    plain = frame.part(rows, predictor=predictor, fit="uncalibrated")
    seen = observe.of_rows(plain)
    return Transfer(rows=plain, benches={name: Bench.of(seen, label) for name, label in LABELS.items()})


def transfers(given: Transfer) -> list[Outcome]:
    """One outcome a way of holding out, of those that have at least three groups."""
    return [given.outcome(name) for name, bench in given.benches.items() if bench.groups > 2]


def laws(given: Transfer, names: Sequence[str]) -> list[Outcome]:
    """Each law as if it had been fixed for every fold, held out by source: what the choice had to choose from."""
    return [given.outcome("source", name) for name in names]


def rows_of(rows: pd.DataFrame, estimates: Mapping[str, Estimate]) -> pd.DataFrame:
    """Uncalibrated rows as the estimates (by run id) make them: held out, with intervals."""
    found = [estimates.get(run_id) for run_id in rows["run_id"]]
    factor = np.array([1.0 if each is None else each.value for each in found])
    width = np.exp([np.inf if each is None else each.half for each in found])
    tgs = rows["projected_tgs"] / factor
    bounded = tgs.where(np.isfinite(width))
    return rows.assign(
        fit="heldout",
        projected_tgs=tgs,
        projected_step_seconds=rows["projected_step_seconds"] * factor,
        error=tgs / rows["measured_tgs"] - 1.0,
        interval_low=bounded / width,
        interval_high=bounded * width,
    )
