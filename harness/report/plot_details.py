"""More plots of the rows for print: error by GPU, framework and parallelism, memory, parts of the step.

matplotlib is imported when drawn; figure, axes style and colours are those of :mod:`harness.report.plot`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from harness.contracts.results import Row, RunFacts
from harness.contracts.runs import BREAKDOWN
from harness.report.parallelism import DEGREES, degrees, order
from harness.report.plot import GREY, LIGHT, PALE, blank, plain
from harness.report.plot_rows import ratio_lines
from harness.score import accuracy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["errors_by_kind", "errors_by_parallelism", "memory", "steps"]

Facts = Mapping[str, RunFacts]

#: Okabe and Ito's eight colours, with two greys and a brown for the parts that are none of the eight's.
PARTS = dict(
    zip(
        BREAKDOWN,
        ("#0072B2", "#999999", "#D0D0D0", "#E69F00", "#D55E00", "#56B4E9", "#009E73", "#CC79A7", "#F0E442", "#5B4636"),
        strict=True,
    )
)
KINDS = {"allocated": LIGHT.mark(0), "reserved": LIGHT.mark(5), "device": LIGHT.mark(2), "": LIGHT.mark(7)}
MOST_BARS, ACROSS = 30, 3


def errors_by_kind(rows: Sequence[Row], title: str) -> Figure | None:
    """Two panels, projected over measured TGS by GPU and by framework. None: nothing compared."""
    kinds: tuple[tuple[str, Callable[[Row], str]], ...] = (
        ("GPU", lambda r: r.gpu),
        ("framework", lambda r: r.framework),
    )
    return _panels(rows, kinds, title, across=2)


def errors_by_parallelism(rows: Sequence[Row], facts: Facts, title: str) -> Figure | None:
    """A panel a degree: TP, PP, EP, CP and the sharding of the data-parallel state. None: nothing compared."""

    def degree(key: str) -> Callable[[Row], str]:
        return lambda row: degrees(facts[row.run_id])[key]

    return _panels(rows, [(words, degree(key)) for key, (words, _) in DEGREES.items()], title, across=ACROSS)


def _panels(
    rows: Sequence[Row], kinds: Sequence[tuple[str, Callable[[Row], str]]], title: str, across: int
) -> Figure | None:
    rows = accuracy.comparable(rows)
    if not rows:
        return None
    lines = [sorted(accuracy.by(rows, key).items(), key=lambda item: order(item[0])) for _, key in kinds]
    down = -(-len(kinds) // across)
    heights = [max(len(made) for made in lines[i * across : (i + 1) * across]) for i in range(down)]
    figure = blank(3.9 * across, 0.6 + sum(0.9 + 0.24 * h for h in heights))
    panels = figure.subplots(down, across, squeeze=False, height_ratios=[h + 3 for h in heights]).flatten()
    for axes, (name, _), made in zip(panels, kinds, lines, strict=False):
        ratio_lines(axes, {value or "not stated": members for value, members in reversed(made)})
        axes.set_title(name, fontsize=10)
    for axes in panels[len(kinds) :]:
        axes.set_axis_off()
    figure.suptitle(title, fontsize=11)
    figure.supxlabel("projected / measured tokens/s/GPU (band: ±10 %; box: quartiles; orange: median)", fontsize=9)
    return figure


def memory(rows: Sequence[Row], facts: Facts, title: str) -> Figure | None:
    """Projected over measured peak GiB, a mark for what the source measured. None: no row with both."""
    known = [r for r in rows if r.projected_memory_gib is not None and r.measured_memory_gib is not None]
    if not known:
        return None
    figure = blank(5.2, 5.2)
    axes = figure.add_subplot()
    plain(axes)
    high = 1.06 * max(max(r.projected_memory_gib or 0.0, r.measured_memory_gib or 0.0) for r in known)
    axes.fill_between((0, high), (0, 0.9 * high), (0, 1.1 * high), color=PALE, zorder=0)
    axes.plot((0, high), (0, high), color=GREY, linewidth=0.8, zorder=1)
    for kind, members in accuracy.by(known, lambda r: facts[r.run_id].memory_kind or "").items():
        colour, marker = KINDS.get(kind, KINDS[""])
        x, y = [r.measured_memory_gib or 0.0 for r in members], [r.projected_memory_gib or 0.0 for r in members]
        label = f"{kind or 'not stated'} ({len(members)})"
        axes.scatter(x, y, s=18, color=colour, marker=marker, linewidths=0, alpha=0.8, label=label)
    axes.set(xlim=(0, high), ylim=(0, high), xlabel="measured peak, GiB", ylabel="projected peak, GiB")
    axes.set_aspect("equal")
    axes.legend(title="measured as", fontsize=8, title_fontsize=8, frameon=False, loc="upper left")
    axes.set_title(f"{title} (band: ±10 %)", fontsize=11)
    return figure


def steps(rows: Sequence[Row], title: str) -> Figure | None:
    """A bar a model: the mean share of each part of the projected step. None: no predictor gave parts."""
    parted = [r for r in rows if r.breakdown and r.projected_step_seconds]
    if not parted:
        return None
    groups = sorted(accuracy.by(parted, lambda r: r.model).items(), key=lambda item: len(item[1]))[-MOST_BARS:]
    figure = blank(7.4, 1.6 + 0.23 * len(groups))
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    left = [0.0] * len(groups)
    for part in BREAKDOWN:
        shares = [_share(members, part) for _, members in groups]
        if not any(shares):
            continue
        name = {"bubble_s": "pipeline bubble", "dp_s": "data parallel"}.get(part, _name(part))
        axes.barh(range(len(groups)), shares, left=left, height=0.78, color=PARTS[part], label=name, linewidth=0)
        left = [a + b for a, b in zip(left, shares, strict=True)]
    axes.set_yticks(range(len(groups)), [f"{m or 'not stated'} ({len(g)})" for m, g in groups], fontsize=8)
    axes.set(xlim=(0, 100), ylim=(-0.6, len(groups) - 0.4))
    axes.set_xlabel("share of the projected step, %", fontsize=9)
    figure.legend(loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=11)
    return figure


def _name(part: str) -> str:
    short = part.removesuffix("_s")
    return short.upper() if len(short) == 2 else short


def _share(rows: Sequence[Row], part: str) -> float:
    return 100 * sum(r.breakdown.get(part, 0.0) / (r.projected_step_seconds or 1.0) for r in rows) / len(rows)
