"""Tabulates first looks by publisher, and separately the looks at figures that their own sources doubt."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from harness.evaluation.first_look import Look
from harness.report import view_rows
from harness.report.spec import tabled
from harness.report.table import Report, Table


def build(looks: Sequence[Look]) -> Report:
    sound = [look for look in looks if not look.doubt]
    tables = (
        _table("By source", "source", sound, lambda look: look.publisher),
        _table("By framework", "framework", sound, lambda look: look.framework),
        _table("By GPU", "GPU", sound, lambda look: look.gpu),
        view_rows.doubted(look for look in looks if look.doubt),
    )
    title = f"First projection of {len(sound)} runs of {len({look.publisher for look in sound})} sources"
    return Report.of(title, tables)


def _table(title: str, word: str, looks: Sequence[Look], key: Callable[[Look], str]) -> Table:
    names = sorted({key(look) for look in looks})
    rows = [(name, *figures([look for look in looks if key(look) == name])) for name in names]
    rows += [("all", *figures(looks))] if looks else []
    return tabled("first_looks", rows, title=title, word=word)


def figures(looks: Sequence[Look]) -> tuple[float | None, ...]:
    """Returns the number of looks, mean and median |error|, bias, share inside, mean |error| of the expected rate."""
    errors = np.array([look.error for look in looks])
    inside = [look.inside for look in looks if look.inside is not None]
    middle = [abs(look.expected / look.measured - 1.0) for look in looks if look.expected is not None]
    size = np.abs(errors)
    return (len(looks), _mean(size), float(np.median(size)), _mean(errors), _mean(inside), _mean(middle))


def _mean(values: Sequence[float] | np.ndarray) -> float | None:
    return float(np.mean(values)) if len(values) else None
