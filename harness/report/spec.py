"""A table is a specification: metrics by groups of rows, or columns over any list of values. No renderer is known here.

A :class:`Spec` names metrics of :data:`METRICS` and columns to group by; :func:`table` makes the table of it from the frame
of rows. What is no figure of a group of rows goes through :func:`projector.io.table.listed`, with columns of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.contracts import frame
from harness.contracts.estimates import publisher
from harness.contracts.frame import CELL
from harness.report.parallelism import DEGREES, order
from harness.report.table import NONE, Cell, Column, Table, cells, columns, figure, number, percent, signed, text
from harness.score.figures import Figures
from projector.dataclass import dataclass
from projector.io.table import number0, number1, number3, percent0, signed0

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["GOAL", "GROUPS", "METRICS", "NOT_STATED", "Spec", "few", "metric", "number0", "number1", "number3"]
__all__ += ["percent0", "signed0", "span", "stated", "table", "values", "yes_no"]

NOT_STATED = "not stated"


def yes_no(value: object) -> str:
    return "yes" if value else "no"


def stated(value: object) -> str:
    """As it is; a dash where there is nothing."""
    return str(value) or NONE


def few(words: Sequence[str], most: int = 4) -> str:
    return ", ".join(words[:most]) + (f" +{len(words) - most}" if len(words) > most else "")


def span(ends: tuple[float, float], shown: Callable[[float], str] = percent) -> str:
    return f"{shown(ends[0])} to {shown(ends[1])}"


number_span = partial(span, shown=number)


#: Where nine of ten measurements inside their interval are met: the goal of interval coverage.
GOAL = (0.85, 0.95)


def _met(macro: float) -> str:
    return "below" if macro < GOAL[0] else "above" if macro > GOAL[1] else "yes"


#: What may stand in a table, of the rows of one line. Held out, where nothing else is said.
METRICS: Mapping[str, Cell] = {
    "rows": figure("rows", "held.rows", help="runs selected"),
    "incomplete": figure("incomplete", "held.incomplete", help="the source does not state a whole configuration"),
    "compared": figure("compared", "held.compared", help="rows with a projected and a measured throughput"),
    "coverage": figure("coverage", "held.coverage", percent, "compared / measured and complete"),
    "uncalibrated": figure("uncalibrated", "uncalibrated.macro_mape", percent, "macro MAPE of TGS with nothing fitted"),
    "calibrated": figure("calibrated", "calibrated.macro_mape", percent, "macro MAPE, the law fitted on all rows"),
    "mape": figure(
        "held out",
        "held.macro_mape",
        percent,
        "macro MAPE, each row by a law that saw no row of its family",
    ),
    "plain": figure("plain", "held.mape", percent, "held-out MAPE, every row weighing the same"),
    "bias": figure("bias", "held.macro_bias", signed, "held-out macro mean of the signed error"),
    "median": figure("median", "held.median", percent, "of |error|, held out"),
    "p90": figure("p90", "held.p90", percent, "90 % of the rows are off by no more"),
    "worst": figure("worst", "held.worst", signed, "the row that is furthest off, held out"),
    "worst_row": text("worst row", "held.worst_id"),
    "cells": figure("cells", "held.cells", help="of model family, GPU and framework"),
    "plain_bias": figure("bias", "held.bias", signed, "held-out mean of the signed error"),
    "plain_uncalibrated": figure("plain", "uncalibrated.mape", percent, "uncalibrated, every row the same"),
    "bias_uncalibrated": figure("bias uncalibrated", "uncalibrated.bias", signed, "mean signed error, nothing fitted"),
    "worst_uncalibrated": figure("worst", "uncalibrated.worst", signed, "uncalibrated"),
    "baseline": figure("baseline", "baseline.macro_mape", percent, "constant MFU on the same rows"),
    "beaten": text("beaten", "beats", yes_no),
    "ms": figure("ms", "milliseconds", number, "mean milliseconds of one projection"),
    "gpus": text("GPUs", lambda f: few(sorted({*f.rows["gpu"]} - {""}), 3) or NONE),
    "groups": figure("groups", "order.groups"),
    "ranked": figure("rows", "order.rows", help="in groups"),
    "tau": figure("tau-b", "order.tau", number, "Kendall's, mean over groups"),
    "tau_range": text("90 %", "order.tau_range", number_span, "bootstrap over groups"),
    "tau_seen": figure(
        "tau-b seen",
        lambda f: f"{number(f.order_seen.tau)} ({f.order_seen.groups})",
        help="of groups whose rows differ in a field that a projector sees",
    ),
    "agreement": figure("agreement", "order.agreement", percent, "share of pairs in the right order"),
    "agreement_range": text("90 %", "order.agreement_range", span),
    "pooled": figure("pooled", "order.pooled_agreement", percent, "agreement over all pairs of all groups"),
    "pooled_range": text("90 %", "order.pooled_range", span),
    "regret": figure("regret", "order.regret", percent, "mean throughput lost by running the projected best"),
    "regret_range": text("90 %", "order.regret_range", span),
    "best_place": figure(
        "place of the best", "order.place", number, "of the measured best in the projected order, 1 first"
    ),
    "top3": figure(
        "top 3", "order.recall", percent, "of the projected first three, those among the measured first three"
    ),
    "worst_regret": figure("worst regret", "order.worst_regret", percent),
    "worst_group": text("worst group", "order.worst_group"),
    "intervals": figure("rows", "intervals.rows", help="with an interval and a measurement"),
    "inside": figure("inside", "intervals.inside", percent, "measurements inside their 90 % interval"),
    "inside_macro": figure("inside, macro", "intervals.macro", percent, "every cell weighing the same"),
    "width": figure("width", "intervals.width", percent0, "median of high / low − 1"),
    "width_cells": figure("width of cells", "intervals.macro_width", percent0, "median over cells"),
    "inside_goal": text(f"{percent(GOAL[0], 0)} to {percent(GOAL[1], 0)}", "intervals.macro", _met),
    "memory_rows": figure("compared", "memory.compared", help="rows with a measured and a projected peak"),
    "memory_mape": figure("MAPE", "memory.macro_mape", percent, "of peak memory, macro"),
    "memory_plain": figure("plain", "memory.mape", percent, "of peak memory, every row the same"),
    "memory_bias": figure("bias", "memory.bias", signed, "of peak memory"),
    "memory_worst": figure("worst", "memory.worst", signed, "of peak memory"),
    "memory_worst_row": text("worst row", "memory.worst_id"),
}

#: Columns that rows may be grouped by, with their titles; keys of a configuration may be, too.
GROUPS: Mapping[str, str] = {
    **{name: name for name in ("predictor", "suite", "group", "model", "family", "precision", "framework", "status")},
    "gpu": "GPU",
    "gpus": "GPUs",
    "arch": "architecture",
    "vendor": "vendor",
    "run_id": "run",
    "source": "title of the source",
    "source_kind": "kind of source",
    "framework_version": "version",
    "memory_kind": "memory measured as",
    "assumptions": "assumptions",
    "cell": "cell",
    "publisher": "source",
    **{key: words for key, (words, _) in DEGREES.items()},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A table as data. ``by``: keys of :data:`GROUPS` or of configurations. ``metrics``: keys of :data:`METRICS`; one may
    end with ``?`` (a minor column; the more of them, the sooner it goes) and with ``:`` and a title of its own.

    ``needs``: a line without this metric is left out, and named below the table. ``title``: ``{predictor}`` is filled in.
    """

    title: str
    by: tuple[str, ...]
    metrics: tuple[str, ...]
    note: str = ""
    needs: str = ""
    detail: bool = False


