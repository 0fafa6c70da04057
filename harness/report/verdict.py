"""The verdict on an evaluation in words and in a few figures, which a reader wants to know before any table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from harness.contracts.results import BASELINE, Evaluation
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
    return Verdict(
        headline=_headline(name, of),
        lines=tuple(_lines(name, of)),
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


def _headline(name: str, of: Figures) -> str:
    held = of.held
    if held.mape is None:
        return (
            f"No run of these {held.rows} has both a measured throughput and a projection by {name or 'any predictor'}."
        )
    rows = of.fit("heldout")
    gpus = rows["gpu"][rows["error"].notna()].nunique()
    return (
        f"Over {many(held.compared, 'measured run')} on {many(gpus, 'kind')} of GPU, {name} is off by {percent(held.mape)}"
        f" on average: half of the runs by less than {percent(held.median)}, nine in ten by less than {percent(held.p90)}."
    )


def many(count: int, thing: str) -> str:
    """Returns a number of things in words."""
    return f"{count} {thing}{'' if count == 1 else 's'}"


def _lines(name: str, of: Figures) -> Iterator[str]:
    if of.held.mape is None:
        return
    if name != BASELINE and of.baseline.mape is not None:
        yield f"One MFU per GPU and precision, the simplest rule, is off by {percent(of.baseline.mape)} on these runs."
    if of.order.regret is not None:
        yield (
            f"Choosing the configuration that it puts first costs {percent(of.order.regret)} of throughput on average"
            f" (worst {percent(of.order.worst_regret)}: {of.order.worst_group or NONE})."
        )
    yield "Held out: what corrects a run was learned without its source."
