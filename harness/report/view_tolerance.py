"""Measured peaks beside projected ones, verdicts with and without the tolerance that follows, and order, as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from harness.report.spec import tabled
from harness.report.table import Report, Table
from harness.score.memory_error import LEVEL, Judged, Order, Peak, Sized, held_out, orders, tolerances
from projector.io.rows import grouped
from projector.memory.tolerance import TOLERANCE


def build(found: Sequence[Peak], outcomes: Sequence[Judged], sized: Sequence[Sized]) -> Report:
    """Tolerances fitted and in use, error by cell, coverage of sources left out, verdicts before and after, order."""
    tables = (_fitted(found), _cells(found), _left_out(found), _verdicts(outcomes), _ordered(orders(sized)))
    return Report.of(f"Peak memory: {len(found)} measured peaks", tables)


def _fitted(found: Sequence[Peak]) -> Table:
    learnt = tolerances(found)
    rows = [
        (
            name,
            sum(peak.kind == name or name == "other" for peak in found),
            *(f"{those[name]:.3f}" if name in those else "" for those in (learnt, TOLERANCE)),
        )
        for name in sorted(learnt.keys() | TOLERANCE.keys())
    ]
    return tabled("tolerance", rows, level=f"{100 * LEVEL:.0f}")


def _cells(found: Sequence[Peak]) -> Table:
    by = grouped(((*peak.cell, peak.kind, peak.counts), peak) for peak in found)
    rows = []
    for key, mine in sorted(by.items()):
        size = np.abs([peak.error for peak in mine])
        figures = (float(np.median(size)), float(np.quantile(size, LEVEL)), float(size.max()))
        rows.append((*key, len(mine), *figures, mine[int(size.argmax())].run_id))
    return tabled("memory_cells", rows)


def _left_out(found: Sequence[Peak]) -> Table:
    made = held_out(found)
    made["all"] = sum(inside for inside, _ in made.values()), sum(peaks for _, peaks in made.values())
    return tabled(
        "left_out", [(name, peaks, inside / peaks if peaks else None) for name, (inside, peaks) in made.items()]
    )


def _verdicts(outcomes: Sequence[Judged]) -> Table:
    kinds: dict[str, Callable[[Judged], bool]] = {
        "without tolerance: right": lambda each: each.right,
        "without tolerance: wrong": lambda each: not each.right,
        "with tolerance: right": lambda each: each.right and not each.close,
        "with tolerance: wrong": lambda each: not each.right and not each.close,
        "too close to tell, the better guess right": lambda each: each.right and each.close,
        "too close to tell, the better guess wrong": lambda each: not each.right and each.close,
    }
    rows = []
    for name, those in kinds.items():
        ran = [each.ran for each in outcomes if those(each)]
        rows.append((name, sum(ran), len(ran) - sum(ran), len(ran)))
    return tabled("fit_verdicts", rows)


def _ordered(found: Sequence[Order]) -> Table:
    met = sum(each.agreement * each.pairs for each in found if each.agreement is not None)
    pairs, taus = sum(each.pairs for each in found), [each.tau for each in found if each.tau is not None]
    rows, tau = sum(each.rows for each in found), sum(taus) / len(taus) if taus else None
    whole = Order("all", rows, tau, met / pairs if pairs else None, pairs)
    return tabled("memory_order", [*found, whole] if found else [])
