"""The report on sources: what a new one should expect, each as if it had never been seen, and at the first look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from harness.calibrate.held import Judged
from harness.contracts import frame
from harness.contracts.results import Evaluation
from harness.evaluation.first_look import Look
from harness.report import view_first_look, view_posterior
from harness.report.spec import SPECS, table, tabled, values
from harness.report.table import Report, Table, percent
from harness.score import accuracy
from projector.io.rows import grouped

if TYPE_CHECKING:
    import pandas as pd


def build(evaluation: Evaluation, looks: Sequence[Look], predictor: str, judged: Sequence[Judged] = ()) -> Report:
    """Of ``predictor``'s rows, each by no row of its source; ``looks``: at runs that were new; ``judged``: those by
    others alone."""
    rows = frame.part(evaluation.once, predictor=predictor, fit="heldout")
    held = rows[rows["error"].notna()]
    sound = [each for each in looks if not each.doubt]
    tables = (_then_and_now(held, sound), table(held, SPECS["sources"]))
    unseen = (view_posterior.headline(judged),) if judged else ()
    lines = (*unseen, sentence(held), *_first(sound)) if len(held) else ("nothing to compare",)
    return Report.of("Sources", tables, lines)


def sentence(held: pd.DataFrame) -> str:
    """What a new source should expect: ``held`` by source."""
    of, inside = accuracy.summarise(held), accuracy.coverage(held)
    means = held["error"].abs().groupby(values(held, "publisher")).mean()
    said = (
        f"By the code of today, which was made with most of them in sight: half of {of.compared} runs within"
        f" {percent(of.median)} of what is measured, nine in ten within {percent(of.p90)}, {percent(float(means.mean()))} on"
        f" average over {len(means)} sources, the worst {percent(float(means.max()), 0)}"
    )
    if inside is not None:
        said += f"; {percent(inside.inside, 0)} of {of.compared} runs lie inside their 90 % interval"
    return f"{said}. Each source is judged by no run of its own."


def _first(looks: Sequence[Look]) -> tuple[str, ...]:
    if not looks:
        return ()
    errors = np.abs([each.error for each in looks])
    inside = [each.inside for each in looks if each.inside is not None]
    return (
        f"At the first look, before anything was changed for them, {len(looks)} runs of"
        f" {len({each.publisher for each in looks})} sources were off by {percent(float(np.median(errors)))} on the median"
        f" and {percent(float(errors.mean()))} on average, {percent(float(np.mean(inside)) if inside else None, 0)} of them"
        " inside the interval that was shipped then.",
    )


def _then_and_now(held: pd.DataFrame, looks: Sequence[Look]) -> Table:
    """A line a source of the looks, most first, and one of all: both times over the runs that were looked at."""
    now = held[held["run_id"].isin([each.run_id for each in looks])]
    of = values(now, "publisher")
    then = grouped((each.publisher, each) for each in looks)
    ordered = sorted(then.items(), key=lambda item: (-len(item[1]), item[0]))
    lines = [(name, *view_first_look.figures(mine)[:5], *_now(now[of == name])) for name, mine in ordered]
    if looks:
        lines.append(("all", *view_first_look.figures(looks)[:5], *_now(now)))
    return tabled("then_and_now", lines)


def _now(rows: pd.DataFrame) -> tuple[float | None, ...]:
    of, inside = accuracy.summarise(rows), accuracy.coverage(rows)
    return (of.compared, of.mape, of.median, of.bias, inside.inside if inside else None)
