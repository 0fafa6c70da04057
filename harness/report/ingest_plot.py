"""A log's step times over iterations as PNG: what was kept, what was cut and why, the median and its interval."""

from __future__ import annotations

import io

import numpy as np

from harness.report.ingest_view import StepView

__all__ = ["png"]

_MOST_POINTS = 6000  # of one series; a longer one is drawn in even strides
_KEPT = "#0072b2"
#: Okabe-Ito colours (distinguishable without red-green vision) and a marker of their own for every reason.
_STYLES = (
    ("#999999", "x"),
    ("#cc79a7", "D"),
    ("#e69f00", "v"),
    ("#000000", "P"),
    ("#009e73", "s"),
    ("#56b4e9", "^"),
    ("#d55e00", "o"),
)


def png(view: StepView) -> bytes:
    """The picture's bytes. Steps far above the rest are drawn at the upper edge, so that the steady state is seen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    ceiling = _ceiling(view)
    for code, name in enumerate(view.names):
        where = np.flatnonzero(view.reasons == code)
        if not len(where):
            continue
        where = where[:: -(-len(where) // _MOST_POINTS)]
        colour, marker = _STYLES[(code - 1) % len(_STYLES)] if code else (_KEPT, ".")
        count = int((view.reasons == code).sum())
        label = f"{name} ({count})" if code else f"kept ({count})"
        shown = np.minimum(view.seconds[where], ceiling)
        axes.plot(view.iteration[where], shown, marker, color=colour, label=label, markersize=4, linestyle="none")
    axes.axhline(view.median, color=_KEPT, linewidth=1, label=f"median {view.median:.5g} s")
    if view.low is not None and view.high is not None:
        axes.axhspan(view.low, view.high, color=_KEPT, alpha=0.15, linewidth=0, label="90 % interval")
    above = int((view.seconds > ceiling).sum())
    edge = f"; {above} of {len(view.seconds)} steps are slower and drawn at the upper edge" if above else ""
    axes.set_title(f"{view.id} ({view.dialect}){edge}", fontsize=10, loc="left")
    axes.set(xlabel="iteration", ylabel="seconds per step")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="#E2E2E2", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    return buffer.getvalue()


def _ceiling(view: StepView) -> float:
    """Twice the kept range above the median, at least a fifth of it."""
    kept = view.seconds[view.reasons == 0]
    return float(view.median + max(2 * (kept.max() - view.median), 0.2 * view.median))
