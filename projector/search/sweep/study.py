"""Finds the fastest point of a sweep for each model, system and number of GPUs, with its layout and its time by part."""

from __future__ import annotations

from typing import Any

from projector.expectation import Knowledge
from projector.search.sweep.grid import Grid, key_of
from projector.search.sweep.points import expected, explained

Frame = Any  # a pandas.DataFrame: the types of its columns are those of a file


def best(frame: Frame, grid: Grid, known: Knowledge) -> Frame:
    """Returns the fastest row for each model, system, factors and GPUs, with the step to expect by what is ``known``
    (``expected.middle``) and its interval. Points that were projected get what searched ones have: ``best.*`` and
    ``time.*``."""
    fine = frame[frame["status"] == "ok"]
    if fine.empty:
        return fine
    by = ["model", "system", *(name for name in frame if name.startswith("scale.")), "gpus"]
    rows = fine.loc[fine.groupby(by)["tgs"].idxmax()]
    wanted = {row["key"]: row.to_dict() for _, row in rows.iterrows()}
    results: dict[str, dict[str, Any]] = {}
    for point in grid.points():
        key = key_of(point)
        if key in wanted:
            row = wanted[key] if grid.search is not None else wanted[key] | explained(point)
            results[key] = row | expected(point, row, known)
            if len(results) == len(wanted):
                break
    more = [results.get(key, {}) for key in rows["key"]]
    return rows.assign(
        **{name: [each.get(name) for each in more] for name in dict.fromkeys(n for m in more for n in m)}
    )


def layout(row: Frame) -> dict[str, Any]:
    """Returns the fields of the layout of a row, whole numbers as such."""
    fields = {name[5:]: value for name, value in row.items() if name.startswith("best.") and value == value}
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in fields.items()
        if value is not None
    }
