"""Judges the held-out figures of a suite's rows by the suite's thresholds. Pure functions; the exit code follows from
them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.contracts import frame
from harness.contracts.results import BASELINE
from harness.contracts.runs import MISSING_MODEL
from harness.score.accuracy import Summary
from harness.score.figures import Figures
from projector.dataclass import dataclass
from projector.errors import Problem, nearest

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Threshold:
    """One kind of threshold. ``at_least`` False: the figure may not exceed the limit. ``low``/``high`` bound the limits
    that a suite may ask for."""

    meaning: str
    at_least: bool
    low: float
    high: float
    unit: str = "as a fraction"


THRESHOLDS: dict[str, Threshold] = {
    "mape": Threshold("macro mean absolute TGS error", False, 0.0, 10.0),
    "bias": Threshold("absolute macro mean signed TGS error", False, 0.0, 10.0),
    "worst": Threshold("largest absolute TGS error of one row", False, 0.0, 100.0),
    "coverage": Threshold("share of measured, completely configured rows that are projected", True, 0.0, 1.0),
    "kendall_tau": Threshold("mean Kendall tau-b over groups", True, -1.0, 1.0),
    "top1_regret": Threshold("mean throughput lost by the projected best of a group", False, 0.0, 1.0),
    "best_place": Threshold(
        "mean place of the measured best in the projected order of a group", False, 1.0, 1e3, unit="a place, 1 is first"
    ),
    "top3_recall": Threshold(
        "share of the projected first three that are among the measured first three", True, 0.0, 1.0
    ),
    "interval_coverage": Threshold("share of measurements inside their 90 % interval, macro", True, 0.0, 1.0),
    "memory_mape": Threshold("macro mean absolute memory error", False, 0.0, 10.0),
    "uncalibrated_mape": Threshold("macro mean absolute TGS error before any fit", False, 0.0, 10.0),
    "uncalibrated_bias_min": Threshold("macro mean signed TGS error before any fit", True, -1.0, 10.0),
    "uncalibrated_bias_max": Threshold("macro mean signed TGS error before any fit", False, -1.0, 10.0),
    "missing_models": Threshold("models that the zoo does not have", False, 0, 1e6, unit="a number of models"),
    "min_rows": Threshold("rows with an error", True, 1, 1e6, unit="a number of rows"),
}
#: Not a figure of rows: judged where trainings ran (:mod:`harness.measure.shrink_test`).
SHRINK = "shrink"
THRESHOLDS[SHRINK] = Threshold("largest error of a training on several processes from times of one", False, 0.0, 10.0)
#: ``by_gpu: {bias: 0.2}`` in a suite is ``by_gpu.bias`` here: the figure of the worst GPU with enough rows.
BY_GPU = "by_gpu"
_EACH_GPU = ("mape", "bias", "uncalibrated_mape", "uncalibrated_bias_min", "uncalibrated_bias_max")
THRESHOLDS |= {
    f"{BY_GPU}.{name}": replace(THRESHOLDS[name], meaning=f"{THRESHOLDS[name].meaning}, of the worst GPU")
    for name in _EACH_GPU
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
        lacking = {"missing_models": 0.0} if _missing(of)[0] else {}
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
    part, _, plain = name.rpartition(".")
    value, detail = _worst_gpu(of, plain) if part else _FIGURES[name](of)
    holds = operator.ge if THRESHOLDS[name].at_least else operator.le
    passed = value is not None and bool(holds(value, limit))
    return Check(suite=suite, predictor=mode, name=name, found=value, limit=limit, passed=passed, detail=detail)


def _worst_gpu(of: Figures, name: str) -> tuple[float | None, str]:
    """Returns the figure of the GPU that is furthest on the wrong side, and what is said beside it."""
    by_gpu = {str(gpu): Figures(rows, of.whole) for (gpu,), rows in frame.parts(of.rows, ["gpu"])}
    figures = {gpu: _FIGURES[name](of_gpu) for gpu, of_gpu in by_gpu.items() if of_gpu.uncalibrated.compared >= FEWEST}
    known = {gpu: (value, detail) for gpu, (value, detail) in figures.items() if value is not None}
    if not known:
        return None, f"no GPU has {FEWEST} rows"
    pick = min if THRESHOLDS[name].at_least else max
    gpu = pick(known, key=lambda gpu: known[gpu][0])
    value, detail = known[gpu]
    return value, f"{gpu}: {detail}" if detail else gpu


def _missing(of: Figures) -> tuple[float, str]:
    rows = of.rows[of.rows["reason"].str.startswith(MISSING_MODEL).to_numpy(dtype=bool)]
    names = sorted({reason.removeprefix(MISSING_MODEL).strip() for reason in rows["reason"]})
    return float(len(names)), ", ".join(names)


def _bias(of: Summary) -> tuple[float | None, str]:
    return (None, "") if of.macro_bias is None else (abs(of.macro_bias), f"signed {of.macro_bias:+.4f}")


def _inside(of: Figures) -> tuple[float | None, str]:
    c = of.intervals
    return (None, "") if c is None else (c.macro, f"{c.rows} rows, {c.inside:.3f} of them inside")


def _memory(of: Figures) -> tuple[float | None, str]:
    m = of.memory
    return (None, "") if m is None else (m.macro_mape, f"{m.compared} rows, worst {m.worst_id}")


def _signed(of: Summary) -> tuple[float | None, str]:
    return of.macro_bias, f"{of.compared} rows in {of.cells} cells"


def _mape(of: Summary) -> tuple[float | None, str]:
    return of.macro_mape, f"{of.compared} rows in {of.cells} cells"


#: Each figure with a detail to show. All are held out except ``uncalibrated_…``, which show what a factor fitted per GPU
#: hides: a constant that is wrong by the same share in all rows of that GPU.
_FIGURES: dict[str, Callable[[Figures], tuple[float | None, str]]] = {
    "mape": lambda of: _mape(of.held),
    "bias": lambda of: _bias(of.held),
    "worst": lambda of: (None, "") if of.held.worst is None else (abs(of.held.worst), of.held.worst_id),
    "coverage": lambda of: (of.held.coverage, f"{of.held.compared} of {of.held.eligible} rows"),
    "kendall_tau": lambda of: (of.order.tau, f"{of.order.groups} groups"),
    "top1_regret": lambda of: (of.order.regret, of.order.worst_group and f"worst group {of.order.worst_group}"),
    "best_place": lambda of: (of.order.place, f"{of.order.searches} groups of four and more"),
    "top3_recall": lambda of: (of.order.recall, f"{of.order.searches} groups of four and more"),
    "interval_coverage": _inside,
    "memory_mape": _memory,
    "uncalibrated_mape": lambda of: _mape(of.uncalibrated),
    "uncalibrated_bias_min": lambda of: _signed(of.uncalibrated),
    "uncalibrated_bias_max": lambda of: _signed(of.uncalibrated),
    "missing_models": _missing,
    "min_rows": lambda of: (float(of.held.compared), f"of {of.held.rows} rows"),
}
