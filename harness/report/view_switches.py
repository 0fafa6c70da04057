"""The report on switches: what each gains, measured and projected, as tables and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.contracts import frame
from harness.contracts.results import Evaluation
from harness.report.plot import BLUE, GREY, VERMILION, blank, plain
from harness.report.table import NONE, Report, Table, figure, listed, percent, signed, text
from harness.score.scaling import GOAL, Series, scaling, within
from harness.score.switches import REAL, Pair, ladders, pairs, sign_share, switches
from projector.errors import cut

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_LONGEST = 28


def build(evaluation: Evaluation, predictor: str) -> tuple[Report, list[Pair]]:
    """The report on ``predictor``'s uncalibrated projections, and the pairs that it is made of."""
    rows = frame.part(evaluation.once, predictor=predictor, fit="uncalibrated")
    found = pairs(rows)
    summaries = switches(found)
    grown, climbed = scaling(rows), ladders(rows)
    whole, macro = sign_share(summaries)
    lines = (
        f"{sum(p.stated for p in found)} pairs of measured runs differ in one recipe field; of the "
        f"{summaries['real'][summaries['stated']].sum()} with a measured "
        f"gain beyond {100 * REAL:.0f} %, {percent(whole)} are projected with the right sign ({percent(macro)} as a mean"
        " over switches)",
        *_efficiency(grown),
    )
    tables = (
        _by_switch("By recipe field", summaries[summaries["stated"]]),
        _by_switch("Switches that no recipe field holds", summaries[~summaries["stated"]]),
        *((listed("Ladders", climbed, _STEPS, "each run keeps what the runs before it changed"),) if climbed else ()),
        *((_by_size(grown),) if grown else ()),
        listed("Pairs", [p for p in found if p.stated], _PAIRS, _WRONG),
    )
    return Report(title="Switches", lines=lines, tables=tables), found


def _by_switch(title: str, summaries: pd.DataFrame) -> Table:
    made = (
        text("Switch", "Index"),
        figure("pairs", "pairs"),
        figure("gain > 2 %", "real"),
        figure("right sign", lambda s: s.right if s.real else NONE),
        figure("mean |ln error|", lambda s: f"{s.spread:.3f}"),
        figure("mean ln error", lambda s: f"{s.bias:+.3f}"),
    )
    return listed(title, frame.lines(summaries), made, "ln error: of the projected over the measured gain")


def _efficiency(grown: Sequence[Series]) -> tuple[str, ...]:
    good, points = within(grown)
    if not points:
        return ()
    return (
        f"{len(grown)} jobs were measured on several numbers of GPUs: at {good} of {points} sizes beyond the smallest the "
        f"projected efficiency is within {100 * GOAL:.0f} % of the measured one",
    )


def _by_size(grown: Sequence[Series]) -> Table:
    made = (
        text("Source", lambda at: cut(at[0].origin, _LONGEST)),
        text("GPU", lambda at: at[0].gpu),
        text("job", lambda at: f"{at[1].model}, {at[0].settings}"),
        figure("GPUs", lambda at: at[0].smallest),
        figure("to", lambda at: at[1].gpus),
        figure("measured efficiency", lambda at: f"{at[1].measured:.3f}"),
        figure("projected efficiency", lambda at: f"{at[1].projected:.3f}"),
        figure("error", lambda at: f"{signed(at[1].error)}{' ✗' if abs(at[1].error) > GOAL else ''}"),
    )
    note = (
        "efficiency: FLOP/s of the model on one GPU over those at the smallest size of the series; "
        f"✗: projected beyond {100 * GOAL:.0f} % of the measured one"
    )
    return listed("Scaling", [(series, point) for series in grown for point in series.points], made, note)


_GAINS = (
    figure("measured gain", lambda g: f"{g.measured:.3f}"),
    figure("projected gain", lambda g: f"{g.projected:.3f}{' ✗' if g.real and not g.right else ''}"),
)
_STEPS = (text("Ladder", "group"), text("changed", lambda s: ", ".join(s.changed)), *_GAINS)
_PAIRS = (
    text("Switch", "switch"),
    text("from", lambda p: cut(p.before, _LONGEST)),
    text("to", lambda p: cut(p.after, _LONGEST)),
    *_GAINS,
    text("first run", "first"),
    text("second run", "second"),
)
_WRONG = f"✗: the sign of a measured gain beyond {100 * REAL:.0f} % is projected wrong"


def plot(found: Sequence[Pair]) -> Figure | None:
    """Projected over measured gain of every pair, a row a switch. None: no pairs."""
    found = [p for p in found if p.stated]
    names = sorted({p.switch for p in found}, reverse=True)
    if not names:
        return None
    drawn = blank(8.0, 0.8 + 0.34 * len(names))
    axes = drawn.subplots()
    for right, colour, marker in ((True, BLUE, "o"), (False, VERMILION, "^")):
        chosen = [p for p in found if (p.right or not p.real) == right]
        axes.scatter(
            [100 * p.error for p in chosen],
            [names.index(p.switch) for p in chosen],
            s=16,
            color=colour,
            marker=marker,
            alpha=0.6,
            linewidths=0,
            label="sign right, or gain within 2 %" if right else "sign wrong",
        )
    axes.axvline(0.0, color=GREY, linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    plain(axes)
    axes.set_xlabel("ln(projected gain / measured gain), %", fontsize=9)
    axes.legend(loc="upper left", fontsize=8, frameon=False)
    return drawn
