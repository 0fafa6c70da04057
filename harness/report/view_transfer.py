"""Tables of what was held out: by source, family, framework and GPU, by law, and the parameters of the law itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp

from harness.calibrate.folds import Fold
from harness.calibrate.hierarchy import LAWS
from harness.contracts import frame
from harness.contracts.results import Evaluation
from harness.report.spec import Spec, percent0, table
from harness.report.table import Column, Table, figure, listed, number, percent, signed, text
from harness.score.transfer import Outcome, Transfer, laws, of_rows, transfers
from projector.experience import Basis, Experience

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
    return made + [_each(outcome) for outcome in found if outcome.name in ("framework", "GPU")]


def _summary(found: Sequence[Outcome]) -> Table:
    note = (
        "Each row by a fit that saw no row of its source, of its family (the headline is the worse of these two), of its"
        " framework, or of its GPU. The law of a fold, its parameters and its intervals come from the other rows alone:"
        " every law is scored on them by leaving out one source more (mean |ln error|, a source weighing one), and one is"
        " used where it beats the simpler one by more than the standard error of that gain over sources."
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
        "One source left out, the same law in every fold. none: as projected; one: one factor for all runs; stack: and one"
        " for the framework; places: and one for the vendor, the architecture and the GPU; all partially pooled. Shown to be"
        " read, not to choose by: the choice is made inside each fold."
    )
    return listed("Laws of calibration", laws(given, tuple(LAWS)), made, note)


def _each(outcome: Outcome) -> Table:
    """By the value that was left out."""
    found = table(outcome.rows, replace(_UNSEEN, by=(outcome.name.lower(),)))
    columns = (Column(f"unseen {outcome.name}", numeric=False), *found.columns[1:])
    return replace(found, title=f"Every {outcome.name} as if nobody had measured it", columns=columns, note="")


def unprofiled(own: Evaluation, bare: Evaluation, name: str) -> Table:
    """By the framework whose profile was not used: what a code base that nobody has read should expect."""
    whole = frame.part(own.once, predictor=name).drop_duplicates("run_id").set_index("run_id")["framework"]
    rows = frame.part(bare.once, predictor=name)
    rows = rows[rows["run_id"].isin(whole.index)]
    rows = rows.assign(framework=rows["run_id"].map(whole))
    all_, each = (table(part, replace(_UNSEEN, by=("framework",))) for part in (rows.assign(framework="all"), rows))
    columns = (Column("left out", numeric=False), *each.columns[1:])
    note = (
        "Projected as unknown, with an interval as wide as that name has; corrected by runs of other sources. How wide it"
        " is was chosen on these rows."
    )
    return replace(
        each, title="Every framework as if it had no profile", columns=columns, rows=(*all_.rows, *each.rows), note=note
    )


def parameters(known: Experience) -> Table:
    """The parameters of a law as factors on the step, with standard errors."""
    made = (
        text("place", lambda place: place[0]),
        figure("step", lambda place: _factor(place[1]), help="factor, and its standard error in points"),
        figure("sources", lambda place: place[1].sources, help="publishers that measured the place itself"),
        figure("cells", lambda place: place[1].cells),
    )
    places = [
        *sorted(known.grounds.items()),
        *((f"framework {key}", basis) for key, basis in sorted(known.stacks.items())),
        ("any other framework", known.unseen),
    ]
    note = (
        "A step is expected to take exp(ground + stack) times what was projected. Ground: the GPU, leaning on its"
        " architecture, vendor and all runs; stack: what the framework adds; × 1 where no correction helps sources that it"
        " has not seen. ± one standard error."
    )
    return listed("Parameters", places, made, note)


def _factor(basis: Basis) -> str:
    return f"{exp(basis.value):.3f} ± {basis.error:.3f}"
