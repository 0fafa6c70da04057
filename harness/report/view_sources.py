"""The reports on first looks, and on sources: the error that a new one should expect, each judged as if it had never been
seen, and at the first look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from harness.calibrate.learn import LeftOutRow
from harness.contracts import frame
from harness.contracts.results import Evaluation
from harness.evaluation.first_look import Look
from harness.report import view_posterior, view_rows
from harness.report.said import said
from harness.report.spec import SPECS, table, tabled, values
from harness.report.table import Report, Table
from harness.score import accuracy
from projector.io.rows import grouped

if TYPE_CHECKING:
    import pandas as pd


def build(evaluation: Evaluation, looks: Sequence[Look], predictor: str, judged: Sequence[LeftOutRow] = ()) -> Report:
    """Returns the report of ``predictor``'s rows, each corrected by no row of its source; ``looks``: at runs that were
    new; ``judged``: rows judged by other sources alone."""
    rows = frame.part(evaluation.once, predictor=predictor, fit="heldout")
    held = rows[rows["error"].notna()]
    sound = [look for look in looks if not look.doubt]
    tables = (_then_and_now(held, sound), table(held, SPECS["sources"]))
    unseen = (view_posterior.headline(judged),) if judged else ()
    lines = (*unseen, sentence(held), *_at_first_look(sound)) if len(held) else ("nothing to compare",)
    return Report.of("Sources", tables, lines)


def sentence(held: pd.DataFrame) -> str:
    """Returns the error that a new source should expect in one sentence: ``held`` by source."""
    of, inside = accuracy.summarise(held), accuracy.coverage(held)
    means = held["error"].abs().groupby(values(held, "publisher")).mean()
    item = {"of": of, "inside": inside, "mean": float(means.mean()), "sources": len(means), "worst": float(means.max())}
    return "".join(said("sources", item))


def _at_first_look(looks: Sequence[Look]) -> list[str]:
    sources = len({look.publisher for look in looks})
    return said("first_look", {"of": _figures(looks), "sources": sources}) if looks else []


def _then_and_now(held: pd.DataFrame, looks: Sequence[Look]) -> Table:
    """Returns a line a source of the looks, most first, and one for all: both times over the runs looked at."""
    now = held[held["run_id"].isin([look.run_id for look in looks])]
    of = values(now, "publisher")
    then = grouped((look.publisher, look) for look in looks)
    ordered = sorted(then.items(), key=lambda item: (-len(item[1]), item[0]))
    lines = [(name, *_figures(group)[:5], *_now(now[of == name])) for name, group in ordered]
    if looks:
        lines.append(("all", *_figures(looks)[:5], *_now(now)))
    return tabled("then_and_now", lines)


def _now(rows: pd.DataFrame) -> tuple[float | None, ...]:
    of, inside = accuracy.summarise(rows), accuracy.coverage(rows)
    return (of.compared, of.mape, of.median, of.bias, inside.inside if inside else None)


def first_looks(looks: Sequence[Look]) -> Report:
    """Returns the report on first looks by publisher, framework and GPU, apart from those that their sources doubt."""
    sound = [look for look in looks if not look.doubt]
    tables = (
        _by("By source", "source", sound, lambda look: look.publisher),
        _by("By framework", "framework", sound, lambda look: look.framework),
        _by("By GPU", "GPU", sound, lambda look: look.gpu),
        view_rows.doubted(look for look in looks if look.doubt),
    )
    title = f"First projection of {len(sound)} runs of {len({look.publisher for look in sound})} sources"
    return Report.of(title, tables)


def _by(title: str, word: str, looks: Sequence[Look], key: Callable[[Look], str]) -> Table:
    names = sorted({key(look) for look in looks})
    rows = [(name, *_figures([look for look in looks if key(look) == name])) for name in names]
    rows += [("all", *_figures(looks))] if looks else []
    return tabled("first_looks", rows, title=title, word=word)


def _figures(looks: Sequence[Look]) -> tuple[float | None, ...]:
    """Returns the number of looks, mean and median |error|, bias, share inside, mean |error| of the expected rate."""
    errors = np.array([look.error for look in looks])
    inside = [look.inside for look in looks if look.inside is not None]
    middle = [abs(look.expected / look.measured - 1.0) for look in looks if look.expected is not None]
    size = np.abs(errors)
    return (len(looks), _mean(size), float(np.median(size)), _mean(errors), _mean(inside), _mean(middle))


def _mean(values: Sequence[float] | np.ndarray) -> float | None:
    return float(np.mean(values)) if len(values) else None
