"""Peaks of platforms as eight tables and a verdict in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from harness.evaluation.platforms import SLOW, Alike, Rated, Scaled, peaks, unfair
from harness.report.table import NONE, Column, Report, Table, number, percent
from projector.plan.price import Price

__all__ = ["build", "verdict"]

_DAY = 86_400


def build(rows: Sequence[Rated], same: Sequence[Alike], more: Sequence[Scaled], price: Price | None) -> Report:
    best = peaks(rows)
    tables = (
        _peaks(best),
        _platforms(best),
        _utilisation(best),
        _spread(rows),
        _daily(best, price),
        _more(best, more),
        _projected(rows),
        _distrust(best, same),
    )
    title = f"Peaks of {len(rows)} measured rows on {len({row.run.gpu for row in rows})} platforms"
    return Report(title=title, lines=tuple(verdict(rows, same)), tables=tuple(table for table in tables if table.rows))


def verdict(rows: Sequence[Rated], same: Sequence[Alike]) -> list[str]:
    """Sentences: the best, how far ahead and whether that may be said, who uses the device better, what to distrust."""
    best = peaks(rows)
    if not best:
        return ["No row states a rate and its number of GPUs."]
    first = best[0]
    found = [
        f"Best: {first.model} on {first.run.gpus} {first.run.gpu} ({first.strategy}): {first.tokens:,.0f} tokens/s, "
        f"{_used(first)}."
    ]
    for other in _others(best, first):
        ahead = f"{first.tokens / other.tokens:.2f} times {other.run.gpu}'s best of {other.model}"
        reasons = unfair(first, other)
        used = f"{other.run.gpu}: {_used(other)}"
        if reasons:
            found.append(f"{ahead}; not a fair comparison: {', '.join(reasons)}. {used}.")
        else:
            found.append(f"{ahead}, at the same work. {used}.")
    slow = sum(row.slow for row in rows)
    if slow:
        found.append(
            f"{slow} of {len(rows)} rows reach less than {percent(SLOW, 0)} of what is projected: find out why first."
        )
    return [*found, *map(_told, same)]


def _others(best: Iterable[Rated], first: Rated) -> list[Rated]:
    """The best of each other device: of the same model where it has one."""
    by_gpu: dict[str, list[Rated]] = defaultdict(list)
    for row in best:
        if row.run.gpu != first.run.gpu:
            by_gpu[row.run.gpu].append(row)
    return [next((row for row in rows if row.model == first.model), rows[0]) for rows in by_gpu.values()]


def _used(row: Rated) -> str:
    if row.utilisation is None or row.dense is None:
        return "its peak is not known"
    text = f"{percent(row.utilisation)} of its dense peak"
    if row.against_sparse:
        text += f" ({percent(row.stated)} in its source, of the sparse peak)"
    return text


def _told(each: Alike) -> str:
    first = each.rows[0]
    names = ", ".join(dict.fromkeys(row.strategy for row in each.rows))
    where = f"{len(each.rows)} strategies of {first.model} on {first.run.gpu} ({names})"
    text = f"{where} differ by {percent(each.spread, 2)}: less than noise"
    if each.not_applied:
        return f"{text}, where projections differ by {percent(each.projected, 0)}: probably they were not applied."
    return f"{text}, they cannot be told apart."


def _named(row: Rated) -> tuple[str, ...]:
    return row.run.gpu, row.model, row.strategy


_WHO = (Column("GPU", numeric=False), Column("model", numeric=False), Column("strategy", numeric=False, minor=3))


def _peaks(best: Sequence[Rated]) -> Table:
    titles = {"GPUs": 4, "tokens/s": 0, "a GPU": 0, "TFLOP/s": 1, "of one GPU": 0, "of dense peak": 0, "step s": 2}
    columns = (*_WHO, *(Column(title, minor=minor) for title, minor in titles.items()))
    rows = tuple(
        (
            *_named(row),
            str(row.run.gpus),
            f"{row.tokens:,.0f}",
            f"{row.tgs:,.0f}",
            f"{row.tflops * row.run.gpus:,.1f}" if row.tflops else NONE,
            number(row.tflops, 1),
            percent(row.utilisation),
            number(row.step_seconds),
        )
        for row in best
    )
    note = "TFLOP/s: 6 for each parameter that a token meets, without attention."
    return Table(title="Peaks by platform and model", columns=columns, rows=rows, note=note)


def _platforms(best: Sequence[Rated]) -> Table:
    columns = (*_WHO, Column("tokens/s"), Column("TFLOP/s"), Column("of dense peak"), Column("of the best"))
    first = {row.run.gpu: row for row in reversed(best)}
    ordered = sorted(first.values(), key=lambda row: -row.tokens)
    rows = tuple(
        (
            *_named(row),
            f"{row.tokens:,.0f}",
            f"{row.tflops * row.run.gpus:,.1f}" if row.tflops else NONE,
            percent(row.utilisation),
            percent(row.tokens / ordered[0].tokens),
        )
        for row in ordered
    )
    return Table(title="Best of each platform", columns=columns, rows=rows)


def _utilisation(best: Sequence[Rated]) -> Table:
    titles = ("dense peak", "of it", "sparse peak", "of it", "source says")
    columns = (*_WHO, *map(Column, titles), Column("", numeric=False, minor=1))
    rows = tuple(
        (
            *_named(row),
            number(row.dense, 1),
            percent(row.utilisation),
            number(row.sparse, 1),
            percent(row.tflops / row.sparse if row.tflops and row.sparse else None),
            percent(row.stated),
            "counts against the sparse peak" if row.against_sparse else "",
        )
        for row in best
    )
    note = "TFLOP/s of one GPU at the row's precision. No training product reaches the sparse one."
    return Table(title="Utilisation", columns=columns, rows=rows, note=note)


def _spread(rows: Sequence[Rated]) -> Table:
    titles = {"rows": 0, "lowest": 0, "25 %": 1, "median": 1, "75 %": 1, "highest": 0, "ratio": 0}
    columns = (*_WHO[:2], *(Column(title, minor=minor) for title, minor in titles.items()))
    by_key: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        by_key[row.key].append(row.tokens)
    made = []
    for key, values in sorted(by_key.items(), key=lambda item: -max(item[1])):
        quartiles = np.quantile(values, (0, 0.25, 0.5, 0.75, 1))
        made.append(
            (*key, str(len(values)), *(f"{value:,.0f}" for value in quartiles), f"{quartiles[-1] / quartiles[0]:.1f}")
        )
    return Table(
        title="Spread of configurations", columns=columns, rows=tuple(made), note="Tokens/s of all GPUs of a row."
    )


def _daily(best: Sequence[Rated], price: Price | None) -> Table:
    columns = (
        *_WHO[:2],
        Column("10⁹ tokens a day"),
        Column("samples a day"),
        Column("cost a day"),
        Column("10⁶ tokens a unit"),
    )
    made = []
    for row in best:
        day, each = row.tokens * _DAY, price.gpu_hour(row.run.gpu) if price else None
        paid = None if each is None else each * 24 * row.run.gpus
        samples = f"{day / row.run.recipe.seq_length:,.0f}" if row.run.recipe else NONE
        money = f"{paid:,.2f}" if paid else NONE
        made.append((*row.key, f"{day / 1e9:.2f}", samples, money, f"{day / paid / 1e6:.2f}" if paid else NONE))
    if price is None:
        note = "No money: --price gives the price of a GPU-hour; none is invented."
    else:
        silent = sorted({row.run.gpu for row in best if price.gpu_hour(row.run.gpu) is None})
        note = f"In {price.currency or 'the unit of the price'}: {price.source}." + (
            f" No price of {', '.join(silent)}." if silent else ""
        )
    return Table(title="A day at the peak", columns=columns, rows=tuple(made), note=note)


def _more(best: Sequence[Rated], more: Sequence[Scaled]) -> Table:
    columns = (
        Column("times"),
        Column("GPUs"),
        Column("tokens/s in proportion"),
        Column("as projected"),
        Column("efficiency"),
        Column("10⁹ tokens a day"),
    )
    made = tuple(
        (
            str(each.times),
            str(each.gpus),
            f"{each.linear:,.0f}",
            f"{each.projected:,.0f}" if each.projected else NONE,
            percent(each.projected / each.linear if each.projected else None),
            f"{(each.projected or each.linear) * _DAY / 1e9:.1f}",
        )
        for each in more
    )
    note = f"{best[0].model} on {best[0].run.gpu}, the batch growing with the GPUs." if best else ""
    return Table(title="The best on more GPUs", columns=columns, rows=made, note=note)


def _projected(rows: Sequence[Rated]) -> Table:
    columns = (
        Column("row", numeric=False),
        *_WHO,
        Column("tokens/s/GPU"),
        Column("projected"),
        Column("share"),
        Column("", numeric=False),
    )
    made = tuple(
        (
            row.run.id,
            *_named(row),
            f"{row.tgs:,.0f}",
            f"{row.projected:,.0f}" if row.projected else NONE,
            percent(row.share),
            "SLOW" if row.slow else row.reason,
        )
        for row in sorted(rows, key=lambda row: -row.tokens)
    )
    note = f"SLOW: less than {percent(SLOW, 0)} of what is projected."
    return Table(title="Beside the projection", columns=columns, rows=made, note=note)


def _distrust(best: Sequence[Rated], same: Sequence[Alike]) -> Table:
    columns = (Column("what", numeric=False), Column("why", numeric=False))
    made = [
        (f"{first.model}: {first.run.gpu} against {other.run.gpu}", "not fair: " + ", ".join(reasons))
        for i, first in enumerate(best)
        for other in best[i + 1 :]
        if other.run.gpu != first.run.gpu and other.model == first.model and (reasons := unfair(first, other))
    ]
    made += [(f"{each.rows[0].model} on {each.rows[0].run.gpu}", _told(each)) for each in same]
    return Table(title="Comparisons to distrust", columns=columns, rows=tuple(made))
