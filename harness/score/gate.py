"""Thresholds of a suite against the held-out figures of its rows. Pure functions; the exit code follows from them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.calibrate import intervals
from harness.contracts.results import Row, RunFacts
from harness.score import accuracy, ranking
from projector.errors import Problem, nearest

__all__ = ["THRESHOLDS", "Check", "Threshold", "check", "parse_limits"]


@dataclass(frozen=True, slots=True)
class Threshold:
    """``at_least`` False: the figure may not exceed the limit. ``low``/``high`` bound what a suite may ask for.

    ``fit``: the rows it is judged on. A factor fitted per GPU hides a constant that is wrong by the same share in all
    rows of that GPU: ``uncalibrated_mape`` sees it.
    """

    meaning: str
    at_least: bool
    low: float
    high: float
    fit: str = "heldout"
    unit: str = "as a fraction"


THRESHOLDS: dict[str, Threshold] = {
    "mape": Threshold("macro mean absolute TGS error", False, 0.0, 10.0),
    "bias": Threshold("absolute macro mean signed TGS error", False, 0.0, 10.0),
    "worst": Threshold("largest absolute TGS error of one row", False, 0.0, 100.0),
    "coverage": Threshold("share of measured, completely configured rows that are projected", True, 0.0, 1.0),
    "kendall_tau": Threshold("mean Kendall tau-b over groups", True, -1.0, 1.0),
    "top1_regret": Threshold("mean throughput lost by the projected best of a group", False, 0.0, 1.0),
    "interval_coverage": Threshold("share of measurements inside their 90 % interval, macro", True, 0.0, 1.0),
    "memory_mape": Threshold("macro mean absolute memory error", False, 0.0, 10.0),
    "uncalibrated_mape": Threshold("macro mean absolute TGS error before any fit", False, 0.0, 10.0, "uncalibrated"),
    "min_rows": Threshold("rows with an error", True, 1, 1e6, unit="a number of rows"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of a gate. ``found`` None: the rows define no such figure, which fails."""

    suite: str
    predictor: str
    name: str
    found: float | None
    limit: float
    passed: bool
    detail: str = ""

    def __str__(self) -> str:
        relation = ">=" if THRESHOLDS[self.name].at_least else "<="
        found = "not defined by these rows" if self.found is None else f"{self.found:.4g}"
        tail = f" ({self.detail})" if self.detail else ""
        word = "PASS" if self.passed else "FAIL"
        return f"{word} {self.suite} {self.predictor} {self.name}: {found}, required {relation} {self.limit:g}{tail}"


def parse_limits(limits: object, where: str, key: str) -> tuple[dict[str, float], list[Problem]]:
    """The limits of one mode by threshold, and what is wrong with them; ``key``: where they stand in the file."""
    if not isinstance(limits, Mapping):
        return {}, [Problem(where, key, limits, "a mapping of thresholds: " + ", ".join(THRESHOLDS))]
    read: dict[str, float] = {}
    problems: list[Problem] = []
    for name, limit in limits.items():
        expected = _expected_limit(name, limit)
        if expected:
            problems.append(Problem(where, f"{key}.{name}", limit, expected))
        else:
            read[str(name)] = float(limit)
    return read, problems


def _expected_limit(name: object, limit: object) -> str:
    known = THRESHOLDS.get(str(name))
    if known is None:
        return nearest(str(name), tuple(THRESHOLDS))
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not known.low <= limit <= known.high:
        return f"a number from {known.low:g} to {known.high:g}: {known.meaning}, {known.unit}"
    return ""


def check(
    suite: str, rows: Sequence[Row], facts: Mapping[str, RunFacts], gate: Mapping[str, Mapping[str, float]]
) -> list[Check]:
    """Every threshold of the predictors (modes) that were run, on the rows of this suite and of the threshold's fit."""
    mine: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.suite == suite:
            mine.setdefault((row.predictor, row.fit), []).append(row)
    ran = {predictor for predictor, _ in mine}
    return [
        _one(suite, mode, name, limit, mine.get((mode, THRESHOLDS[name].fit), []), facts)
        for mode, limits in gate.items()
        if mode in ran
        for name, limit in limits.items()
    ]


def _one(suite: str, mode: str, name: str, limit: float, rows: list[Row], facts: Mapping[str, RunFacts]) -> Check:
    found, detail = _FIGURES[name](rows, facts)
    holds = operator.ge if THRESHOLDS[name].at_least else operator.le
    passed = found is not None and bool(holds(found, limit))
    return Check(suite=suite, predictor=mode, name=name, found=found, limit=limit, passed=passed, detail=detail)


Figure = tuple[float | None, str]


def _mape(rows: list[Row], facts: Mapping[str, RunFacts]) -> Figure:
    s = accuracy.summarise(rows, facts)
    return s.macro_mape, f"{s.compared} rows in {s.cells} cells"


def _bias(rows: list[Row], facts: Mapping[str, RunFacts]) -> Figure:
    s = accuracy.summarise(rows, facts)
    return (None, "") if s.macro_bias is None else (abs(s.macro_bias), f"signed {s.macro_bias:+.4f}")


def _worst(rows: list[Row], facts: Mapping[str, RunFacts]) -> Figure:
    s = accuracy.summarise(rows, facts)
    return (None, "") if s.worst is None else (abs(s.worst), s.worst_id)


def _coverage(rows: list[Row], facts: Mapping[str, RunFacts]) -> Figure:
    s = accuracy.summarise(rows, facts)
    return s.coverage, f"{s.compared} of {s.eligible} rows"


def _tau(rows: list[Row], facts: Mapping[str, RunFacts]) -> Figure:
    s = ranking.summary(ranking.group_rankings(rows, facts))
    return s.tau, f"{s.groups} groups"


def _regret(rows: list[Row], facts: Mapping[str, RunFacts]) -> Figure:
    s = ranking.summary(ranking.group_rankings(rows, facts))
    return s.regret, f"worst group {s.worst_group}" if s.worst_group else ""


def _memory(rows: list[Row], _: Mapping[str, RunFacts]) -> Figure:
    s = accuracy.memory_error(rows)
    return (None, "") if s is None else (s.macro_mape, f"{s.compared} rows, worst {s.worst_id}")


def _rows(rows: list[Row], facts: Mapping[str, RunFacts]) -> Figure:
    s = accuracy.summarise(rows, facts)
    return float(s.compared), f"of {s.rows} rows"


def _inside(rows: list[Row], _: Mapping[str, RunFacts]) -> Figure:
    found = intervals.coverage(rows)
    return (None, "") if found is None else (found.macro, f"{found.rows} rows, {found.inside:.3f} of them inside")


_FIGURES: dict[str, Callable[[list[Row], Mapping[str, RunFacts]], Figure]] = {
    "mape": _mape,
    "bias": _bias,
    "worst": _worst,
    "coverage": _coverage,
    "kendall_tau": _tau,
    "top1_regret": _regret,
    "interval_coverage": _inside,
    "memory_mape": _memory,
    "uncalibrated_mape": _mape,
    "min_rows": _rows,
}
