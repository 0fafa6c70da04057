"""Optima of two sets of laws under each other, as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.evaluation.regret import Choice, Compared
from harness.report.table import Report, figure, listed, text
from projector.dataclass import dataclass
from projector.workload.fast_domain import written


@dataclass(frozen=True)
class _Line:
    """One optimum: ``regret``: how much slower it is than the other by the other's laws."""

    of: Compared
    whose: str
    choice: Choice | None
    regret: float


def build(title: str, found: Sequence[Compared]) -> Report:
    lines = [
        line
        for each in found
        for line in (
            _Line(each, "its", each.its, each.regret_of_its),
            _Line(each, "ours", each.ours, each.regret_of_ours),
        )
    ]
    optima = (
        text("strategy", lambda line: f"{line.of.strategy}, {line.of.domain}"),
        text("of", "whose"),
        text("configuration", lambda line: _named(line.choice)),
        text("domain", lambda line: _placed(line.choice)),
        figure("its s", lambda line: f"{line.choice.its:.2f}" if line.choice else ""),
        figure("our s", lambda line: f"{line.choice.ours:.2f}" if line.choice else ""),
        figure("regret", lambda line: "" if math.isnan(line.regret) else f"{100 * line.regret:.1f} %"),
    )
    note = (
        "its: of transformer-perf-estimates (arXiv:2410.00273) and by its laws; strategy: with the GPUs of a fast domain; "
        "nb: panels; domain: ranks of each group in one; "
        "regret: how much slower than the other's optimum by the other's laws; *: does not fit in memory by the other's."
    )
    space = (
        text("strategy", lambda each: f"{each.strategy}, {each.domain}"),
        figure("configurations", "tried", "{:,}".format),
        figure("fit by its laws", lambda each: f"{each.fitting[0]:,}"),
        figure("fit by ours", lambda each: f"{each.fitting[1]:,}"),
    )
    tables = (listed("Optima under each other's laws", lines, optima, note), listed("Space", found, space))
    return Report(title=title, tables=tables)


def _named(choice: Choice | None) -> str:
    if choice is None:
        return "nothing fits"
    how = choice.config
    second = f"x{how.tp2}" if how.tp2 > 1 else ""
    panels = f" nb{how.panels}" if how.panels > 1 else ""
    return f"tp{how.tp}{second} dp{how.dp} pp{how.pp} mbs{how.mbs}{panels}{'' if all(choice.fits) else ' *'}"


def _placed(choice: Choice | None) -> str:
    if choice is None:
        return ""
    near = choice.placed
    return written({"tp": near.tp, "tp2": near.tp2, "dp": near.dp, "pp": near.pp})
