"""Tabulates peaks of platforms: eight tables and a verdict in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from harness.evaluation.platforms import SLOW, Alike, Rated, best_of_gpus, peaks, unfair
from harness.report.said import said
from harness.report.spec import tabled
from harness.report.table import Report, Table, percent
from projector.io.rows import grouped
from projector.plan.price import Price

_DAY = 86_400
_COUNTS = "counts against the sparse peak"


def build(
    rows: Sequence[Rated], same: Sequence[Alike], more: Sequence[Mapping[str, Any]], price: Price | None
) -> Report:
    best = peaks(rows)
    beside = sorted(rows, key=lambda row: -row.tokens)
    tables = (
        tabled("peaks", best),
        tabled("best_platforms", best_of_gpus(best), of_best=lambda row: row.tokens / best[0].tokens),
        tabled("utilisation", best, counts=lambda row: _COUNTS if row.against_sparse else ""),
        _spread(rows),
        _daily(best, price),
        _more(best, more),
        tabled("beside_projection", beside, said=lambda r: "SLOW" if r.slow else r.reason, slow=percent(SLOW, 0)),
        _distrust(best, same),
    )
    title = f"Peaks of {len(rows)} measured rows on {len({row.run.gpu for row in rows})} platforms"
    return Report.of(title, tables, verdict(rows, same))


def verdict(rows: Sequence[Rated], same: Sequence[Alike]) -> list[str]:
    """Returns sentences: the best row, how far ahead it is and whether that may be said, which platform uses its device
    better, what to distrust."""
    best = peaks(rows)
    if not best:
        return ["No row states a rate and its number of GPUs."]
    first = best[0]
    sentences = said("peaks_best", {"first": first, "used": _utilisation_text(first)})
    for other in _others(best, first):
        reasons = ", ".join(unfair(first, other))
        fair = f"; not a fair comparison: {reasons}" if reasons else ", at the same work"
        item = {"other": other, "ahead": first.tokens / other.tokens, "fair": fair, "used": _utilisation_text(other)}
        sentences += said("peaks_other", item)
    if slow := sum(row.slow for row in rows):
        sentences += said("peaks_slow", {"slow": slow, "rows": len(rows), "least": SLOW})
    return [*sentences, *map(_alike_text, same)]


def _others(best: Iterable[Rated], first: Rated) -> list[Rated]:
    """Returns the best row of each other device: of the same model where the device has one."""
    by_gpu = grouped((row.run.gpu, row) for row in best if row.run.gpu != first.run.gpu)
    return [next((row for row in rows if row.model == first.model), rows[0]) for rows in by_gpu.values()]


def _utilisation_text(row: Rated) -> str:
    if row.utilisation is None or row.dense is None:
        return "its peak is not known"
    sparse = f" ({percent(row.stated)} in its source, of the sparse peak)" if row.against_sparse else ""
    return f"{percent(row.utilisation)} of its dense peak{sparse}"


def _alike_text(group: Alike) -> str:
    first = group.rows[0]
    names = ", ".join(dict.fromkeys(row.strategy for row in group.rows))
    where = f"{len(group.rows)} strategies of {first.model} on {first.run.gpu} ({names})"
    text = f"{where} differ by {percent(group.spread, 2)}: less than noise"
    if group.not_applied:
        return f"{text}, where projections differ by {percent(group.projected, 0)}: probably they were not applied."
    return f"{text}, they cannot be told apart."


def _spread(rows: Sequence[Rated]) -> Table:
    by_key = grouped((row.key, row.tokens) for row in rows)
    items = []
    for key, values in sorted(by_key.items(), key=lambda item: -max(item[1])):
        ends = np.quantile(values, (0, 0.25, 0.5, 0.75, 1))
        items.append((*key, len(values), *ends, ends[-1] / ends[0]))
    return tabled("spread", items)


def _daily(best: Sequence[Rated], price: Price | None) -> Table:
    def paid(row: Rated) -> float | None:
        hourly = price.gpu_hour(row.run.gpu) if price else None
        return hourly * 24 * row.run.gpus if hourly else None

    def bought(row: Rated) -> float | None:
        money = paid(row)
        return row.tokens * _DAY / money / 1e6 if money else None

    def samples(row: Rated) -> float | None:
        return row.tokens * _DAY / row.run.recipe.seq_length if row.run.recipe else None

    if price is None:
        note = "No money: --price gives the price of a GPU-hour; none is invented."
    else:
        silent = sorted({row.run.gpu for row in best if price.gpu_hour(row.run.gpu) is None})
        note = f"In {price.currency or 'the unit of the price'}: {price.source}." + (
            f" No price of {', '.join(silent)}." if silent else ""
        )
    billions = lambda row: row.tokens * _DAY / 1e9  # noqa: E731
    return tabled("daily", best, billions=billions, paid=paid, bought=bought, samples=samples, note=note)


def _more(best: Sequence[Rated], more: Sequence[Mapping[str, Any]]) -> Table:
    note = f"{best[0].model} on {best[0].run.gpu}, the batch growing with the GPUs." if best else ""
    return tabled("more_gpus", more, note=note, daily=lambda row: row["rate"] * _DAY / 1e9)


def _distrust(best: Sequence[Rated], same: Sequence[Alike]) -> Table:
    lines = [
        (f"{first.model}: {first.run.gpu} against {other.run.gpu}", "not fair: " + ", ".join(reasons))
        for i, first in enumerate(best)
        for other in best[i + 1 :]
        if other.run.gpu != first.run.gpu and other.model == first.model and (reasons := unfair(first, other))
    ]
    lines += [(f"{group.rows[0].model} on {group.rows[0].run.gpu}", _alike_text(group)) for group in same]
    return tabled("distrust", lines)
