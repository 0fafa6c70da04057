"""The verdict on an evaluation in words and in a few figures, which a reader wants to know before any table."""

from __future__ import annotations

from typing import NamedTuple

from harness.contracts.results import BASELINE, Evaluation
from harness.report.said import said
from harness.report.table import NONE, number, percent
from harness.score.figures import Figures
from projector.dataclass import dataclass


class Figure(NamedTuple):
    """A figure of the verdict. ``value`` as it is shown, ``meaning`` in a few words, ``more``: its context."""

    value: str
    meaning: str
    more: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A verdict. ``headline``: one sentence; ``lines``: the sentences behind it."""

    headline: str
    lines: tuple[str, ...]
    figures: tuple[Figure, ...]


def main(evaluation: Evaluation) -> str:
    """Returns the predictor that a report is about: the first that is not the baseline; "" where there is no row."""
    names = evaluation.predictors
    return next((name for name in names if name != BASELINE), names[0] if names else "")


def verdict(evaluation: Evaluation) -> Verdict:
    """Returns the verdict on the held-out rows of the :func:`main` predictor; every run counts once."""
    name = main(evaluation)
    of = Figures.of(evaluation.once, name)
    held, order, inside = of.held, of.order, of.intervals
    inside_share = percent(inside.inside if inside else None, 0)
    by_kind = f"{percent(inside.macro, 0)} by kind" if inside else "too few families to learn one from"
    ordered = f"{order.groups} groups, tau-b {number(order.tau)}"
    rows = of.fit("heldout")
    item = {
        "of": of,
        "name": name or "any predictor",
        "gpus": rows["gpu"][rows["error"].notna()].nunique(),
        "against": name != BASELINE and of.baseline.mape is not None,
        "worst_group": order.worst_group or NONE,
    }
    known = held.mape is not None
    return Verdict(
        headline=said("headline" if known else "nothing_compared", item)[0],
        lines=tuple(said("verdict", item)) if known else (),
        figures=(
            Figure(percent(held.mape), "mean error of tokens/s/GPU", f"{held.compared} runs, each once"),
            Figure(
                percent(held.macro_mape), "each kind of run counted once", f"{held.cells} of family × GPU × framework"
            ),
            Figure(inside_share, "inside their 90 % interval", by_kind),
            Figure(percent(order.agreement, 0), "of pairs put in the right order", ordered),
            Figure(percent(held.coverage, 0), "of complete runs projected", f"{held.compared} of {held.eligible}"),
        ),
    )
