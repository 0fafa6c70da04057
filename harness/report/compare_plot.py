"""Six panels of runs side by side; matplotlib is imported when drawn. Each run has its letter, colour and marker, which
it keeps in all panels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.compare.side import SPIKE, Series, Side, stability
from harness.compare.verdict import interval
from harness.report import plot
from harness.report.plot import GREY
from projector.dataclass import dataclass

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_POINTS = 3000  # most points of one series; a longer one is drawn in even strides
_LONGEST = 64  # characters of a name
_MOST_PARTS = 8
_WHOLE = "whole configuration"
_LEAST_PART = 0.002  # least share of the longest bar: a shorter bar is not seen
_WRAP = 150  # characters of the verdict in one line


@dataclass(frozen=True, kw_only=True)
class _Mark:
    side: Side
    letter: str
    label: str
    colour: str
    marker: str


def _looks(sides: Sequence[Side]) -> list[_Mark]:
    def short(name: str) -> str:
        return name if len(name) <= _LONGEST else f"{name[: _LONGEST // 2 - 1]}…{name[-_LONGEST // 2 :]}"

    return [
        _Mark(side=side, letter=chr(ord("A") + i), label=short(side.name), colour=colour, marker=marker)
        for i, side in enumerate(sides)
        for colour, marker in (plot.LIGHT.mark(i),)
    ]


def draw(sides: Sequence[Side], sentence: str, *, over_time: bool = False) -> Figure:
    """Draws step time, TGS, memory, loss, stability and breakdown; ``over_time``: TFLOP/s and TGS, memory, then loss,
    learning rate, memory and step time over the iterations. The verdict stands above, the names of the sides below."""
    import textwrap

    from matplotlib.lines import Line2D

    shown = _looks(sides)
    figure = plot.blank(12, 11)
    axes = figure.subplots(3, 2).flatten()
    draws: tuple[Callable[[Any, Sequence[_Mark]], None], ...]
    draws = (_step_time, _rate, _memory, _loss, _stable, _breakdown)
    if over_time:
        curves = (_curve("learning rate"), _curve("memory", "GiB"))
        draws = (_tflops, _memory, _loss, *curves, _step_time)
    for place, panel in zip(axes, draws, strict=True):
        panel(place, shown)
        plain(place)
    figure.suptitle(textwrap.fill(sentence, _WRAP), fontsize=10.5, x=0.01, ha="left")
    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, linestyle="none", label=f"{look.letter}: {look.label}")
        for look in shown
    ]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=1 if len(shown) > 4 else 2, fontsize=9, frameon=False
    )
    return figure


def plain(axes: Any) -> None:
    plot.plain(axes)
    axes.title.set_fontsize(10)
    axes.title.set_horizontalalignment("left")
    axes.title.set_x(0.0)
    axes.xaxis.label.set_fontsize(9)
    axes.yaxis.label.set_fontsize(9)


def empty(axes: Any, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GREY, fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])


def _having(
    axes: Any, found: Sequence[_Mark], has: Callable[[Side], object], title: str, lacking: str, nothing: str
) -> list[_Mark]:
    """Returns the runs that a panel can show. Its title names the others and what they lack; ``nothing`` stands in a
    panel without runs."""
    known = [look for look in found if has(look.side)]
    others = ", ".join(look.letter for look in found if look not in known)
    axes.set_title(f"{title} (no {lacking}: {others})" if others else title)
    if not known:
        empty(axes, nothing)
    return known


def _step_time(axes: Any, found: Sequence[_Mark]) -> None:
    """Draws kept steps filled, cut ones as crosses, the steady window as a line at the median, a stated figure dashed."""
    timed = [look for look in found if look.side.step_seconds]
    if not timed:
        empty(axes, "no step times")
        axes.set_title("step time")
        return
    drawn = [look for look in timed if look.side.series is not None]
    ceiling = max(_ceiling(look.side) for look in timed)
    above = 0
    for look in drawn:
        series = look.side.series
        assert series is not None
        above += _steps(axes, look, series, ceiling)
    span = axes.get_xlim() if drawn else (0.0, 1.0)
    for look in timed:
        value = look.side.step_seconds or 0.0
        if look.side.series is None:
            axes.hlines(value, *span, color=look.colour, linestyle="--", linewidth=1.2)
            _letter(axes, look, span[1])
    axes.set_ylim(bottom=_floor(timed), top=ceiling * 1.05)
    axes.set(xlabel="iteration" if drawn else "", ylabel="seconds per step")
    if not drawn:
        axes.set_xticks([])
    axes.set_title("step time; line: median, over the steady window")
    notes = ["× cut"] if drawn else []
    notes += [f"{above} slower drawn at the edge"] if above else []
    notes += ["dashed: a stated figure"] if len(drawn) < len(timed) else []
    axes.text(0.99, 0.99, ", ".join(notes), transform=axes.transAxes, ha="right", va="top", fontsize=8, color=GREY)


def _steps(axes: Any, look: _Mark, series: Series, ceiling: float) -> int:
    for steady, marker in ((False, "x"), (True, look.marker)):
        where = np.flatnonzero((series.reasons == 0) == steady)
        where = where[:: max(1, -(-len(where) // _MOST_POINTS))]
        shown = np.minimum(series.seconds[where], ceiling)
        style = {"markeredgewidth": 0.8 if not steady else 0.0, "linestyle": "none", "alpha": 0.55, "markersize": 3.0}
        axes.plot(series.iteration[where], shown, marker, color=look.colour, **style)
    window = series.iteration[series.reasons == 0]
    axes.hlines(look.side.step_seconds, window.min(), window.max(), color=look.colour, linewidth=1.6)
    _letter(axes, look, window.max())
    return int((series.seconds > ceiling).sum())


def _letter(axes: Any, look: _Mark, end: float) -> None:
    """Writes the letter of a run behind the ``end`` of its line, beside the letters of earlier runs."""
    shift = (4 + 9 * (ord(look.letter) - ord("A")), 0)
    style = {"color": look.colour, "va": "center", "fontsize": 9, "fontweight": "bold"}
    axes.annotate(look.letter, (end, look.side.step_seconds), xytext=shift, textcoords="offset points", **style)


def _ceiling(side: Side) -> float:
    """Returns the step time up to which the steady state shows whole, and a little above."""
    middle = side.step_seconds or 0.0
    top = middle if side.series is None else float(side.series.kept.max())
    return middle + max(2 * (top - middle), 0.15 * middle)


def _floor(timed: Sequence[_Mark]) -> float:
    """Returns zero, unless all runs lie within a narrow band: then their differences are to be seen."""
    lowest = min(
        float(s.kept.min()) if (s := look.side.series) is not None else look.side.step_seconds or 0.0 for look in timed
    )
    highest = max(look.side.step_seconds or 0.0 for look in timed)
    return lowest - 0.15 * (highest - lowest) - 0.02 * lowest if lowest > 0.6 * highest else 0.0


def _stable(axes: Any, found: Sequence[_Mark]) -> None:
    """Draws settled steps over their median: box of the quartiles, whiskers at 5 and 95 %, steps beyond as points."""
    axes.set_title("stability: step over its median after warm-up (box 25-75 %, whisker 5-95 %)")
    known = [look for look in found if look.side.series is not None or look.side.rel_std]
    if not known:
        empty(axes, "no run has its steps or a spread")
        return
    worst = 1.0
    for place, look in enumerate(known):
        series = look.side.series
        if series is None:
            spread = look.side.rel_std or 0.0
            axes.errorbar([place], [1.0], yerr=[spread], color=look.colour, marker=look.marker, capsize=8)
            worst = max(worst, 1 + spread)
            continue
        relative = series.seconds[series.settled] / float(np.median(series.kept))
        low, high = np.quantile(relative, [0.05, 0.95])
        beyond = relative[(relative < low) | (relative > high)][:_MOST_POINTS]
        lines = {name: {"color": look.colour} for name in ("medianprops", "boxprops", "whiskerprops", "capprops")}
        box = {"positions": [place], "widths": 0.5, "whis": (5, 95), "showfliers": False, "manage_ticks": False}
        axes.boxplot([relative], **box, **lines)
        shift = 0.12 * np.sin(2.4 * np.arange(len(beyond)))
        shown = np.minimum(beyond, 2.0)
        axes.scatter(place + shift, shown, s=9, marker=look.marker, color=look.colour, alpha=0.6, linewidths=0)
        worst = max(worst, float(relative.max()))
    top = min(max(1.002, 1 + 1.25 * (worst - 1)), 2.1)
    if worst >= SPIKE:
        axes.axhline(SPIKE, color=GREY, linewidth=0.8, linestyle=":")
    for place, look in enumerate(known):
        axes.text(
            place, 1.0, _caption(look.side), transform=axes.get_xaxis_transform(), ha="center", va="top", fontsize=8
        )
    axes.set_ylim(top=1 + 1.45 * (top - 1))
    axes.set_xticks(range(len(known)), [look.letter for look in known])
    axes.set_xlim(-0.6, len(known) - 0.4)
    axes.set_ylabel("step / median" + ("; above 2 at 2" if worst > 2 else ""))


def _caption(side: Side) -> str:
    if side.series is None:
        return f"stated spread\n± {100 * (side.rel_std or 0.0):.2g} %"
    s = stability(side.series)
    return f"spread {100 * s.spread:.2g} %\n{s.outliers} outliers, {s.spikes} spikes\n+{100 * s.excess:.1f} % time"


def _bars(axes: Any, found: Sequence[_Mark], values: Sequence[float], texts: Sequence[str]) -> None:
    places = range(len(found))
    bars = axes.bar(places, values, color=[look.colour for look in found], width=0.6, alpha=0.85)
    axes.bar_label(bars, texts, padding=4, fontsize=8)
    axes.set_xticks(list(places), [look.letter for look in found])
    axes.margins(y=0.16)


def _rate(axes: Any, shown: Sequence[_Mark]) -> None:
    nothing = "no run says its batch, sequence and GPUs"
    known = _having(axes, shown, lambda side: side.tgs, "tokens/s/GPU, 90 % interval", "TGS", nothing)
    if not known:
        return
    values = [look.side.tgs or 0.0 for look in known]
    _bars(axes, known, values, [f"{value:,.0f}" for value in values])
    for place, look in enumerate(known):
        value = look.side.tgs or 0.0
        if (ends := interval(look.side)) is not None:
            axes.vlines(place, value / ends[1], value / ends[0], color="black", linewidth=1.6)
    axes.set_ylabel("tokens/s/GPU")


def _memory(axes: Any, found: Sequence[_Mark]) -> None:
    """Draws one bar for each kind of peak memory that a run states, with the GPU's memory as a line above."""
    title, nothing = "peak memory, line = the GPU's", "no run states its memory"
    known = _having(axes, found, lambda side: side.memory, title, "memory", nothing)
    if not known:
        return
    bars = [(look, kind, gib) for look in known for kind, gib in sorted(look.side.memory.items(), key=lambda i: -i[1])]
    _bars(axes, [look for look, _, _ in bars], [gib for _, _, gib in bars], [f"{gib:.1f}" for _, _, gib in bars])
    axes.set_xticks(range(len(bars)), [f"{look.letter}\n{kind}" for look, kind, _ in bars])
    for place, (look, _, _) in enumerate(bars):
        if look.side.capacity_gib:
            axes.hlines(look.side.capacity_gib, place - 0.4, place + 0.4, color=GREY, linewidth=1.4, linestyle=":")
    axes.set_ylabel("GiB")


