"""Transfer tests: the same protocol with a framework, or a whole GPU, unseen instead of a model family. Pure functions.

Leave one family out is the headline: a new model on hardware and software that were measured. Leave one framework out
and leave one GPU out ask for more: a software stack, or a device, of which no run was ever seen. Each has its own inner
selection and its own intervals, learnt from residuals of the same kind (:mod:`harness.calibrate.folds`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.calibrate import folds, intervals, observe
from harness.calibrate.folds import Bench, Label
from harness.calibrate.intervals import Coverage
from harness.contracts.estimates import Estimate
from harness.contracts.results import Row, RunFacts
from harness.score import accuracy
from harness.score.accuracy import Summary

__all__ = ["LABELS", "Outcome", "Transfer", "laws", "of_rows", "rows_of", "transfers"]

LABELS: Mapping[str, Label] = {
    "family": folds.by_family,
    "framework": lambda o: o.framework,
    "GPU": lambda o: o.gpu,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One way of holding out, or one law: its error, its intervals, and the rows themselves."""

    name: str
    groups: int
    summary: Summary
    coverage: Coverage | None
    chosen: Mapping[str, int]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """The rows of one predictor before any fit, and what they are held out by: a bench a label."""

    rows: Sequence[Row]
    facts: Mapping[str, RunFacts]
    benches: Mapping[str, Bench]

    def outcome(self, name: str, law: str | None = None) -> Outcome:
        """Held out by ``name``. ``law``: this one in every fold; None: as the folds choose."""
        bench = self.benches[name]
        found = bench.held_out(law)
        made = rows_of(self.rows, found)
        return Outcome(
            name=law or name,
            groups=bench.groups,
            summary=accuracy.summarise(made, self.facts),
            coverage=intervals.coverage(made),
            chosen=Counter(estimate.law for estimate in found.values()),
            rows=tuple(made),
        )


def of_rows(rows: Sequence[Row], facts: Mapping[str, RunFacts], predictor: str) -> Transfer:
    """``rows``: unique ones; what was fitted before is not looked at."""
    plain = accuracy.select(rows, predictor, "uncalibrated")
    seen = observe.of_rows(plain, facts)
    return Transfer(rows=plain, facts=facts, benches={name: Bench.of(seen, label) for name, label in LABELS.items()})


def transfers(given: Transfer) -> list[Outcome]:
    """One outcome a way of holding out, of those that have at least three groups."""
    return [given.outcome(name) for name, bench in given.benches.items() if bench.groups > 2]


def laws(given: Transfer, names: Sequence[str]) -> list[Outcome]:
    """Each law as if it had been fixed for every fold, held out by family: what the choice had to choose from."""
    return [given.outcome("family", name) for name in names]


def rows_of(rows: Sequence[Row], estimates: Mapping[str, Estimate]) -> list[Row]:
    """Uncalibrated rows as the estimates (by run id) make them: held out, with intervals."""
    made = []
    for row in rows:
        found = estimates.get(row.run_id)
        if found is not None and row.projected_tgs is not None and row.projected_step_seconds is not None:
            tgs = row.projected_tgs / found.value
            error = tgs / row.measured_tgs - 1.0 if row.measured_tgs else None
            step = row.projected_step_seconds * found.value
            row = replace(row, projected_tgs=tgs, projected_step_seconds=step, error=error)
        made.append(replace(row, fit="heldout"))
    keyed = {(row.predictor, row.run_id): estimates[row.run_id] for row in made if row.run_id in estimates}
    return intervals.attach(made, keyed)
