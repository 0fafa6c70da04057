"""What ``projector plan`` shows: the four figures with their intervals, failures, power, more GPUs, what moves it most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any

from projector.cli import document, report
from projector.cli.inputs import Case
from projector.io.table import NONE, Column, Line, Table, percent, signed
from projector.plan.assumptions import WORDS, ends
from projector.plan.forecast import DAY, HOUR, Figures, Moved
from projector.plan.goodput import daly, young
from projector.plan.plan import Plan, Size
from projector.plan.price import Price

__all__ = ["as_document", "as_page"]

_TRILLION = 1e12
_ROWS = (
    ("days", "days"),
    ("gpu_hours", "GPU-hours"),
    ("mwh", "MWh at the site"),
    ("cost", "cost"),
    ("goodput", "goodput"),
    ("failures", "failures"),
)


def as_page(case: Case, made: Plan, price: Price | None) -> Iterator[Line | Table]:
    yield from report.head(case, made.made)
    yield _figures(made, price)
    yield from (Line(text) for text in (_step(made), _failures(made), _power(case, made)))
    yield _sizes(made)
    yield _moved(made)
    if price is None:
        yield Line("No money: --price gives the price of a GPU-hour; none is invented.", "dim")
    yield report.verdict(case, made.made)
    yield from report.remarks(case, made.made)


def _figures(made: Plan, price: Price | None) -> Table:
    f = made.forecast
    rows = [
        (_named(words, key, price), *(_number(getattr(each, key), key) for each in (f.middle, f.low, f.high)))
        for key, words in _ROWS
        if getattr(f.middle, key) is not None
    ]
    note = "5 to 95 % of draws over the ranges of all assumptions at once."
    if price is not None and price.source:
        note += f" Price: {price.source}."
    columns = (Column("", numeric=False), Column("middle"), Column("from"), Column("to"))
    title = f"{made.tokens / _TRILLION:g}T tokens"
    return Table(title=title, columns=columns, rows=tuple(rows), note=note)


def _named(words: str, key: str, price: Price | None) -> str:
    return f"{words} ({price.currency})" if key == "cost" and price is not None and price.currency else words


def _number(value: Any, key: str) -> str:
    if value is None or not abs(value) < float("inf"):
        return NONE
    if key == "goodput":
        return percent(float(value))
    return f"{value:,.1f}" if value < 1e3 else f"{value:,.0f}"


def _step(made: Plan) -> str:
    low, value, high = ends(made.ranges["step_seconds"])
    steps = made.tokens / made.made.resolved.workload.tokens_per_step
    return (
        f"Step: {value:.3f} s ({low:.3f} to {high:.3f}), {steps:,.0f} steps; projected {made.made.step_seconds:.3f} s"
    )


def _failures(made: Plan) -> str:
    m, s, save = made.forecast.middle, made.simulated, made.ranges["checkpoint_s"].value
    mean = m.between_failures_s
    return (
        f"Failures: one every {_time(mean)}; a save every {_time(m.interval_s)} of work (Young {_time(young(save, mean))}, "
        f"Daly {_time(daly(save, mean))}). Simulated goodput {percent(s.goodput, 2)} ({percent(s.low)} to {percent(s.high)} "
        f"by luck alone, {s.runs} runs), computed {percent(m.goodput, 2)}"
    )


def _time(seconds: float) -> str:
    if seconds >= 2 * DAY:
        return f"{seconds / DAY:.1f} days"
    return f"{seconds / HOUR:.1f} h" if seconds >= 2 * HOUR else f"{seconds / 60:.1f} min"


def _power(case: Case, made: Plan) -> str:
    r, megawatts = made.ranges, made.forecast.middle.kilowatts / 1e3
    return (
        f"Power: {case.cluster.gpu.tdp_watts:.0f} W rated a board × {r['server_over_boards']:g} for its server × "
        f"{r['power_share']:g} drawn × PUE {r['pue']:g}: {megawatts:,.2f} MW at the site, without switches between servers"
    )


def _sizes(made: Plan) -> Table:
    priced = made.forecast.middle.cost is not None
    columns = (
        Column("GPUs"),
        Column("batch", minor=3),
        Column("slowest chip", minor=4, help="time of a product on the slowest GPU over that on a usual one"),
        Column("step s", minor=2),
        Column("goodput"),
        Column("days"),
        Column("from", minor=1),
        Column("to", minor=1),
        Column("GPU-hours"),
        Column("MWh", minor=5),
        *((Column("cost", minor=1),) if priced else ()),
    )
    rows = [_size(size, priced) for size in made.sizes if size.forecast is not None]
    note = "The same layout with more replicas; where the batch has to grow with them, more tokens may be needed."
    last = made.sizes[-1]
    if last.refused:
        note += f" Not on {last.gpus:,}: {last.refused}."
    return Table(title="On more GPUs", columns=columns, rows=tuple(rows), note=note)


def _size(size: Size, priced: bool) -> tuple[str, ...]:
    assert size.made is not None
    assert size.forecast is not None
    middle, low, high = size.forecast.middle, size.forecast.low, size.forecast.high
    cells = (
        f"{size.gpus:,}",
        f"{size.made.resolved.workload.recipe.global_batch_size:,}",
        signed(size.slowest - 1.0),
        f"{size.made.step_seconds:.3f}",
        percent(middle.goodput),
        *(_number(each.days, "days") for each in (middle, low, high)),
        _number(middle.gpu_hours, "gpu_hours"),
        _number(middle.mwh, "mwh"),
    )
    return (*cells, _number(middle.cost, "cost")) if priced else cells


def _moved(made: Plan) -> Table:
    priced = made.forecast.middle.cost is not None
    columns = (
        Column("assumption", numeric=False),
        Column("value"),
        Column("range", minor=1),
        Column("days"),
        Column("MWh"),
        *((Column("cost"),) if priced else ()),
        Column("kind", numeric=False, minor=2),
    )
    rows = tuple(_one(each, priced) for each in made.forecast.moved if each.most > 0)
    note = "Change with one assumption at the ends of its range; --assume states other values, projector constants sources."
    return Table(title="What moves it most", columns=columns, rows=rows, note=note)


def _one(moved: Moved, priced: bool) -> tuple[str, ...]:
    low, value, high = ends(moved.range)
    pairs = [moved.days, moved.mwh, *([moved.cost] if priced and moved.cost else [])]
    cells = [" ".join(map(_change, pair)) if any(abs(end) > 1e-9 for end in pair) else NONE for pair in pairs]
    return (WORDS[moved.name], f"{value:.4g}", f"{low:.4g}–{high:.4g}", *cells, moved.range.kind)


def _change(value: float) -> str:
    if value == float("inf"):
        return "stops"
    return signed(value) if abs(value) > 1e-9 else "0"


def as_document(case: Case, made: Plan, price: Price | None) -> dict[str, Any]:
    """The whole of it as JSON values."""
    f, load = made.forecast, made.made.resolved.workload
    return document.head("plan", case, made.made) | {
        "tokens": made.tokens,
        "steps": made.tokens / load.tokens_per_step,
        "memory": {"status": made.made.memory.status, "fits": bool(made.made.memory.fits)},
        "currency": price.currency or None if price else None,
        "figures": {"middle": _plain(f.middle), "low": _plain(f.low), "high": _plain(f.high)},
        "simulated": asdict(made.simulated),
        "assumptions": [
            {
                "name": each.name,
                "value": each.range.value,
                "low": ends(each.range)[0],
                "high": ends(each.range)[2],
                "unit": each.range.unit,
                "kind": each.range.kind,
                "source": each.range.source,
                "change": {"days": each.days, "mwh": each.mwh, "cost": each.cost},
            }
            for each in f.moved
        ],
        "sizes": [
            {
                "gpus": size.gpus,
                "refused": size.refused or None,
                "slowest_chip": size.slowest,
                "step_seconds": size.made.step_seconds if size.made else None,
                "global_batch_size": size.made.resolved.workload.recipe.global_batch_size if size.made else None,
                "figures": {name: _plain(getattr(size.forecast, name)) for name in ("middle", "low", "high")}
                if size.forecast
                else None,
            }
            for size in made.sizes
        ],
    }


def _plain(figures: Figures) -> dict[str, Any]:
    return {field.name: getattr(figures, field.name) for field in fields(Figures)}
