"""Measured peaks beside projected ones, verdicts with and without the tolerance that follows, and order, as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.report.table import Column, Report, Table, figure, listed, number, percent, text
from harness.score.memory_error import LEVEL, Judged, Order, Peak, Sized, held_out, orders, tolerances
from projector.memory.tolerance import TOLERANCE


def build(found: Sequence[Peak], outcomes: Sequence[Judged], sized: Sequence[Sized]) -> Report:
    """Tolerances fitted and in use, error by cell, coverage of sources left out, verdicts before and after, order."""
    tables = (_fitted(found), _cells(found), _left_out(found), _verdicts(outcomes), _ordered(orders(sized)))
    return Report.of(f"Peak memory: {len(found)} measured peaks", tables)


def _fitted(found: Sequence[Peak]) -> Table:
    learnt = tolerances(found)
    made = (
        text("memory managed by", str),
        figure("peaks", lambda name: sum(peak.kind == name or name == "other" for peak in found)),
        figure("tolerance", lambda name: f"{learnt[name]:.3f}" if name in learnt else ""),
        figure("in use", lambda name: f"{TOLERANCE[name]:.3f}" if name in TOLERANCE else ""),
    )
    note = (
        f"|ln(measured / projected)| that {100 * LEVEL:.0f} % of peaks stay within, conformal, of all sources but the "
        "oddest; a source weighs as many of its peaks as there are, up to ten. other: all peaks, for what has too few of "
        "its own."
    )
    return listed("Tolerance", sorted(learnt.keys() | TOLERANCE.keys()), made, note)


def _cells(found: Sequence[Peak]) -> Table:
    by: dict[tuple[str, ...], list[Peak]] = {}
    for peak in found:
        by.setdefault((*peak.cell, peak.kind, peak.counts), []).append(peak)

    def size(item: tuple[tuple[str, ...], list[Peak]]) -> NDArray[np.float64]:
        return np.abs([peak.error for peak in item[1]])

    names = ("source", "GPU", "family", "managed by", "counts")
    made = (
        *(text(name, _part(i)) for i, name in enumerate(names)),
        figure("peaks", lambda item: len(item[1])),
        figure("median", lambda item: f"{np.median(size(item)):.3f}"),
        figure("90 %", lambda item: f"{np.quantile(size(item), LEVEL):.3f}"),
        figure("worst", lambda item: f"{size(item).max():.3f}"),
        text("worst row", lambda item: item[1][int(size(item).argmax())].run_id, minor=1),
    )
    return listed("Error by cell, |ln(measured / projected)|", sorted(by.items(), key=lambda item: item[0]), made)


def _part(i: int) -> Callable[[Any], str]:
    return lambda item: str(item[0][i])


def _left_out(found: Sequence[Peak]) -> Table:
    made = held_out(found)
    whole = tuple(sum(each[i] for each in made.values()) for i in (0, 1))
    columns = (
        text("source", lambda item: item[0]),
        figure("peaks", lambda item: item[1][1]),
        figure("inside", lambda item: percent(item[1][0] / item[1][1] if item[1][1] else None)),
    )
    note = "Peaks within the tolerance that all other sources give."
    return listed("Coverage of sources left out", [*made.items(), ("all", whole)], columns, note)


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


def _ordered(found: Sequence[Order]) -> Table:
    met = sum(each.agreement * each.pairs for each in found if each.agreement is not None)
    pairs, taus = sum(each.pairs for each in found), [each.tau for each in found if each.tau is not None]
    whole = Order(
        "all",
        sum(each.rows for each in found),
        sum(taus) / len(taus) if taus else None,
        met / pairs if pairs else None,
        pairs,
    )
    columns = (
        text("group", lambda each: each.group),
        figure("peaks", lambda each: each.rows),
        figure("tau-b", lambda each: number(each.tau, 2)),
        figure("pairs", lambda each: each.pairs),
        figure("in order", lambda each: percent(each.agreement)),
    )
    note = "Which of two configurations needs more. all: tau-b is the mean over groups, pairs are pooled."
    return listed("Order of memory within groups", [*found, whole] if found else [], columns, note)