def _tflops(axes: Any, shown: Sequence[_Mark]) -> None:
    """Draws the TFLOP/s of one GPU, with tokens/s/GPU below the run's letter."""
    if not any(look.side.tflops for look in shown):
        _rate(axes, shown)
        return
    known = _having(axes, shown, lambda side: side.tflops, "TFLOP/s/GPU, tokens/s/GPU", "configuration", "")
    values = [look.side.tflops or 0.0 for look in known]
    _bars(axes, known, values, [f"{value:,.0f}" for value in values])
    axes.set_xticks(range(len(known)), [f"{look.letter}\n{look.side.tgs or 0:,.0f}" for look in known])
    axes.set_ylabel("TFLOP/s/GPU")


def _loss(axes: Any, found: Sequence[_Mark]) -> None:
    _lines(axes, found, "loss", lambda series: series.loss)


def _curve(name: str, unit: str = "") -> Callable[[Any, Sequence[_Mark]], None]:
    """Returns the function that draws a panel of the figure ``name``, of which a log has one value a step."""
    return partial(_lines, what=f"{name} of a step", values=lambda series: series.curves.get(name, ()), unit=unit)


def _lines(axes: Any, found: Sequence[_Mark], what: str, values: Callable[[Series], Any], unit: str = "") -> None:
    """Draws a line a run over iterations. ``values``: returns one a step of a run; NaN where none is printed."""

    def printed(side: Side) -> bool:
        return side.series is not None and bool(np.isfinite(values(side.series)).any())

    known = _having(axes, found, printed, what, what, f"no run prints its {what}")
    for look in known:
        series = look.side.series
        assert series is not None
        figures = np.asarray(values(series))
        places = np.flatnonzero(np.isfinite(figures))
        places = places[:: max(1, -(-len(places) // _MOST_POINTS))]
        often = max(1, len(places) // 12)
        style = {"marker": look.marker, "markevery": often, "markersize": 4, "linewidth": 1.1}
        axes.plot(series.iteration[places], figures[places], color=look.colour, **style)
    if known:
        axes.set(xlabel="iteration", ylabel=unit or what)


def _breakdown(axes: Any, found: Sequence[_Mark]) -> None:
    """Draws bars by part: the runs' own timers, unless more of the runs can be projected than have timers."""
    timed = sum(bool(look.side.timers) for look in found) >= max(sum(bool(look.side.projected) for look in found), 1)
    title, lacking = ("timers, one inside another", "timers") if timed else ("projected, exposed seconds", _WHOLE)

    def times_of(side: Side) -> dict[str, float]:
        return dict(side.timers if timed else side.projected)

    shown = _having(axes, found, times_of, f"breakdown: {title}", lacking, f"no timers, and no run says its {_WHOLE}")
    known = [(look, times_of(look.side)) for look in shown]
    if not known:
        return
    names = dict.fromkeys(name for _, times in known for name in times)
    largest = sorted(names, key=lambda name: -max(times.get(name, 0.0) for _, times in known))
    least = _LEAST_PART * max(max(times.values()) for _, times in known)
    largest = [n for n in largest if any(times.get(n, 0.0) > least for _, times in known)][:_MOST_PARTS]
    height = 0.8 / len(known)
    for i, (look, times) in enumerate(known):
        places = [row + (i + 0.5) * height - 0.4 for row in range(len(largest))]
        axes.barh(
            places, [times.get(name, 0.0) for name in largest], height=0.92 * height, color=look.colour, alpha=0.85
        )
    axes.set_yticks(range(len(largest)), [name.removesuffix("_s") for name in largest])
    axes.invert_yaxis()
    axes.set_xlabel("seconds per step")
