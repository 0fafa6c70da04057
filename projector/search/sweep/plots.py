"""Draws the figures of a sweep, as in Subramanian et al. (arXiv 2410.00273), for any model and system."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from projector.hardware import catalogue
from projector.hardware.types import Cluster
from projector.search.figure_style import COLOURS, GREY, MARKERS, figure, tidy

Figure = Any  # of matplotlib
Frame = Any  # a pandas.DataFrame: the types of its columns are those of a file
_DAY = 86400.0
_SIZES = ("tp", "pp", "cp", "ep", "dp", "micro_batch_size")
_SCALED: dict[str, tuple[str, str, Callable[[Cluster], float]]] = {
    "flops": ("bf16 peak", "TFLOP/s", lambda c: c.gpu.peak_of("bf16") / 1e12),
    "memory_bandwidth": ("memory bandwidth", "TB/s", lambda c: c.gpu.memory_bandwidth / 1e12),
    "memory_capacity": ("usable memory", "GiB", lambda c: c.gpu.usable_memory_bytes / 2**30),
    "intra_bandwidth": ("links in a domain", "GB/s", lambda c: c.intra.bandwidth / 1e9),
    "inter_bandwidth": ("links between domains", "GB/s", lambda c: c.inter.bandwidth / 1e9),
}
_FACETED = 3  # factors of one figure of heat maps


def figures(frame: Frame, best: Frame, tokens: float | None) -> dict[str, Figure]:
    """Returns every figure that the points have something for, by name. ``best``: from
    :func:`projector.search.sweep.study.best`."""
    fine = frame[frame["status"] == "ok"]
    if fine.empty:
        return {}
    fine, best = (each.assign(of=[Path(str(name)).stem for name in each["system"]]) for each in (fine, best))
    tried = {name: sorted(frame[name].unique()) for name in frame if name.startswith("scale.")}
    scales = [name for name, values in tried.items() if len(values) > 1]
    drawn: dict[str, Figure] = {}
    for model, of_model in best.groupby("model", sort=False):
        if not scales and of_model["gpus"].nunique() > 1:
            drawn[f"{model}_scaling"] = _scaling(str(model), of_model, tokens)
            drawn |= {
                f"{model}_{of}_optimum": _optimum(f"{model} on {of}", each) for of, each in of_model.groupby("of")
            }
        if len(scales) > 1:
            for (of, gpus), each in of_model.groupby(["of", "gpus"]):
                for some in _together(scales):
                    name = "_".join(word[6:].replace("+", "_") for word in some)
                    drawn[f"{model}_{of}_{gpus}_{name}"] = _heats(
                        f"{model}, {gpus} x {of}", each, {word: tried[word] for word in some}, tokens
                    )
    if "recipe.tp" in fine and "recipe.pp" in fine and not scales:
        for (model, of, gpus), each in fine.groupby(["model", "of", "gpus"]):
            if each["recipe.pp"].nunique() > 1:
                drawn[f"{model}_{of}_{gpus}_layouts"] = _layouts(f"{model}, {gpus} x {of}", each)
    return drawn


def _together(scales: list[str]) -> Iterator[list[str]]:
    """Yields the factors of each figure: three in one, else each pair in its own, at the best of all others."""
    if len(scales) == _FACETED:
        yield scales
    else:
        yield from ([a, b] for i, a in enumerate(scales) for b in scales[i + 1 :])


def _scaling(model: str, best: Frame, tokens: float | None) -> Figure:
    drawn, panels = figure(model, 3 if tokens else 2)
    counts = tuple(sorted(best["gpus"].unique()))
    for i, (of, each) in enumerate(best.groupby("of", sort=False)):
        line = each.sort_values("gpus")
        look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "label": str(of)}
        panels[0].plot(line["gpus"], line["expected.middle"], **look)
        panels[1].plot(line["gpus"], line["expected.tgs"], **look)
        if tokens:
            panels[2].plot(line["gpus"], tokens / (line["expected.tgs"] * line["gpus"]) / _DAY, **look)
    tidy(panels[0], "GPUs", "expected step (s)", doubling=counts, log=True)
    tidy(panels[1], "GPUs", "tokens/s/GPU", doubling=counts)
    if tokens:
        tidy(panels[2], "GPUs", f"days to {_amount(tokens)} tokens", doubling=counts, log=True)
    panels[0].legend(frameon=False)
    return drawn


def _optimum(title: str, best: Frame) -> Figure:
    """Draws the best configuration over GPUs: its sizes, its time by part (where points are searched), its memory."""
    line = best.sort_values("gpus")
    counts = tuple(line["gpus"])
    # a part has one colour in every figure, the longest the first
    all_parts = sorted(
        (name for name in line if name.startswith("time.")), key=lambda name: (name != "time.compute_s", name)
    )
    parts = [name for name in all_parts if line[name].abs().max() > 0]
    drawn, panels = figure(title, 3 if parts else 2)
    for i, name in enumerate(each for each in _SIZES if f"best.{each}" in line):
        values = line[f"best.{name}"].to_numpy(float)
        if np.nanmax(values) > 1:
            panels[0].plot(counts, values * 1.03 ** (i - 2), color=COLOURS[i], marker=MARKERS[i], label=name)
    tidy(panels[0], "GPUs", "ranks (micro-batch: samples)", doubling=counts, log=True)
    top = max(2.0, panels[0].get_ylim()[1])
    ticks = 2.0 ** np.arange(0, np.log2(top), 1 if top < 300 else 2)
    panels[0].set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    panels[0].set_ylim(0.9, 1.2 * top)
    panels[0].legend(frameon=False, fontsize=8)
    at = range(len(counts))
    if parts:
        low = np.zeros(len(line))
        for name in parts:
            i = all_parts.index(name)
            share = line[name].to_numpy(float) / line["step_seconds"].to_numpy(float)
            panels[1].bar(at, share, 0.7, bottom=low, color=COLOURS[i % len(COLOURS)], label=name[5:].removesuffix("_s"),
                          hatch="//" if i >= len(COLOURS) else None)  # fmt: skip
            low = low + share
        tidy(panels[1], "GPUs", "share of the step")
        panels[1].set_xticks(at, [str(count) for count in counts])
        panels[1].legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    panels[-1].bar(at, line["memory"] / 2**30, 0.7, color=COLOURS[0])
    tidy(panels[-1], "GPUs", "allocated on the fullest rank (GiB)")
    panels[-1].set_xticks(at, [str(count) for count in counts])
    return drawn


def _heats(title: str, best: Frame, scales: dict[str, list[float]], tokens: float | None) -> Figure:
    """Draws tokens/s/GPU (or days) of the best point by two factors of a system, of a third factor a panel for each
    value; grey: nothing fits; framed: the system as it is."""
    from matplotlib.patches import Rectangle

    *panel, x, y = scales
    values = scales[panel[0]] if panel else [None]
    drawn, panels = figure(title, len(values), width=4.6 * len(values) + 1.4)
    measure = best.assign(
        value=tokens / (best["expected.tgs"] * best["gpus"]) / _DAY if tokens else best["expected.tgs"]
    )
    low, high = measure["value"].min(), measure["value"].max()
    of = catalogue.cluster(str(best["system"].iloc[0]))
    image = None
    for axes, value in zip(panels, values, strict=True):
        shown = measure if value is None else measure[measure[panel[0]] == value]
        table = shown.pivot_table(index=y, columns=x, values="value", aggfunc="min" if tokens else "max")
        table = table.reindex(index=scales[y], columns=scales[x])
        looks = {"cmap": "viridis_r" if tokens else "viridis", "vmin": low, "vmax": high}
        image = axes.imshow(table, origin="lower", aspect="auto", **looks)
        axes.set_facecolor(GREY)
        _cells(axes, table, (low + high) / 2, dark_is_low=not tokens)
        if 1 in table.columns and 1 in table.index and value in (None, 1):
            place = table.columns.get_loc(1) - 0.5, table.index.get_loc(1) - 0.5
            axes.add_patch(Rectangle(place, 1, 1, fill=False, edgecolor=COLOURS[1], linewidth=2.5))
        axes.set_xticks(range(table.shape[1]), [_tick(x, of, each) for each in table.columns])
        axes.set_yticks(range(table.shape[0]), [_tick(y, of, each) for each in table.index])
        axes.set_xlabel(_named(x))
        axes.set_ylabel(_named(y))
        if value is not None:
            axes.set_title(f"{_named(panel[0])}: {_tick(panel[0], of, value)}", fontsize=10)
    drawn.colorbar(image, ax=panels, label=f"days to {_amount(tokens)} tokens" if tokens else "tokens/s/GPU")
    return drawn


def _cells(axes: Any, table: Frame, middle: float, *, dark_is_low: bool) -> None:
    for row in range(table.shape[0]):
        for column in range(table.shape[1]):
            value = table.iat[row, column]
            if value == value:
                colour = "white" if (value < middle) == dark_is_low else "black"
                digits = max(0, 2 - int(np.floor(np.log10(value))))
                axes.text(column, row, f"{value:.{digits}f}", ha="center", va="center", color=colour, size=8)


def _named(scale: str) -> str:
    return ", ".join(f"{_SCALED[word][0]} ({_SCALED[word][1]})" for word in scale[6:].split("+"))


def _tick(scale: str, of: Cluster, factor: float) -> str:
    return "\n".join(f"{factor * _SCALED[word][2](of):.4g}" for word in scale[6:].split("+"))


def _amount(tokens: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if tokens >= size:
            return f"{tokens / size:.4g}{letter}"
    return f"{tokens:g}"


def _layouts(title: str, points: Frame) -> Figure:
    drawn, (axes,) = figure(title)
    for i, (tp, each) in enumerate(points.groupby("recipe.tp")):
        look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
        axes.scatter(each["recipe.pp"] * 1.04 ** (i - 1), each["tgs"], s=16, alpha=0.6, linewidths=0, **look)
        top = each.groupby("recipe.pp")["tgs"].max()
        axes.plot(top.index * 1.04 ** (i - 1), top, label=f"tp {tp}", **look, markersize=0)
    tidy(axes, "pipeline ranks", "tokens/s/GPU, as projected", doubling=tuple(sorted(points["recipe.pp"].unique())))
    axes.legend(frameon=False)
    return drawn
