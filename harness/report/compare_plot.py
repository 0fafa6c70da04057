"""Six panels of runs side by side; matplotlib is imported when drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from harness.compare.side import Side
from harness.report import compare_panels as panels
from harness.report import compare_steps as steps
from harness.report.compare_marks import RunMark, looks, plain
from harness.report.plot import blank

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WRAP = 150  # characters of the verdict in one line


def draw(sides: Sequence[Side], sentence: str, *, over_time: bool = False) -> Figure:
    """Draws step time, TGS, memory, loss, stability and breakdown; ``over_time``: TFLOP/s and TGS, memory, then loss,
    learning rate, memory and step time over the iterations. The verdict stands above, the names of the sides below."""
    import textwrap

    from matplotlib.lines import Line2D

    shown = looks(sides)
    figure = blank(12, 11)
    axes = figure.subplots(3, 2).flatten()
    draws: tuple[Callable[[Any, Sequence[RunMark]], None], ...]
    draws = (steps.step_time, panels.rate, panels.memory, panels.loss, steps.stable, panels.breakdown)
    if over_time:
        curves = (panels.curve("learning rate"), panels.curve("memory", "GiB"))
        draws = (panels.tflops, panels.memory, panels.loss, *curves, steps.step_time)
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
