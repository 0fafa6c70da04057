"""Gives each run of a comparison its letter, colour and marker, which it keeps in all panels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.compare.side import Side
from harness.report import plot
from harness.report.plot import GREY
from projector.dataclass import dataclass

MOST_POINTS = 3000  # most points of one series; a longer one is drawn in even strides
_LONGEST = 64  # characters of a name


@dataclass(frozen=True, kw_only=True)
class RunMark:
    side: Side
    letter: str
    label: str
    colour: str
    marker: str


def looks(sides: Sequence[Side]) -> list[RunMark]:
    def short(name: str) -> str:
        return name if len(name) <= _LONGEST else f"{name[: _LONGEST // 2 - 1]}…{name[-_LONGEST // 2 :]}"

    return [
        RunMark(side=side, letter=chr(ord("A") + i), label=short(side.name), colour=colour, marker=marker)
        for i, side in enumerate(sides)
        for colour, marker in (plot.LIGHT.mark(i),)
    ]


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


def having(
    axes: Any, found: Sequence[RunMark], has: Callable[[Side], object], title: str, lacking: str, nothing: str
) -> list[RunMark]:
    """Returns the runs that a panel can show. Its title names the others and what they lack; ``nothing`` stands in a
    panel without runs."""
    known = [look for look in found if has(look.side)]
    axes.set_title(f"{title}{without([look for look in found if look not in known], lacking)}")
    if not known:
        empty(axes, nothing)
    return known


def without(found: Sequence[RunMark], what: str) -> str:
    return f" (no {what}: {', '.join(look.letter for look in found)})" if found else ""
