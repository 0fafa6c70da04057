"""Draws ten panels of platforms side by side; matplotlib is imported when drawn."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from harness.evaluation.platforms import SLOW, Rated, best_of_gpus, peaks
from harness.report import plot
from harness.report.compare_plot import empty, plain
from harness.report.plot import GREY, LIGHT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 8  # bars of a panel whose names can be read
_WIDE = 14  # characters of a line under a bar


def draw(rows: Sequence[Rated]) -> Figure:
    """Draws peak tokens/s, TFLOP/s and utilisation; tokens/s, TFLOP/s and memory of one GPU, step time; boxes, the best of
    each platform, measured over projected."""
    best = peaks(rows)[:_MOST]
    colours = {gpu: LIGHT.mark(i)[0] for i, gpu in enumerate(dict.fromkeys(row.run.gpu for row in best))}
    figure = plot.blank(15, 18)
    axes = figure.subplots(5, 2).flatten()
    bars: tuple[tuple[str, Callable[[Rated], float | None], str], ...] = (
        ("peak tokens/s", lambda row: row.tokens, ",.0f"),
        ("peak TFLOP/s, all GPUs", lambda row: row.all_tflops, ",.0f"),
        ("% of the dense peak", lambda row: row.utilisation and 100 * row.utilisation, ".1f"),
        ("tokens/s of one GPU", lambda row: row.tgs, ",.0f"),
        ("TFLOP/s of one GPU; line: dense peak", lambda row: row.tflops, ",.0f"),
        ("seconds of a step", lambda row: row.step_seconds, ".2f"),
        ("peak memory of one GPU, GiB", lambda row: row.run.measured.peak_memory_gib, ".1f"),
    )
    for place, (title, value, shown) in zip(axes, bars, strict=False):
        _bars(place, [(row, value(row)) for row in best], title, shown, colours)
    for i, row in enumerate(row for row in best if row.tflops):  # the bars of that panel
        if row.dense:
            axes[4].hlines(row.dense, i - 0.4, i + 0.4, color=GREY, linewidth=1.4, linestyle=":")
    _boxes(axes[7], rows, colours)
    leading = [(row, row.tokens) for row in best_of_gpus(best)]
    _bars(axes[8], leading, "best of each platform, tokens/s", ",.0f", colours)
    _measured_over_projected(axes[9], rows, colours)
    for place in axes:
        plain(place)
    return figure


def _bars(
    axes: Any, rows: Sequence[tuple[Rated, float | None]], title: str, shown: str, colours: dict[str, str]
) -> None:
    axes.set_title(title)
    known = [(row, value) for row, value in rows if value]
    if not known:
        empty(axes, "no row states it")
        return
    values, colour = [value for _, value in known], [colours[row.run.gpu] for row, _ in known]
    axes.bar(range(len(known)), values, color=colour, width=0.6)
    for i, value in enumerate(values):
        text = format(value, shown)
        axes.annotate(text, (i, value), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=8)
    names = [f"{row.run.gpu}\n{textwrap.fill(row.model, _WIDE)}" for row, _ in known]
    axes.set_xticks(range(len(known)), names, fontsize=7)
    axes.margins(y=0.15)


def _boxes(axes: Any, rows: Sequence[Rated], colours: dict[str, str]) -> None:
    """Draws one box for each platform, over all its configurations."""
    by_gpu = {gpu: [row.tgs for row in rows if row.run.gpu == gpu] for gpu in colours}
    axes.set_title("tokens/s of one GPU, all configurations")
    axes.boxplot(list(by_gpu.values()), widths=0.5)
    axes.set_xticks(range(1, len(by_gpu) + 1), [f"{gpu}\n{len(tgs)} rows" for gpu, tgs in by_gpu.items()], fontsize=7)


def _measured_over_projected(axes: Any, rows: Sequence[Rated], colours: dict[str, str]) -> None:
    axes.set_title(f"measured over projected; line: {SLOW:.0%}")
    known = [row for row in rows if row.share is not None and row.run.gpu in colours]
    if not known:
        empty(axes, "no row could be projected")
        return
    for gpu in dict.fromkeys(row.run.gpu for row in known):
        of_gpu = [row for row in known if row.run.gpu == gpu]
        axes.plot([row.projected for row in of_gpu], [row.share for row in of_gpu], "o", color=colours[gpu], label=gpu)
    axes.axhline(SLOW, color=GREY, linewidth=1.0, linestyle=":")
    axes.axhline(1.0, color=GREY, linewidth=0.8)
    axes.set(xlabel="projected tokens/s/GPU", ylim=(0.0, None))
    axes.legend(fontsize=8, frameon=False)
