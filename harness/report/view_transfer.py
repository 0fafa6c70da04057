"""Tables of what was held out: by family, framework and whole GPU, by law, and the parameters of the law itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp

from harness.calibrate import folds, intervals
from harness.calibrate.folds import Fold
from harness.contracts.results import Evaluation, Row
from harness.report.table import NONE, Column, Table, number, percent, signed
from harness.score import accuracy
from harness.score.transfer import Outcome, Transfer, laws, of_rows, transfers
from projector.experience import TERMS, Basis, Experience

__all__ = ["of_evaluation", "parameters", "tables"]

_COLUMNS = (
    Column("groups", help="folds: one for each", minor=True),
    Column("rows", minor=True),
    Column("macro"),
    Column("plain"),
    Column("bias", minor=True),
    Column("worst"),
    Column("inside", help="measurements inside their 90 % interval"),
    Column("inside, macro"),
    Column("width", help="median of high / low − 1"),
    Column("law chosen", numeric=False, help="rows by the law that their fold chose", minor=True),
)


def of_evaluation(evaluation: Evaluation, name: str) -> list[Table]:
    """The transfer tables of one predictor, from its uncalibrated rows; empty where there is nothing to hold out."""
    given = of_rows(evaluation.unique_rows, evaluation.facts, name)
    fold = evaluation.laws.get(name)
    return tables(given, fold if isinstance(fold, Fold) else None)


def tables(given: Transfer, fold: Fold | None = None) -> list[Table]:
    """By what is left out; by law; and by the framework or the GPU that was left out."""
    found = transfers(given)
    if not found:
        return []
    made = [_summary(found), _laws(given, fold)]
    made += [_each(outcome) for outcome in found if outcome.name != "family"]
    return made


def _figures(outcome: Outcome) -> tuple[str, ...]:
    s, c = outcome.summary, outcome.coverage
    inside = (NONE, NONE, NONE) if c is None else (percent(c.inside), percent(c.macro), percent(c.width, 0))
    chosen = ", ".join(f"{law} {rows}" for law, rows in sorted(outcome.chosen.items(), key=lambda item: -item[1]))
    errors = (percent(s.macro_mape), percent(s.mape), signed(s.macro_bias), signed(s.worst))
    return (str(outcome.groups), str(s.compared), *errors, *inside, chosen)


def _summary(found: Sequence[Outcome]) -> Table:
    note = (
        "Each row by a fit that saw no row of its family (the headline), of its framework, or of its GPU. The law of a"
        " fold, its parameters and its intervals come from the other rows alone: every law is scored on them by leaving"
        f" out one group more, and the simplest within {percent(folds.MARGIN, 0)} of the best score (mean |ln error|, each"
        " cell weighing the same) is used."
    )
    rows = tuple((f"one {outcome.name}", *_figures(outcome)) for outcome in found)
    return Table(title="What is left out", columns=(Column("left out", numeric=False), *_COLUMNS), rows=rows, note=note)


def _laws(given: Transfer, fold: Fold | None) -> Table:
    scores: Mapping[str, float] = {} if fold is None else fold.scores
    names = given.benches["family"].rows.laws
    columns = (
        Column("law", numeric=False),
        Column("score", help="inner score over all rows", minor=True),
        *_COLUMNS[:-1],
    )
    rows = []
    for outcome in laws(given, names):
        score = scores.get(outcome.name)
        mark = " (in use)" if fold is not None and fold.law == outcome.name else ""
        rows.append((f"{outcome.name}{mark}", number(score, 4), *_figures(outcome)[:-1]))
    note = (
        "One family left out, the same law in every fold. factor: a median per GPU; pooled: one parameter a place,"
        " partially pooled over all, vendor, architecture, GPU and framework; terms: the same for every term of the step."
        " Shown to be read, not to choose by: the choice is made inside each fold."
    )
    return Table(title="Laws of calibration", columns=columns, rows=tuple(rows), note=note)


def _each(outcome: Outcome) -> Table:
    """By the value that was left out."""
    keys: dict[str, Callable[[Row], str]] = {"framework": lambda row: row.framework, "GPU": lambda row: row.gpu}
    columns = (
        Column(f"unseen {outcome.name}", numeric=False),
        Column("rows"),
        Column("macro"),
        Column("plain"),
        Column("bias"),
        Column("worst"),
        Column("inside"),
        Column("width"),
    )
    made = []
    for value, members in sorted(accuracy.by(outcome.rows, keys[outcome.name]).items()):
        line = _line(members)
        if line is not None:
            made.append((value or NONE, *line))
    return Table(title=f"Every {outcome.name} as if it had never been seen", columns=columns, rows=tuple(made))


def _line(members: Sequence[Row]) -> tuple[str, ...] | None:
    known = accuracy.comparable(members)
    if not known:
        return None
    errors = [row.error or 0.0 for row in known]
    worst = max(errors, key=abs)
    cells = accuracy.macro((accuracy.cell(row), abs(row.error or 0.0)) for row in known)
    covered = intervals.coverage(known)
    inside = (NONE, NONE) if covered is None else (percent(covered.inside), percent(covered.width, 0))
    plain = sum(map(abs, errors)) / len(errors)
    return (str(len(known)), percent(cells), percent(plain), signed(sum(errors) / len(errors)), signed(worst), *inside)


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
