"""Judges the held-out figures of a suite's rows by the suite's thresholds. Pure functions; the exit code follows from
them."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.contracts import frame
from harness.contracts.results import BASELINE
from harness.score.figures import Figures
from projector.dataclass import dataclass
from projector.errors import Problem, nearest
from projector.io.files import read_yaml
from projector.io.table import at, filled

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """One kind of threshold, as ``thresholds.yaml`` describes it."""

    meaning: str
    of: str = ""
    beside: str = ""
    size: bool = False
    at_least: bool = False
    low: float = 0.0
    high: float = 10.0
    unit: str = "as a fraction"
    each_gpu: bool = False

    def found(self, figures: Figures) -> tuple[float | None, str]:
        """Returns the figure, and what is said beside it; None and nothing where the rows define none."""
        value = at(figures, self.of)
        if value is None:
            return None, ""
        return float(abs(value) if self.size else value), filled(self.beside, figures)


THRESHOLDS: dict[str, Threshold] = {
    name: Threshold(**said) for name, said in read_yaml(Path(__file__).with_name("thresholds.yaml")).items()
}
#: Judged where trainings ran.
SHRINK = "shrink"
#: ``by_gpu: {bias: 0.2}`` in a suite is ``by_gpu.bias`` here: the figure of the worst GPU with enough rows.
BY_GPU = "by_gpu"
THRESHOLDS |= {
    f"{BY_GPU}.{name}": replace(threshold, meaning=f"{threshold.meaning}, of the worst GPU")
    for name, threshold in THRESHOLDS.items()
    if threshold.each_gpu
}
#: Figures that do not depend on measured seconds.
_COUNTS = ("coverage", "missing_models", "memory_mape", "min_rows")
#: Least compared rows for which a GPU is judged: the figure of fewer rows is chance.
FEWEST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of a gate. ``found`` None: the rows define no such figure, which fails. ``inconclusive``: measurements
    scatter by more than the limit, so that nothing follows from them."""

    suite: str
    predictor: str
    name: str
    found: float | None
    limit: float
    passed: bool
    detail: str = ""
    inconclusive: bool = False

    def __str__(self) -> str:
        relation = ">=" if THRESHOLDS[self.name].at_least else "<="
        value = "not defined by these rows" if self.found is None else f"{self.found:.4g}"
        tail = f" ({self.detail})" if self.detail else ""
        word = "FAIL" if not self.passed else "INCONCLUSIVE" if self.inconclusive else "PASS"
        return f"{word} {self.suite} {self.predictor} {self.name}: {value}, required {relation} {self.limit:g}{tail}"


def parse_limits(limits: object, where: str, key: str) -> tuple[dict[str, float], list[Problem]]:
    """Returns the limits of one mode by threshold, and their problems; ``key``: where they stand in the file."""
    if not isinstance(limits, Mapping):
        return {}, [Problem(where, key, limits, "a mapping of thresholds: " + ", ".join(THRESHOLDS))]
    parsed: dict[str, float] = {}
    problems: list[Problem] = []
    each_gpu = limits.get(BY_GPU)
    if isinstance(each_gpu, Mapping):  # in one mapping, with a prefix
        rest = {name: limit for name, limit in limits.items() if name != BY_GPU}
        limits = rest | {f"{BY_GPU}.{name}": limit for name, limit in each_gpu.items()}
    for name, limit in limits.items():
        expected = _expected_limit(name, limit)
        if expected:
            problems.append(Problem(where, f"{key}.{name}", limit, expected))
        else:
            parsed[str(name)] = float(limit)
    return parsed, problems


def _expected_limit(name: object, limit: object) -> str:
    known = THRESHOLDS.get(str(name))
    if known is None:
        return nearest(str(name), tuple(THRESHOLDS))
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not known.low <= limit <= known.high:
        return f"a number from {known.low:g} to {known.high:g}: {known.meaning}, {known.unit}"
    return ""


def check(suite: str, rows: pd.DataFrame, gate: Mapping[str, Mapping[str, float]]) -> list[Check]:
    """Checks every threshold of the predictors (modes) that were run on the rows of this suite, and, whatever the suite
    asks, that the zoo has every model. Figures of seconds are judged without runs that were ``disturbed`` while they
    were measured, and a threshold that then holds is inconclusive."""
    chosen = frame.part(rows, suite=suite)
    unclear = sorted(set(chosen.loc[chosen["disturbed"], "run_id"]))
    by_mode = {
        str(mode): Figures(part, chosen) for (mode,), part in frame.parts(chosen, ["predictor"]) if mode != BASELINE
    }
    checks = []
    for mode, of in by_mode.items():
        clear = Figures(of.rows[~of.rows["disturbed"]], of.whole[~of.whole["disturbed"]])
        lacking = {"missing_models": 0.0} if of.missing_models[0] else {}
        for name, limit in {**lacking, **gate.get(mode, {})}.items():
            if name != SHRINK and (not unclear or name in _COUNTS):
                checks.append(_check_threshold(suite, mode, name, limit, of))
            elif name != SHRINK:
                line = _check_threshold(suite, mode, name, limit, clear)
                detail = ", ".join(filter(None, (line.detail, f"disturbed: {', '.join(unclear)}")))
                passed = line.passed or line.found is None
                checks.append(replace(line, passed=passed, inconclusive=True, detail=detail))
    return checks


def _check_threshold(suite: str, mode: str, name: str, limit: float, of: Figures) -> Check:
    threshold = THRESHOLDS[name]
    value, detail = _worst_gpu(of, threshold) if name.startswith(f"{BY_GPU}.") else threshold.found(of)
    holds = operator.ge if threshold.at_least else operator.le
    passed = value is not None and bool(holds(value, limit))
    return Check(suite=suite, predictor=mode, name=name, found=value, limit=limit, passed=passed, detail=detail)


def _worst_gpu(of: Figures, threshold: Threshold) -> tuple[float | None, str]:
    """Returns the figure of the GPU that is furthest on the wrong side, and what is said beside it."""
    by_gpu = {str(gpu): Figures(rows, of.whole) for (gpu,), rows in frame.parts(of.rows, ["gpu"])}
    figures = {gpu: threshold.found(of_gpu) for gpu, of_gpu in by_gpu.items() if of_gpu.uncalibrated.compared >= FEWEST}
    known = {gpu: (value, detail) for gpu, (value, detail) in figures.items() if value is not None}
    if not known:
        return None, f"no GPU has {FEWEST} rows"
    pick = min if threshold.at_least else max
    gpu = pick(known, key=lambda gpu: known[gpu][0])
    value, detail = known[gpu]
    return value, f"{gpu}: {detail}" if detail else gpu
