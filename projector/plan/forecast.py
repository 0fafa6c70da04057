"""Turns a step and assumptions into days, GPU-hours, energy and money; with intervals, and the assumptions that move
them most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from statistics import NormalDist
from typing import Any

import numpy as np

from projector.dataclass import dataclass
from projector.errors import Unsupported
from projector.parameter import Parameter
from projector.plan import goodput
from projector.plan.assumptions import NODE, Ranges, ends

DAY, HOUR = timedelta(days=1).total_seconds(), timedelta(hours=1).total_seconds()
KILO = 1e3
_DRAWS = 2**14
_LEAST = 0.01  # goodput below which a run counts as standing still: it never ends
#: Already in the interval of the step: listed among what moves a plan, but not drawn again.
_IN_STEP = ("slowest_chip",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The run to forecast: ``tokens`` in all, ``tokens_per_step`` of the global batch; ``watts``: rated, of one board."""

    tokens: float
    tokens_per_step: float
    gpus: int
    watts: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of a whole run: numbers, or arrays of them. ``goodput``: steps that count over wall time without what
    ``run_over_steps`` adds; ``mwh``: at the site; ``cost``: None without a price; ``between_failures_s``,
    ``interval_s``: mean seconds between failures, and of work between saves."""

    days: Any
    gpu_hours: Any
    mwh: Any
    cost: Any
    goodput: Any
    failures: Any
    between_failures_s: Any
    interval_s: Any
    kilowatts: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What one assumption does at the ends of its range, all else in the middle: relative changes (low, high) of each
    figure."""

    name: str
    range: Parameter
    days: tuple[float, float]
    mwh: tuple[float, float]
    cost: tuple[float, float] | None

    @property
    def most(self) -> float:
        """Returns the largest relative change of any figure."""
        return max(abs(each) for pair in (self.days, self.mwh, self.cost or (0.0,)) for each in pair)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """``middle``: the figures with every assumption at its value; ``low``, ``high``: 5 and 95 % of seeded draws over
    all ranges at once; ``moved``: what each assumption moves, the largest first."""

    middle: Figures
    low: Figures
    high: Figures
    moved: tuple[Moved, ...]


def figures(run: Run, values: Mapping[str, Any]) -> Figures:
    """Returns the figures of ``run``. ``values``: ``step_seconds`` and the assumptions by name, all numbers or all
    arrays."""
    mean = DAY * NODE / (values["failures_per_node_day"] * run.gpus)
    save, restart = values["checkpoint_s"], values["restart_s"]
    between_saves = goodput.interval(save, mean)
    longer = goodput.stretch(between_saves, save, restart, mean)
    longer = longer + np.where(longer * _LEAST < 1.0, 0.0, np.inf)
    work = run.tokens / run.tokens_per_step * values["step_seconds"] * values.get("slowest_chip", 1.0)
    wall = work * values["run_over_steps"] * longer
    kilowatts = run.gpus * run.watts * values["power_share"] * values["server_over_boards"] * values["pue"] / KILO
    hours, energy = run.gpus * wall / HOUR, kilowatts * wall / HOUR
    prices = (("price_per_gpu_hour", hours), ("energy_price_per_kwh", energy))
    paid = [values[name] * amount for name, amount in prices if name in values]
    return Figures(
        days=wall / DAY,
        gpu_hours=hours,
        mwh=energy / KILO,
        cost=sum(paid) if paid else None,
        goodput=1.0 / longer,
        failures=wall / mean,
        between_failures_s=mean,
        interval_s=between_saves,
        kilowatts=kilowatts,
    )


def forecast(run: Run, ranges: Ranges, *, seed: int = 0) -> Forecast:
    """Returns the figures of ``run`` with intervals over ``ranges``. Raises :class:`Unsupported` where failures stop it."""
    values = {name: ends(each)[1] for name, each in ranges.items()}
    middle = figures(run, values)
    if not np.isfinite(middle.days):
        raise Unsupported(
            f"a failure every {middle.between_failures_s:.3g} s on {run.gpus} GPUs and {values['restart_s']:.3g} s to "
            "restart: the run gets nowhere"
        )
    rng = np.random.default_rng(seed)
    drawn = {name: _draws(ends(each), rng.standard_normal(_DRAWS)) for name, each in ranges.items()
             if name not in _IN_STEP}  # fmt: skip
    all_draws = figures(run, drawn)
    low, high = (_quantile(all_draws, at) for at in (goodput.TAIL, 1.0 - goodput.TAIL))
    return Forecast(middle=middle, low=low, high=high, moved=_moved(run, ranges, values, middle))


def _draws(of: Sequence[float], normal: np.ndarray) -> np.ndarray:
    """Returns draws whose median is the value, lognormal on each side of it: 5 % lie below the low end, 5 % above the
    high."""
    low, value, high = of
    unit = NormalDist().inv_cdf(1.0 - goodput.TAIL)
    below, above = np.log(value / low) / unit, np.log(high / value) / unit
    return np.asarray(value * np.exp(np.where(normal < 0, below, above) * normal))


def _quantile(all_draws: Figures, at: float) -> Figures:
    def one(value: Any) -> Any:
        return None if value is None else float(np.quantile(value, at, method="nearest"))

    return Figures(**{field.name: one(getattr(all_draws, field.name)) for field in fields(Figures)})


def _moved(run: Run, ranges: Ranges, values: Mapping[str, float], middle: Figures) -> tuple[Moved, ...]:
    changes = []
    for name, each in ranges.items():
        low, _, high = ends(each)
        there = [figures(run, {**values, name: end}) for end in (low, high)]

        def change(what: str, there: list[Figures] = there) -> tuple[float, float]:
            first, second = (float(getattr(end, what) / getattr(middle, what) - 1.0) for end in there)
            return first, second

        cost = None if middle.cost is None else change("cost")
        changes.append(Moved(name=name, range=each, days=change("days"), mwh=change("mwh"), cost=cost))
    return tuple(sorted(changes, key=lambda moved: -moved.most))
