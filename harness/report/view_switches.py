"""The report on switches: what each gains, measured and projected, as tables and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.contracts.results import Evaluation
from harness.report.plot import BLUE, GREY, VERMILION, blank, plain
from harness.report.table import NONE, Column, Report, Table
from harness.score.scaling import GOAL, Series, scaling, within
from harness.score.switches import REAL, Pair, Step, Switch, ladders, pairs, sign_share, switches

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["build", "plot"]

_LONGEST = 28


def build(evaluation: Evaluation, predictor: str) -> tuple[Report, list[Pair]]:
    """The report on ``predictor``'s uncalibrated projections, and the pairs that it is made of."""
    rows = [r for r in evaluation.unique_rows if r.predictor == predictor and r.fit == "uncalibrated"]
    found = pairs(rows, evaluation.facts)
    summaries = switches(found)
    grown, climbed = scaling(rows, evaluation.facts), ladders(rows, evaluation.facts)
    whole, macro = sign_share(summaries)
    lines = (
        f"{sum(p.stated for p in found)} pairs of measured runs differ in one recipe field; of the "
        f"{sum(s.real for s in summaries if s.stated)} with a measured "
        f"gain beyond {100 * REAL:.0f} %, {_share(whole)} are projected with the right sign ({_share(macro)} as a mean over "
        "switches)",
        *_efficiency(grown),
    )
    tables = (
        _by_switch("By recipe field", [s for s in summaries if s.stated]),
        _by_switch("Switches that no recipe field holds", [s for s in summaries if not s.stated]),
        *((_by_step(climbed),) if climbed else ()),
        *((_by_size(grown),) if grown else ()),
        _by_pair([p for p in found if p.stated]),
    )
    return Report(title="Switches", lines=lines, tables=tables), found


def _share(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f} %"


def _by_switch(title: str, summaries: Sequence[Switch]) -> Table:
    columns = ("Switch", "pairs", "gain > 2 %", "right sign", "mean |ln error|", "mean ln error")
    return Table(
        title=title,
        columns=tuple(Column(name, numeric=i > 0) for i, name in enumerate(columns)),
        rows=tuple(
            (s.name, str(s.pairs), str(s.real), str(s.right) if s.real else NONE, f"{s.spread:.3f}", f"{s.bias:+.3f}")
            for s in summaries
        ),
        note="ln error: of the projected over the measured gain",
    )


def _efficiency(grown: Sequence[Series]) -> tuple[str, ...]:
    good, points = within(grown)
    if not points:
        return ()
    return (
        f"{len(grown)} jobs were measured on several numbers of GPUs: at {good} of {points} sizes beyond the smallest the "
        f"projected efficiency is within {100 * GOAL:.0f} % of the measured one",
    )


def _by_size(grown: Sequence[Series]) -> Table:
    columns = ("Source", "GPU", "job", "GPUs", "to", "measured efficiency", "projected efficiency", "error")
    return Table(
        title="Scaling",
        columns=tuple(Column(title, numeric=i > 2) for i, title in enumerate(columns)),
        rows=tuple(
            (
                _short(series.origin),
                series.gpu,
                f"{point.model}, {series.settings}",
                str(series.smallest),
                str(point.gpus),
                f"{point.measured:.3f}",
                f"{point.projected:.3f}",
                f"{100 * point.error:+.1f} %{' ✗' if abs(point.error) > GOAL else ''}",
            )
            for series in grown
            for point in series.points
        ),
        note="efficiency: FLOP/s of the model on one GPU over those at the smallest size of the series; "
        f"✗: projected beyond {100 * GOAL:.0f} % of the measured one",
    )


def _by_step(found: Sequence[Step]) -> Table:
    columns = ("Ladder", "changed", "measured gain", "projected gain")
    return Table(
        title="Ladders",
        columns=tuple(Column(title, numeric=title.endswith("gain")) for title in columns),
        rows=tuple(
            (
                s.group,
                ", ".join(s.changed),
                f"{s.measured:.3f}",
                f"{s.projected:.3f}{' ✗' if s.real and not s.right else ''}",
            )
            for s in found
        ),
        note="each run keeps what the runs before it changed",
    )


def _by_pair(found: Sequence[Pair]) -> Table:
    columns = ("Switch", "from", "to", "measured gain", "projected gain", "first run", "second run")
    return Table(
        title="Pairs",
        columns=tuple(Column(title, numeric=title.endswith("gain")) for title in columns),
        rows=tuple(
            (
                p.switch,
                _short(p.before),
                _short(p.after),
                f"{p.measured:.3f}",
                f"{p.projected:.3f}{' ✗' if p.real and not p.right else ''}",
                p.first,
                p.second,
            )
            for p in found
        ),
        note=f"✗: the sign of a measured gain beyond {100 * REAL:.0f} % is projected wrong",
    )


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def plot(found: Sequence[Pair]) -> Figure | None:
    """Projected over measured gain of every pair, a row a switch. None: no pairs."""
    found = [p for p in found if p.stated]
    names = sorted({p.switch for p in found}, reverse=True)
    if not names:
        return None
    figure = blank(8.0, 0.8 + 0.34 * len(names))
    axes = figure.subplots()
    for right, colour, marker in ((True, BLUE, "o"), (False, VERMILION, "^")):
        chosen = [p for p in found if (p.right or not p.real) == right]
        axes.scatter(
            [100 * p.error for p in chosen],
            [names.index(p.switch) for p in chosen],
            s=16,
            color=colour,
            marker=marker,
            alpha=0.6,
            linewidths=0,
            label="sign right, or gain within 2 %" if right else "sign wrong",
        )
    axes.axvline(0.0, color=GREY, linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    plain(axes)
    axes.set_xlabel("ln(projected gain / measured gain), %", fontsize=9)
    axes.legend(loc="upper left", fontsize=8, frameon=False)
    return figure
