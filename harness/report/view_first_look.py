"""First looks by publisher, and apart from them those at figures that their own sources doubt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from harness.evaluation.first_look import Look
from harness.report import view_rows
from harness.report.table import Column, Report, Table, percent, signed


def build(looks: Sequence[Look]) -> Report:
    sound = [each for each in looks if not each.doubt]
    tables = (
        _table("By source", "source", sound, lambda each: each.publisher),
        _table("By framework", "framework", sound, lambda each: each.framework),
        _table("By GPU", "GPU", sound, lambda each: each.gpu),
        view_rows.doubted(each for each in looks if each.doubt),
    )
    title = f"First projection of {len(sound)} runs of {len({each.publisher for each in sound})} sources"
    return Report.of(title, tables)


def _table(title: str, word: str, looks: Sequence[Look], key: Callable[[Look], str]) -> Table:
    columns = (
        Column(word, False),
        *(Column(name) for name in ("rows", "mean", "median", "bias", "inside", "expected")),
    )
    names = sorted({key(each) for each in looks})
    rows = [(name, *figures([each for each in looks if key(each) == name])) for name in names]
    if looks:
        rows.append(("all", *figures(looks)))
    note = (
        "mean, median: of |projected / measured − 1| before any correction. inside: measured within the 90 % interval of "
        "what was expected then; expected: mean |error| of its middle."
    )
    return Table(title=title, columns=columns, rows=tuple(rows), note=note)


def figures(looks: Sequence[Look]) -> tuple[str, ...]:
    """Of some looks, in words: how many, mean and median |error|, bias, share inside, mean |error| of what was expected."""
    errors = np.array([each.error for each in looks])
    inside = [each.inside for each in looks if each.inside is not None]
    middle = [abs(each.expected / each.measured - 1.0) for each in looks if each.expected is not None]
    return (
        str(len(looks)),
        percent(_mean(np.abs(errors))),
        percent(float(np.median(np.abs(errors)))),
        signed(_mean(errors)),
        percent(_mean(inside), 0),
        percent(_mean(middle)),
    )


def _mean(values: Iterable[float]) -> float | None:
    made = list(values)
    return float(np.mean(made)) if made else None
