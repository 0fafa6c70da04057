"""Tables of what was held out: by family, framework and whole GPU, by law, and the parameters of the law itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp

from harness.calibrate import folds
from harness.calibrate.folds import Fold
from harness.contracts.results import Evaluation
from harness.report.spec import Spec, figure, listed, percent0, table, text
from harness.report.table import Column, Table, number, percent, signed
from harness.score.transfer import Outcome, Transfer, laws, of_rows, transfers
from projector.experience import TERMS, Basis, Experience

__all__ = ["of_evaluation", "parameters", "tables"]


_COLUMNS = (
    figure("groups", "groups", help="folds: one for each", minor=1),
    figure("rows", "summary.compared", minor=1),
    figure("macro", "summary.macro_mape", percent),
    figure("plain", "summary.mape", percent),
    figure("bias", "summary.macro_bias", signed, minor=1),
    figure("worst", "summary.worst", signed),
    figure("inside", "coverage.inside", percent, "measurements inside their 90 % interval"),
    figure("inside, macro", "coverage.macro", percent),
    figure("width", "coverage.width", percent0, "median of high / low − 1"),
)
_UNSEEN = Spec(
    title="",
    by=(),
    metrics=("compared:rows", "mape:macro", "plain", "plain_bias", "worst", "inside", "width"),
    needs="compared",
)


def of_evaluation(evaluation: Evaluation, name: str) -> list[Table]:
    """The transfer tables of one predictor, from its uncalibrated rows; empty where there is nothing to hold out."""
    fold = evaluation.laws.get(name)
    return tables(of_rows(evaluation.once, name), fold if isinstance(fold, Fold) else None)


def tables(given: Transfer, fold: Fold | None = None) -> list[Table]:
    """By what is left out; by law; and by the framework or the GPU that was left out."""
    found = transfers(given)
    if not found:
        return []
    made = [_summary(found), _laws(given, fold)]
    return made + [_each(outcome) for outcome in found if outcome.name != "family"]


def _summary(found: Sequence[Outcome]) -> Table:
    note = (
        "Each row by a fit that saw no row of its family (the headline), of its framework, or of its GPU. The law of a"
        " fold, its parameters and its intervals come from the other rows alone: every law is scored on them by leaving"
        f" out one group more, and the simplest within {percent(folds.MARGIN, 0)} of the best score (mean |ln error|, each"
        " cell weighing the same) is used."
    )
    made = (
        text("left out", lambda o: f"one {o.name}"),
        *_COLUMNS,
        text("law chosen", _chosen, help="rows by the law that their fold chose", minor=1),
    )
    return listed("What is left out", found, made, note)


def _chosen(outcome: Outcome) -> str:
    return ", ".join(f"{law} {rows}" for law, rows in sorted(outcome.chosen.items(), key=lambda item: -item[1]))


def _laws(given: Transfer, fold: Fold | None) -> Table:
    scores: Mapping[str, float] = {} if fold is None else fold.scores
    used = "" if fold is None else fold.law
    made = (
        text("law", lambda o: o.name + (" (in use)" if o.name == used else "")),
        figure("score", lambda o: number(scores.get(o.name), 4), help="inner score over all rows", minor=1),
        *_COLUMNS,
    )
    note = (
        "One family left out, the same law in every fold. factor: a median per GPU; pooled: one parameter a place,"
        " partially pooled over all, vendor, architecture, GPU and framework; terms: the same for every term of the step."
        " Shown to be read, not to choose by: the choice is made inside each fold."
    )
    return listed("Laws of calibration", laws(given, given.benches["family"].rows.laws), made, note)


def _each(outcome: Outcome) -> Table:
    """By the value that was left out."""
    found = table(outcome.rows, replace(_UNSEEN, by=(outcome.name.lower(),)))
    columns = (Column(f"unseen {outcome.name}", numeric=False), *found.columns[1:])
    return replace(found, title=f"Every {outcome.name} as if it had never been seen", columns=columns, note="")


def parameters(known: Experience) -> Table:
    """The parameters of a law as factors on the step or on a part of it, with standard errors."""
    used = [i for i in range(len(TERMS)) if any(b.errors[i] for b in (*known.grounds.values(), *known.stacks.values()))]
    columns = (
        Column("place", numeric=False),
        *(Column(TERMS[i].replace("_", " "), help="factor, and its standard error in points") for i in used),
        Column("scatter", help="typical |ln| that is left"),
        Column("rows"),
        Column("cells"),
    )
    places = [*sorted(known.grounds.items()), *((f"framework {key}", b) for key, b in sorted(known.stacks.items()))]
    rows = [
        *((key, *_place(basis, used)) for key, basis in places),
        ("any other framework", *_place(known.unseen, used)),
    ]
    note = (
        "A step is expected to take exp(Σ share · (ground + stack)) times what was projected. Ground: the GPU, leaning on"
        " its architecture, vendor and all runs; stack: what the framework adds. ± one standard error."
    )
    return Table(title="Parameters", columns=columns, rows=tuple(rows), note=note)


def _place(basis: Basis, used: Sequence[int]) -> tuple[str, ...]:
    thetas = [f"{exp(basis.values[i]):.3f} ± {basis.errors[i]:.3f}" for i in used]
    return (*thetas, number(basis.scatter, 3), str(basis.rows), str(basis.cells))
