"""Figures of a sweep, of what its grid has: as in Subramanian et al. (arXiv 2410.00273), for any model and system."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from projector.io.files import write_figure
from projector.search.looks import COLOURS, GREY, MARKERS, figure, tidy

__all__ = ["save"]

Frame = Any  # a pandas.DataFrame: the types of its columns are those of a file
_DAY = 86400.0
_SIZES = ("tp", "pp", "cp", "ep", "dp", "micro_batch_size")


def save(frame: Frame, tokens: float | None, folder: Path) -> list[Path]:
    """Writes every figure that the points have something for; returns the files."""
    fine = frame[frame["status"] == "ok"].copy()
    if fine.empty:
        return []
    scales = [name for name in fine if name.startswith("scale.") and fine[name].nunique() > 1]
    fine["of"] = [Path(str(name)).stem for name in fine["system"]]
    best = fine.loc[fine.groupby(["model", "of", *scales, "gpus"], sort=False)["tgs"].idxmax()]
    made: list[tuple[str, Any]] = []
    for model, those in best.groupby("model", sort=False):
        if not scales and those["gpus"].nunique() > 1:
            made.append((f"{model}_scaling", _scaling(str(model), those, tokens)))
            made += [(f"{model}_{of}_optimum", _optimum(f"{model} on {of}", each)) for of, each in those.groupby("of")]
        if len(scales) > 1:
            for (of, gpus), each in those.groupby(["of", "gpus"]):
                made += [(f"{model}_{of}_{gpus}_{a[6:]}_{b[6:]}", _heat(f"{model}, {gpus} x {of}", each, a, b))
                         for a, b in _pairs(scales)]  # fmt: skip
    if "recipe.tp" in fine and "recipe.pp" in fine and not scales:
        for (model, of, gpus), each in fine.groupby(["model", "of", "gpus"], sort=False):
            if each["recipe.pp"].nunique() > 1:
                made.append((f"{model}_{of}_{gpus}_layouts", _layouts(f"{model}, {gpus} x {of}", each)))
    files = []
    for name, drawn in made:
        files.append(folder / f"{name}.png")
        write_figure(files[-1], drawn)
    return files


def _pairs(names: list[str]) -> Iterator[tuple[str, str]]:
    return ((a, b) for i, a in enumerate(names) for b in names[i + 1 :])


def _scaling(model: str, best: Frame, tokens: float | None) -> Any:
    """Step, tokens/s/GPU and, for a token budget, days over GPUs, a line a system."""
    drawn, panels = figure(model, 3 if tokens else 2)
    counts = tuple(sorted(best["gpus"].unique()))
    for i, (of, each) in enumerate(best.groupby("of", sort=False)):
        line = each.sort_values("gpus")
        look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "label": str(of)}
        panels[0].plot(line["gpus"], line["step_seconds"], **look)
        panels[1].plot(line["gpus"], line["tgs"], **look)
        if tokens:
            panels[2].plot(line["gpus"], tokens / (line["tgs"] * line["gpus"]) / _DAY, **look)
    tidy(panels[0], "GPUs", "step (s)", doubling=counts, log=True)
    tidy(panels[1], "GPUs", "tokens/s/GPU", doubling=counts)
    if tokens:
        tidy(panels[2], "GPUs", f"days to {tokens:.3g} tokens", doubling=counts, log=True)
    panels[0].legend(frameon=False)
    return drawn


def _optimum(title: str, best: Frame) -> Any:
    """The best configuration over GPUs: its sizes, its time by part (where points are searched), its memory."""
    line = best.sort_values("gpus")
    counts = tuple(line["gpus"])
    parts = [name for name in line if name.startswith("time.") and line[name].abs().max() > 0]
    drawn, panels = figure(title, 3 if parts else 2)
    prefix = "best." if "best.tp" in line else "recipe."
    for i, name in enumerate(each for each in _SIZES if prefix + each in line):
        values = line[prefix + name].to_numpy(float)
        if np.nanmax(values) > 1:
            panels[0].plot(counts, values * 1.03 ** (i - 2), color=COLOURS[i], marker=MARKERS[i], label=name)
    tidy(panels[0], "GPUs", "ranks (micro-batch: samples)", doubling=counts, log=True)
    panels[0].set_yticks(2.0 ** np.arange(0, 13, 1 if panels[0].get_ylim()[1] < 300 else 2))
    panels[0].set_ylim(0.9)
    panels[0].legend(frameon=False, fontsize=8)
    at = range(len(counts))
    if parts:
        low = np.zeros(len(line))
        for i, name in enumerate(sorted(parts, key=lambda each: -line[each].sum())):
            share = line[name].to_numpy(float) / line["step_seconds"].to_numpy(float)
            panels[1].bar(at, share, 0.7, bottom=low, color=COLOURS[i % len(COLOURS)], label=name[5:].removesuffix("_s"),
                          hatch="//" if i >= len(COLOURS) else None)  # fmt: skip
            low = low + share
        tidy(panels[1], "GPUs", "share of the step")
        panels[1].set_xticks(at, [str(count) for count in counts])
        panels[1].legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    panels[-1].bar(at, line["memory"] / 1e9, 0.7, color=COLOURS[0])
    tidy(panels[-1], "GPUs", "allocated on the fullest rank (GB)")
    panels[-1].set_xticks(at, [str(count) for count in counts])
    return drawn


def _heat(title: str, best: Frame, x: str, y: str) -> Any:
    """Tokens/s/GPU of the best point by two factors of a system, the best of all others; grey: nothing fits."""
    drawn, (axes,) = figure(title)
    table = best.pivot_table(index=y, columns=x, values="tgs", aggfunc="max")
    image = axes.imshow(table, origin="lower", aspect="auto", cmap="viridis")
    axes.set_facecolor(GREY)
    for row in range(table.shape[0]):
        for column in range(table.shape[1]):
            value = table.iat[row, column]
            if value == value:
                dark = value < (table.min(axis=None) + table.max(axis=None)) / 2
                axes.text(
                    column, row, f"{value:.0f}", ha="center", va="center", color="white" if dark else "black", size=8
                )
    axes.set_xticks(range(table.shape[1]), [f"{each:g}" for each in table.columns])
    axes.set_yticks(range(table.shape[0]), [f"{each:g}" for each in table.index])
    axes.set_xlabel(f"{x[6:].replace('_', ' ')}, times that of the system")
    axes.set_ylabel(f"{y[6:].replace('_', ' ')}, times")
    drawn.colorbar(image, label="tokens/s/GPU")
    return drawn


def _layouts(title: str, every: Frame) -> Any:
    """Tokens/s/GPU of every layout over its pipeline, by tensor parallelism: how uneven the space is."""
    drawn, (axes,) = figure(title)
    for i, (tp, each) in enumerate(every.groupby("recipe.tp")):
        look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
        axes.scatter(each["recipe.pp"] * 1.04 ** (i - 1), each["tgs"], s=16, alpha=0.6, linewidths=0, **look)
        top = each.groupby("recipe.pp")["tgs"].max()
        axes.plot(top.index * 1.04 ** (i - 1), top, label=f"tp {tp}", **look, markersize=0)
    tidy(axes, "pipeline ranks", "tokens/s/GPU", doubling=tuple(sorted(every["recipe.pp"].unique())))
    axes.legend(frameon=False)
    return drawn
