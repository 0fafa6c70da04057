"""First looks by publisher, and apart from them those at figures that their own sources doubt."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from harness.evaluation.first_look import Look
from harness.report import view_rows
from harness.report.spec import tabled
from harness.report.table import Report, Table


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
    names = sorted({key(each) for each in looks})
    rows = [(name, *figures([each for each in looks if key(each) == name])) for name in names]
    rows += [("all", *figures(looks))] if looks else []
    return tabled("first_looks", rows, title=title, word=word)


def figures(looks: Sequence[Look]) -> tuple[float | None, ...]:
    """Of some looks: how many, mean and median |error|, bias, share inside, mean |error| of what was expected."""
    errors = np.array([each.error for each in looks])
    inside = [each.inside for each in looks if each.inside is not None]
    middle = [abs(each.expected / each.measured - 1.0) for each in looks if each.expected is not None]
    size = np.abs(errors)
    return (len(looks), _mean(size), float(np.median(size)), _mean(errors), _mean(inside), _mean(middle))


def _mean(values: Sequence[float] | np.ndarray) -> float | None:
    return float(np.mean(values)) if len(values) else None