def metric(reference: str) -> Cell:
    """What an entry of :attr:`Spec.metrics` stands for."""
    named, _, title = reference.partition(":")
    found = METRICS[named.rstrip("?")]
    minor = len(named) - len(named.rstrip("?"))
    column = replace(found.column, minor=minor, title=title or found.column.title)
    return replace(found, column=column)


def table(whole: pd.DataFrame, spec: Spec, predictor: str | None = None) -> Table:
    """The table of the unique rows ``whole``; ``predictor``: of this one alone, with the others for the baseline."""
    rows = whole if predictor is None else frame.part(whole, predictor=predictor)
    keyed = rows.assign(**{f"by {name}": values(rows, name) for name in spec.by})
    found = frame.parts(keyed, [f"by {name}" for name in spec.by])
    lines = sorted(((key, Figures(part, whole)) for key, part in found), key=lambda line: _place(line[0], spec))
    idle = [line for line in lines if spec.needs and METRICS[spec.needs](line[1]) in ("0", NONE)]
    kept = [line for line in lines if line not in idle]
    made = [metric(reference) for reference in spec.metrics]
    said = ", ".join(f"{', '.join(key)} ({f.held.rows})" for key, f in idle)
    return Table(
        title=spec.title.format(predictor=predictor),
        columns=(*(Column(GROUPS.get(name, name), numeric=False) for name in spec.by), *columns(made)),
        rows=tuple((*key, *cells(made, figures)) for key, figures in kept),
        note=" ".join(word for word in (spec.note, f"Nothing to compare (rows): {said}." if said else "") if word),
        detail=spec.detail,
    )


def _place(key: Sequence[str], spec: Spec) -> tuple[tuple[int, str], ...]:
    """Predictors stay in their order; all else goes by size or by name."""
    return tuple(
        (0, "") if name == "predictor" else order(value.lower()) for name, value in zip(spec.by, key, strict=True)
    )


def values(rows: pd.DataFrame, name: str) -> pd.Series[Any]:
    """A column to group by, as text."""
    if name == "cell":
        found = rows[list(CELL)].replace("", NONE).agg(", ".join, axis=1) if len(rows) else rows["family"]
    elif name == "publisher":
        found = rows["source"].map(publisher)
    elif name in DEGREES:
        found = frame.configured(rows, name, DEGREES[name][1])
    elif name in rows:
        found = rows[name].astype(str)
    else:
        found = frame.configured(rows, name)
    return found.replace("", NOT_STATED)
