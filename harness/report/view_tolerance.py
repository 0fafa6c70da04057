"""Measured peaks beside projected ones, and verdicts with and without the tolerance that follows, as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from harness.report.table import Column, Report, Table, percent
from harness.score.memory_error import LEVEL, Judged, Peak, held_out, tolerances
from projector.memory.tolerance import TOLERANCE

__all__ = ["build"]


def build(found: Sequence[Peak], outcomes: Sequence[Judged]) -> Report:
    """Tolerances fitted and in use, error by cell, coverage of sources left out, verdicts before and after."""
    tables = (_fitted(found), _cells(found), _left_out(found), _verdicts(outcomes))
    return Report(title=f"Peak memory: {len(found)} measured peaks", tables=tuple(t for t in tables if t.rows))


def _fitted(found: Sequence[Peak]) -> Table:
    columns = (Column("memory managed by", False), Column("peaks"), Column("tolerance"), Column("in use"))
    learnt = tolerances(found)
    rows = tuple(
        (
            name,
            str(sum(peak.kind == name or name == "other" for peak in found)),
            f"{learnt[name]:.3f}" if name in learnt else "",
            f"{TOLERANCE[name]:.3f}" if name in TOLERANCE else "",
        )
        for name in sorted(learnt.keys() | TOLERANCE.keys())
    )
    note = (
        f"|ln(measured / projected)| that {100 * LEVEL:.0f} % of peaks stay within, conformal; every cell of source, GPU "
        "and model family weighs the same. other: all peaks, for what has too few of its own."
    )
    return Table(title="Tolerance", columns=columns, rows=rows, note=note)


def _cells(found: Sequence[Peak]) -> Table:
    columns = (
        *(Column(name, False) for name in ("source", "GPU", "family", "managed by", "counts")),
        *(Column(name) for name in ("peaks", "median", "90 %", "worst")),
        Column("worst row", False, minor=True),
    )
    rows = []
    for cell in sorted({(*peak.cell, peak.kind, peak.counts) for peak in found}):
        own = [peak for peak in found if (*peak.cell, peak.kind, peak.counts) == cell]
        size = np.abs([peak.error for peak in own])
        worst = own[int(size.argmax())]
        figures = (float(np.median(size)), float(np.quantile(size, LEVEL)), abs(worst.error))
        rows.append((*cell, str(len(own)), *(f"{figure:.3f}" for figure in figures), worst.run_id))
    return Table(title="Error by cell, |ln(measured / projected)|", columns=columns, rows=tuple(rows))


def _left_out(found: Sequence[Peak]) -> Table:
    columns = (Column("source", False), Column("peaks"), Column("inside"))
    made = held_out(found)
    rows = [(name, str(whole), percent(inside / whole)) for name, (inside, whole) in made.items()]
    inside, whole = (sum(each[i] for each in made.values()) for i in (0, 1))
    rows.append(("all", str(whole), percent(inside / whole if whole else None)))
    note = "Peaks within the tolerance that all other sources give."
    return Table(title="Coverage of sources left out", columns=columns, rows=tuple(rows), note=note)


def _verdicts(outcomes: Sequence[Judged]) -> Table:
    def count(those: Callable[[Judged], bool]) -> tuple[str, str, str]:
        own = [each for each in outcomes if those(each)]
        ran = sum(each.ran for each in own)
        return str(ran), str(len(own) - ran), str(len(own))

    kinds: tuple[tuple[str, Callable[[Judged], bool]], ...] = (
        ("without tolerance: right", lambda each: each.right),
        ("without tolerance: wrong", lambda each: not each.right),
        ("with tolerance: right", lambda each: each.right and not each.close),
        ("with tolerance: wrong", lambda each: not each.right and not each.close),
        ("too close to tell, the better guess right", lambda each: each.right and each.close),
        ("too close to tell, the better guess wrong", lambda each: not each.right and each.close),
    )
    columns = (Column("verdict", False), Column("ran"), Column("out of memory"), Column("all"))
    rows = tuple((name, *count(those)) for name, those in kinds)
    return Table(title="Does it fit?", columns=columns, rows=rows)
