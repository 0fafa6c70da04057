"""Shows a plan: the four figures with their intervals, failures, power, more GPUs, what moves it most."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from projector.cli import document, report
from projector.cli.expected import expectation, sources
from projector.cli.inputs import Case
from projector.cli.tables import tabled
from projector.io.table import NONE, Line, Table, percent, signed, values
from projector.plan.assumptions import WORDS, ends
from projector.plan.forecast import DAY, HOUR, Figures, Forecast, Moved
from projector.plan.goodput import daly, young
from projector.plan.plan import Plan, Size
from projector.plan.price import Price

_SUFFIXES = (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3))
_FIGURES = ("days", "gpu_hours", "mwh", "cost", "goodput", "failures")
_TITLES = {"gpu_hours": "GPU-hours", "mwh": "MWh at the site"}  # of figures that have another name


def as_page(case: Case, plan: Plan, price: Price | None) -> Iterator[Line | Table]:
    yield from report.head(case, plan.made)
    yield report.verdict(case, plan.made)
    yield _figure_table(plan, price)
    yield from (Line(text) for text in (_step(case, plan), _failures(plan), _power(case, plan)))
    yield _size_table(plan)
    yield _sensitivities(plan)
    if price is None:
        yield Line("No money: --price gives the price of a GPU-hour; none is invented.", "dim")
    yield from report.remarks(case, plan.made)


def _figure_table(plan: Plan, price: Price | None) -> Table:
    (unit, factor), currency = _length_unit(plan), f" ({price.currency})" if price and price.currency else ""
    titles = {**_TITLES, "days": unit, "cost": f"cost{currency}"}

    def shown(figures: Figures) -> Callable[[str], str]:
        return lambda key: _number(getattr(figures, key) * (factor if key == "days" else 1.0), key)

    source = f" Price: {price.source}." if price is not None and price.source else ""
    stated = (key for key in _FIGURES if getattr(plan.forecast.middle, key) is not None)
    return tabled(
        "plan",
        stated,
        tokens=tokens(plan.tokens),
        source=source,
        named=lambda key: titles.get(key, key),
        **{f"at_{end}": shown(figures) for end, figures in values(plan.forecast, "middle low high").items()},
    )


def _number(value: Any, key: str = "") -> str:
    if value is None or not abs(value) < float("inf"):
        return NONE
    if key == "goodput":
        return percent(float(value))
    if 0.0 < abs(value) < 1.0:
        return f"{value:.2g}" if abs(value) >= 1e-4 else "< 0.0001"
    return f"{value:,.1f}" if value < 1e3 else f"{value:,.0f}"


def tokens(number: float) -> str:
    """Returns ``14.8T``, ``16.4M``: tokens with the largest suffix that leaves a number of one or more."""
    suffix, size = next(((each, size) for each, size in _SUFFIXES if number >= size), ("", 1.0))
    return f"{number / size:.4g}{suffix}"


def _length_unit(plan: Plan) -> tuple[str, float]:
    """Returns the unit of the run's length and how many of it a day has: smaller ones for a run of less than two."""
    days = plan.forecast.middle.days
    return ("days", 1.0) if days >= 2.0 else ("hours", 24.0) if days >= 2.0 / 24.0 else ("minutes", 24.0 * 60.0)


def lasting(plan: Plan) -> str:
    """Returns the length of the run as ``12.3 days (10.1 to 15.8)``."""
    unit, size = _length_unit(plan)
    f = plan.forecast
    return f"{_number(size * f.middle.days)} {unit} ({_number(size * f.low.days)} to {_number(size * f.high.days)})"


def _step(case: Case, plan: Plan) -> str:
    low, value, high = ends(plan.ranges["step_seconds"])
    known = expectation(case, plan.made)
    steps = plan.tokens / plan.made.resolved.workload.tokens_per_step
    step = (
        f"Step: {value:.3f} s ({low:.3f} to {high:.3f}), {steps:,.0f} steps; projected {plan.made.step_seconds:.3f} s"
    )
    unusual = f". Unusual: {known.unusual}" if known.unusual else ""
    return f"{step}; {sources(known)}, from {known.rests_on}{unusual}"


