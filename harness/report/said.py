"""The sentences of reports, as data: ``sentences.yaml`` beside this file has them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.evidence import shelf
from harness.report.spec import SHOWN, yes_no
from projector.io.table import NONE, at, filled, percent

_FILE: Mapping[str, Any] = shelf.data("report/sentences.yaml")
#: Where to look, by cause of a slow step.
LOOK: Mapping[str, str] = _FILE["look"]
_LINES: Mapping[str, Sequence[Mapping[str, Any]]] = _FILE["lines"]


def said(key: str, item: Any) -> list[str]:
    """Returns the sentences ``key`` about an item (:func:`projector.io.table.filled`). One with an ``if`` stands only where
    the item has a value there that is neither None, False nor an empty text."""
    told = []
    for each in _FILE[key]:
        text, condition = (each, "") if isinstance(each, str) else (each["say"], each["if"])
        value = at(item, condition) if condition else True
        told += [filled(text, item, SHOWN)] if value is not None and value is not False and value != "" else []
    return told


def lines(key: str, item: Any) -> list[tuple[str, str, str, str]]:
    """Returns the lines ``key``: title, text (a dash without its figure), goal, and whether the goal is met, of those that
    have one."""
    shown = []
    for each in _LINES[key]:
        known = at(item, each["of"]) is not None if "of" in each else True
        text = filled(each["say"], item, SHOWN) if known else NONE
        shown.append((filled(each["title"], item), text, *_met(each, item)))
    return shown


def _met(line: Mapping[str, Any], item: Any) -> tuple[str, str]:
    if "of" not in line:
        return "", ""
    value, ends = at(item, line["of"]), (line.get("least"), line.get("most"))
    least, most = (at(item, end) if isinstance(end, str) else end for end in ends)
    bounds = [f"{sign} {percent(bound, 0)}" for sign, bound in (("≥", least), ("≤", most)) if bound is not None]
    goal = line.get("goal") or (bounds[0] if len(bounds) == 1 else f"{percent(least, 0)} to {percent(most, 0)}")
    met = (
        value is not None
        and value is not False
        and (least is None or value >= least)
        and (most is None or value <= most)
    )
    return goal, yes_no(met)
