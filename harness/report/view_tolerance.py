"""Tabulates measured peaks beside projected ones, verdicts with and without the tolerance that follows, and order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from harness.report.spec import tabled
from harness.report.table import Report, Table
from harness.score.memory_error import LEVEL, MemoryOutcome, Order, Peak, Sized, held_out, orders, tolerances
from projector.io.rows import grouped
from projector.memory.tolerance import TOLERANCE


def build(found: Sequence[Peak], outcomes: Sequence[MemoryOutcome], sized: Sequence[Sized]) -> Report:
    """Tabulates tolerances fitted and in use, error by cell, coverage of sources left out, verdicts, order."""
    tables = (_fitted(found), _cells(found), _left_out(found), _verdicts(outcomes), _ordered(orders(sized)))
    return Report.of(f"Peak memory: {len(found)} measured peaks", tables)


def _fitted(found: Sequence[Peak]) -> Table:
    learnt = tolerances(found)
    rows = [
        (
            name,
            sum(peak.kind == name or name == "other" for peak in found),
            *(f"{values[name]:.3f}" if name in values else "" for values in (learnt, TOLERANCE)),
        )
        for name in sorted(learnt.keys() | TOLERANCE.keys())
    ]
    return tabled("tolerance", rows, level=f"{100 * LEVEL:.0f}")


def _cells(found: Sequence[Peak]) -> Table:
    groups = grouped(((*peak.cell, peak.kind, peak.counts), peak) for peak in found)
    rows = []
    for key, members in sorted(groups.items()):
        size = np.abs([peak.error for peak in members])
        figures = (float(np.median(size)), float(np.quantile(size, LEVEL)), float(size.max()))
        rows.append((*key, len(members), *figures, members[int(size.argmax())].run_id))
    return tabled("memory_cells", rows)


def _left_out(found: Sequence[Peak]) -> Table:
    by_source = held_out(found)
    by_source["all"] = sum(inside for inside, _ in by_source.values()), sum(peaks for _, peaks in by_source.values())
    return tabled(
        "left_out", [(name, peaks, inside / peaks if peaks else None) for name, (inside, peaks) in by_source.items()]
    )


def _verdicts(outcomes: Sequence[MemoryOutcome]) -> Table:
    kinds = (
        ("without tolerance:", outcomes),
        ("with tolerance:", [outcome for outcome in outcomes if not outcome.close]),
        ("too close to tell, the better guess", [outcome for outcome in outcomes if outcome.close]),
    )
    rows = []
    for (words, judged), (word, right) in product(kinds, (("right", True), ("wrong", False))):
        ran = [outcome.ran for outcome in judged if outcome.right is right]
        rows.append((f"{words} {word}", sum(ran), len(ran) - sum(ran), len(ran)))
    return tabled("fit_verdicts", rows)


def _ordered(found: Sequence[Order]) -> Table:
    met = sum(group.agreement * group.pairs for group in found if group.agreement is not None)
    pairs, taus = sum(group.pairs for group in found), [group.tau for group in found if group.tau is not None]
    rows, tau = sum(group.rows for group in found), sum(taus) / len(taus) if taus else None
    whole = Order("all", rows, tau, met / pairs if pairs else None, pairs)
    return tabled("memory_order", [*found, whole] if found else [])
