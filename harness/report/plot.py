"""The look of every plot: colours, a figure, axes, ticks, and the bytes of a picture. matplotlib is imported when drawn.
Colours are from the colour-blind-safe set of Okabe and Ito (jfly.uni-koeln.de/color), a marker beside each, so that a
print without colour can be read too. The same rows give the same bytes: no time stamp, no random ids."""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.evidence import shelf
from harness.report.spec import frozen
from projector.dataclass import dataclass

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHAPES = "o^sDvPX<>*hd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """The colours of a figure: page, text, secondary text, grid lines, bands, and the series."""

    page: str
    ink: str
    faint: str
    line: str
    band: str
    series: tuple[str, ...]

    @property
    def right(self) -> str:
        return self.series[0]

    @property
    def wrong(self) -> str:
        return self.series[1]

    def mark(self, i: int) -> tuple[str, str]:
        """Returns colour and marker of the i-th series; they are unique among the first two dozen."""
        return self.series[i % len(self.series)], _SHAPES[i % len(_SHAPES)]


LIGHT, DARK = (Theme(**frozen(colours)) for colours in shelf.data("report/themes.yaml").values())
#: The ending of a file's name for each theme.
THEMES = {"": LIGHT, "-dark": DARK}

BLUE, VERMILION = LIGHT.series[:2]
GREY, PALE = LIGHT.faint, LIGHT.line

_COLOURS = 255  # colours of a PNG; 256 with the one that the palette reserves


def blank(width: float, height: float, theme: Theme = LIGHT) -> Figure:
    """Returns an empty figure of this size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor=theme.page)
    FigureCanvasAgg(figure)
    return figure


def plain(axes: Any, theme: Theme = LIGHT) -> None:
    """Gives axes the common style: no box, a pale grid behind the marks."""
    axes.set_facecolor(theme.page)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color=theme.line, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
    if theme is not LIGHT:
        axes.tick_params(colors=theme.faint)
        axes.spines[["left", "bottom"]].set_color(theme.faint)
        for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
            text.set_color(theme.ink)


def grid(figure: Figure, count: int, across: int, **settings: Any) -> list[Any]:
    """Returns ``count`` axes, row by row; the remaining places of the last row stay empty."""
    panels = figure.subplots(-(-count // across), across, squeeze=False, **settings).flatten()
    for axes in panels[count:]:
        axes.set_axis_off()
    return list(panels[:count])


def compared(axes: Any, measured: Any, modelled: Any, within: Any, shown: Any, marks: Mapping[str, Any]) -> None:
    """Plots modelled over measured values, (n,) each, on logarithmic axes with the ±10 % band: the points at ``shown``,
    in two colours by ``within``."""
    ends = min(measured.min(), modelled.min()) / 1.5, max(measured.max(), modelled.max()) * 1.5
    axes.fill_between(ends, [0.9 * v for v in ends], [1.1 * v for v in ends], color=PALE, zorder=0)
    axes.plot(ends, ends, color=GREY, linewidth=0.8, zorder=1)
    for inside, colour, marker in ((True, BLUE, "o"), (False, VERMILION, "^")):
        chosen = shown[within[shown] == inside]
        axes.scatter(measured[chosen], modelled[chosen], linewidths=0, color=colour, marker=marker, **marks)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    log_ticks(*ends, (axes.xaxis, axes.yaxis))
    axes.set_aspect("equal")
    plain(axes)


def log_ticks(low: float, high: float, axes: Collection[Any]) -> None:
    """Places ticks at decades, or at 1-2-5 where an axis spans less than two; never so many labels that they touch."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    span = high / low
    subs = (1.0,) if span > 100 else (1.0, 2.0, 5.0) if span > 4 else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [sub * 10.0**decade for decade in decades for sub in subs if low <= sub * 10.0**decade <= high]
    for axis in axes:
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v / 1000:g}k" if v >= 1000 else f"{v:g}"))
        axis.set_minor_locator(NullLocator())


def png(figure: Figure, dots_per_inch: int = 120) -> bytes:
    """Returns the figure as PNG of few colours, a quarter of the size. Drawn once: ``savefig`` draws twice with a
    layout."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    usual, out = figure.dpi, io.BytesIO()
    figure.dpi = dots_per_inch
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    figure.dpi = usual
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    reduced = picture.quantize(_COLOURS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    reduced.save(out, format="png", compress_level=6)
    return out.getvalue()


def svg(figure: Figure, *, searched: bool = False) -> bytes:
    """Returns the figure as SVG: letters as shapes, so that no font is needed to print it, or as text if ``searched``."""
    import matplotlib

    out = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "harness", "svg.fonttype": "none" if searched else "path"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
