"""The report on switches: the gain of each, measured and projected, as tables and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.contracts import frame
from harness.contracts.results import Evaluation
from harness.report.plot import BLUE, GREY, VERMILION, blank, plain
from harness.report.said import said
from harness.report.spec import tabled
from harness.report.table import Report, signed
from harness.score.scaling import GOAL, scaling, within
from harness.score.switches import REAL, Gain, Pair, ladders, pairs, sign_share, switches

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def build(evaluation: Evaluation, predictor: str) -> tuple[Report, list[Pair]]:
    """Returns the report on ``predictor``'s uncalibrated projections, and the pairs that it rests on."""
    rows = frame.part(evaluation.once, predictor=predictor, fit="uncalibrated")
    all_pairs = pairs(rows)
    summaries = switches(all_pairs)
    grown = scaling(rows)
    whole, macro = sign_share(summaries)
    real = summaries["real"][summaries["stated"]].sum()
    item = {
        "pairs": sum(p.stated for p in all_pairs),
        "real": real,
        "least": 100 * REAL,
        "whole": whole,
        "macro": macro,
    }
    good, points = within(grown)
    grown_item = {"jobs": len(grown), "good": good, "points": points, "goal": 100 * GOAL}
    lines = [*said("switches", item), *(said("scaling", grown_item) if points else ())]
    stated, kinds = summaries["stated"], ("By recipe field", "Switches that no recipe field holds")
    job = lambda at: f"{at[1].model}, {at[0].settings}"  # noqa: E731
    grown_points = [(series, point) for series in grown for point in series.points]
    right = lambda switch: switch.right if switch.real else None  # noqa: E731
    marked = lambda error: f"{signed(error)}{' ✗' if abs(error) > GOAL else ''}"  # noqa: E731
    tables = (
        *(
            tabled("switches", frame.lines(part), title=title, right=right)
            for title, part in zip(kinds, (summaries[stated], summaries[~stated]), strict=True)
        ),
        tabled("ladders", ladders(rows), projected=_projected),
        tabled("scaling", grown_points, job=job, marked=marked, goal=f"{100 * GOAL:.0f}"),
        tabled("switch_pairs", [p for p in all_pairs if p.stated], projected=_projected, real=f"{100 * REAL:.0f}"),
    )
    return Report.of("Switches", tables, lines), all_pairs


def _projected(gain: Gain) -> str:
    return f"{gain.projected:.3f}{' ✗' if gain.real and not gain.right else ''}"


def plot(found: Sequence[Pair]) -> Figure | None:
    """Draws projected over measured gain of every pair, a row a switch; None where there are no pairs."""
    found = [p for p in found if p.stated]
    names = sorted({p.switch for p in found}, reverse=True)
    if not names:
        return None
    figure = blank(8.0, 0.8 + 0.34 * len(names))
    axes = figure.subplots()
    for right, colour, marker in ((True, BLUE, "o"), (False, VERMILION, "^")):
        chosen = [p for p in found if (p.right or not p.real) == right]
        gains, places = [100 * p.error for p in chosen], [names.index(p.switch) for p in chosen]
        label = "sign right, or gain within 2 %" if right else "sign wrong"
        axes.scatter(gains, places, s=16, color=colour, marker=marker, alpha=0.6, linewidths=0, label=label)
    axes.axvline(0.0, color=GREY, linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    plain(axes)
    axes.set_xlabel("ln(projected gain / measured gain), %", fontsize=9)
    axes.legend(loc="upper left", fontsize=8, frameon=False)
    return figure
