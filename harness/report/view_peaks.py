"""Peaks of platforms as eight tables and a verdict in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from harness.evaluation.platforms import SLOW, Alike, Rated, Scaled, peaks, unfair
from harness.report.spec import number1
from harness.report.table import Cell, Report, Table, figure, listed, number, percent, text
from projector.plan.price import Price

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
    return Report.of(title, tables, verdict(rows, same))


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


def _whole(value: float) -> str:
    return f"{value:,.0f}"


_GPU, _MODEL = text("GPU", "run.gpu"), text("model", "model")
_WHO = (_GPU, _MODEL, text("strategy", "strategy", minor=3))
_TOKENS = figure("tokens/s", "tokens", _whole)
_UTILISATION = figure("of dense peak", "utilisation", percent)


def _tflops(*, minor: int = 0) -> Cell:
    return figure("TFLOP/s", lambda r: r.tflops * r.run.gpus if r.tflops else None, "{:,.1f}".format, minor=minor)


def _peaks(best: Sequence[Rated]) -> Table:
    made = (
        *_WHO,
        figure("GPUs", "run.gpus", minor=4),
        _TOKENS,
        figure("a GPU", "tgs", _whole),
        _tflops(minor=1),
        figure("of one GPU", "tflops", number1),
        _UTILISATION,
        figure("step s", "step_seconds", number, minor=2),
    )
    note = "TFLOP/s: 6 for each parameter that a token meets, without attention."
    return listed("Peaks by platform and model", best, made, note)


def _platforms(best: Sequence[Rated]) -> Table:
    first = {row.run.gpu: row for row in reversed(best)}
    ordered = sorted(first.values(), key=lambda row: -row.tokens)
    share = figure("of the best", lambda row: row.tokens / ordered[0].tokens, percent)
    return listed("Best of each platform", ordered, (*_WHO, _TOKENS, _tflops(), _UTILISATION, share))


def _utilisation(best: Sequence[Rated]) -> Table:
    made = (
        *_WHO,
        figure("dense peak", "dense", number1),
        figure("of it", "utilisation", percent),
        figure("sparse peak", "sparse", number1),
        figure("of it", lambda row: row.tflops / row.sparse if row.tflops and row.sparse else None, percent),
        figure("source says", "stated", percent),
        text("", lambda row: "counts against the sparse peak" if row.against_sparse else "", minor=1),
    )
    note = "TFLOP/s of one GPU at the row's precision. No training product reaches the sparse one."
    return listed("Utilisation", best, made, note)


def _spread(rows: Sequence[Rated]) -> Table:
    by_key: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        by_key[row.key].append(row.tokens)
    ranges = {"lowest": 0, "25 %": 1, "median": 1, "75 %": 1, "highest": 0}
    items = [
        {
            "key": key,
            "rows": len(values),
            **dict(zip(ranges, np.quantile(values, (0, 0.25, 0.5, 0.75, 1)), strict=True)),
        }
        for key, values in sorted(by_key.items(), key=lambda item: -max(item[1]))
    ]
    made = (
        text("GPU", lambda item: item["key"][0]),
        text("model", lambda item: item["key"][1]),
        figure("rows", "rows"),
        *(figure(title, title, _whole, minor=minor) for title, minor in ranges.items()),
        figure("ratio", lambda item: item["highest"] / item["lowest"], "{:.1f}".format),
    )
    return listed("Spread of configurations", items, made, "Tokens/s of all GPUs of a row.")


def _daily(best: Sequence[Rated], price: Price | None) -> Table:
    def paid(row: Rated) -> float | None:
        each = price.gpu_hour(row.run.gpu) if price else None
        return each * 24 * row.run.gpus if each else None

    def bought(row: Rated) -> float | None:
        money = paid(row)
        return row.tokens * _DAY / money / 1e6 if money else None

    made = (
        *(_GPU, _MODEL),
        figure("10⁹ tokens a day", lambda row: row.tokens * _DAY / 1e9, number),
        figure("samples a day", lambda r: r.tokens * _DAY / r.run.recipe.seq_length if r.run.recipe else None, _whole),
        figure("cost a day", paid, "{:,.2f}".format),
        figure("10⁶ tokens a unit", bought, number),
    )
    if price is None:
        note = "No money: --price gives the price of a GPU-hour; none is invented."
    else:
        silent = sorted({row.run.gpu for row in best if price.gpu_hour(row.run.gpu) is None})
        note = f"In {price.currency or 'the unit of the price'}: {price.source}." + (
            f" No price of {', '.join(silent)}." if silent else ""
        )
    return listed("A day at the peak", best, made, note)


def _more(best: Sequence[Rated], more: Sequence[Scaled]) -> Table:
    made = (
        figure("times", "times"),
        figure("GPUs", "gpus"),
        figure("tokens/s in proportion", "linear", _whole),
        figure("as projected", lambda each: each.projected or None, _whole),
        figure("efficiency", lambda each: each.projected / each.linear if each.projected else None, percent),
        figure("10⁹ tokens a day", lambda each: (each.projected or each.linear) * _DAY / 1e9, number1),
    )
    note = f"{best[0].model} on {best[0].run.gpu}, the batch growing with the GPUs." if best else ""
    return listed("The best on more GPUs", more, made, note)


def _projected(rows: Sequence[Rated]) -> Table:
    made = (
        text("row", "run.id"),
        *_WHO,
        figure("tokens/s/GPU", "tgs", _whole),
        figure("projected", lambda row: row.projected or None, _whole),
        figure("share", "share", percent),
        text("", lambda row: "SLOW" if row.slow else row.reason),
    )
    note = f"SLOW: less than {percent(SLOW, 0)} of what is projected."
    return listed("Beside the projection", sorted(rows, key=lambda row: -row.tokens), made, note)


def _distrust(best: Sequence[Rated], same: Sequence[Alike]) -> Table:
    found = [
        (f"{first.model}: {first.run.gpu} against {other.run.gpu}", "not fair: " + ", ".join(reasons))
        for i, first in enumerate(best)
        for other in best[i + 1 :]
        if other.run.gpu != first.run.gpu and other.model == first.model and (reasons := unfair(first, other))
    ]
    found += [(f"{each.rows[0].model} on {each.rows[0].run.gpu}", _told(each)) for each in same]
    return listed("Comparisons to distrust", found, (text("what", lambda f: f[0]), text("why", lambda f: f[1])))