def _failures(plan: Plan) -> str:
    m, s, save = plan.forecast.middle, plan.simulated, plan.ranges["checkpoint_s"].value
    mean = m.between_failures_s
    return (
        f"Failures: one every {_time(mean)}; a save every {_time(m.interval_s)} of work (Young {_time(young(save, mean))}, "
        f"Daly {_time(daly(save, mean))}). Simulated goodput {percent(s.goodput, 2)} ({percent(s.low)} to {percent(s.high)} "
        f"by luck alone, {s.runs} runs), computed {percent(m.goodput, 2)}"
    )


def _time(seconds: float) -> str:
    if seconds >= 2 * DAY:
        return f"{seconds / DAY:.1f} days"
    if seconds >= 2 * HOUR:
        return f"{seconds / HOUR:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 120 else f"{seconds:.1f} s"


def _power(case: Case, plan: Plan) -> str:
    r, megawatts = plan.ranges, plan.forecast.middle.kilowatts / 1e3
    return (
        f"Power: {case.cluster.gpu.tdp_watts:.0f} W rated a board × {r['server_over_boards']:g} for its server × "
        f"{r['power_share']:g} drawn × PUE {r['pue']:g}: {megawatts:,.2f} MW at the site, without switches between servers"
    )


def _size_table(plan: Plan) -> Table:
    unit, factor = _length_unit(plan)
    last = plan.sizes[-1]
    return tabled(
        "sizes",
        (size for size in plan.sizes if size.forecast is not None),
        unit=unit,
        refused=f" Not on {last.gpus:,}: {last.refused}." if last.refused else "",
        slower=lambda size: size.slowest - 1.0,
        length=lambda days: _number(factor * days),
        number=_number,
        priced=_priced(plan),
    )


def _priced(plan: Plan) -> bool:
    return plan.forecast.middle.cost is not None


def _sensitivities(plan: Plan) -> Table:
    return tabled(
        "sensitivities",
        (each for each in plan.forecast.moved if each.most > 0),
        worded=WORDS.__getitem__,
        middle=lambda range: f"{ends(range)[1]:.4g}",
        ends=lambda range: "{:.4g}–{:.4g}".format(*ends(range)[::2]),
        changes=_changes,
        priced=_priced(plan),
    )


def _changes(pair: Sequence[float]) -> str:
    words = ["stops" if end == float("inf") else signed(end) if abs(end) > 1e-9 else "0" for end in pair]
    return " ".join(words) if words != ["0", "0"] else NONE


def as_document(case: Case, plan: Plan, price: Price | None) -> dict[str, Any]:
    """Returns all figures of the plan as JSON values."""
    forecast, load = plan.forecast, plan.made.resolved.workload
    return document.head("plan", case, plan.made) | {
        "tokens": plan.tokens,
        "steps": plan.tokens / load.tokens_per_step,
        "memory": {"status": plan.made.memory.status, "fits": bool(plan.made.memory.fits)},
        "currency": price.currency or None if price else None,
        "figures": triple(forecast),
        "simulated": asdict(plan.simulated),
        "assumptions": [_assumption(each) for each in forecast.moved],
        "sizes": [_size(size) for size in plan.sizes],
    }


def triple(forecast: Forecast) -> dict[str, dict[str, Any]]:
    """Returns the middle of all figures and the ends of their interval as JSON values."""
    return {name: asdict(figures) for name, figures in values(forecast, "middle low high").items()}


def _assumption(moved: Moved) -> dict[str, Any]:
    low, _, high = ends(moved.range)
    told, rest = values(moved, "name value=range.value"), values(moved.range, "unit kind source")
    return {**told, "low": low, "high": high, **rest, "change": values(moved, "days mwh cost")}


def _size(size: Size) -> dict[str, Any]:
    batch = "global_batch_size=made.resolved.workload.recipe.global_batch_size"
    step = values(size, f"slowest_chip=slowest step_seconds=made.step_seconds {batch}")
    figures = size.forecast and triple(size.forecast)
    return {"gpus": size.gpus, "refused": size.refused or None, **step, "figures": figures}
