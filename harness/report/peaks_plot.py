"""Nine panels of platforms side by side; matplotlib is imported when drawn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from harness.evaluation.platforms import SLOW, Rated, peaks
from harness.report import plot
from harness.report.compare_looks import empty, plain
from harness.report.plot import GREY, LIGHT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 8  # bars of a panel whose names can be read


def draw(rows: Sequence[Rated]) -> Figure:
    """Peak tokens/s, TFLOP/s, utilisation; tokens/s and TFLOP/s of one GPU, step time; boxes, the best of each platform,
    measured over projected."""
    best = peaks(rows)[:_MOST]
    colours = {gpu: LIGHT.mark(i)[0] for i, gpu in enumerate(dict.fromkeys(row.run.gpu for row in best))}
    figure = plot.blank(15, 12)
    axes = figure.subplots(3, 3).flatten()
    bars: tuple[tuple[str, Callable[[Rated], float | None], str], ...] = (
        ("peak tokens/s", lambda row: row.tokens, ",.0f"),
        ("peak TFLOP/s, all GPUs", lambda row: row.tflops and row.tflops * row.run.gpus, ",.0f"),
        ("% of the dense peak", lambda row: row.utilisation and 100 * row.utilisation, ".1f"),
        ("tokens/s of one GPU", lambda row: row.tgs, ",.0f"),
        ("TFLOP/s of one GPU; line: dense peak", lambda row: row.tflops, ",.0f"),
        ("seconds of a step", lambda row: row.step_seconds, ".2f"),
    )
    for place, (title, value, shown) in zip(axes, bars, strict=False):
        _bars(place, [(row, value(row)) for row in best], title, shown, colours)
    for i, row in enumerate(best):
        if row.dense and row.tflops:
            axes[4].hlines(row.dense, i - 0.4, i + 0.4, color=GREY, linewidth=1.4, linestyle=":")
    _boxes(axes[6], rows, colours)
    first = {row.run.gpu: row for row in reversed(best)}
    ordered = sorted(first.values(), key=lambda row: -row.tokens)
    _bars(axes[7], [(row, row.tokens) for row in ordered], "best of each platform, tokens/s", ",.0f", colours)
    _measured(axes[8], rows, colours)
    for place in axes:
        plain(place)
    return figure


def _bars(
    axes: Any, found: Sequence[tuple[Rated, float | None]], title: str, shown: str, colours: dict[str, str]
) -> None:
    axes.set_title(title)
    known = [(row, value) for row, value in found if value]
    if not known:
        empty(axes, "no row states it")
        return
    axes.bar(
        range(len(known)), [value for _, value in known], color=[colours[row.run.gpu] for row, _ in known], width=0.6
    )
    for i, (_, value) in enumerate(known):
        axes.annotate(
            format(value, shown), (i, value), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=8
        )
    axes.set_xticks(range(len(known)), [f"{row.run.gpu}\n{row.model}" for row, _ in known], fontsize=7)
    axes.margins(y=0.15)


def _boxes(axes: Any, rows: Sequence[Rated], colours: dict[str, str]) -> None:
    by_key: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row.run.gpu in colours:
            by_key[row.key].append(row.tokens)
    keys = sorted(by_key, key=lambda key: -max(by_key[key]))[:_MOST]
    axes.set_title("tokens/s of all configurations")
    axes.boxplot([by_key[key] for key in keys], widths=0.5)
    axes.set_xticks(range(1, len(keys) + 1), ["\n".join(key) for key in keys], fontsize=7)


def _measured(axes: Any, rows: Sequence[Rated], colours: dict[str, str]) -> None:
    axes.set_title(f"measured over projected; line: {SLOW:.0%}")
    known = [row for row in rows if row.share is not None and row.run.gpu in colours]
    if not known:
        empty(axes, "no row could be projected")
        return
    for gpu in dict.fromkeys(row.run.gpu for row in known):
        mine = [row for row in known if row.run.gpu == gpu]
        axes.plot([row.projected for row in mine], [row.share for row in mine], "o", color=colours[gpu], label=gpu)
    axes.axhline(SLOW, color=GREY, linewidth=1.0, linestyle=":")
    axes.axhline(1.0, color=GREY, linewidth=0.8)
    axes.set(xlabel="projected tokens/s/GPU", ylim=(0.0, None))
    axes.legend(fontsize=8, frameon=False)
