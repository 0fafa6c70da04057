"""What all measured runs teach, as the file that the projector carries (see :mod:`projector.experience`). Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from harness import accuracy, calibration, intervals
from harness.calibration import Observation
from harness.results import Evaluation, Row
from projector.experience import FEATURES

__all__ = ["text"]

_DIGITS = 4
_HEAD = """# Written by `python -m harness calibrate --out`: what measured runs say of simulated step times.
# factor: measured / projected step time, the median over (model family x framework) cells of that GPU. The 90 % interval
# is conformal: quantile x difficulty, on held-out residuals (harness/intervals.py).
"""


def text(evaluation: Evaluation, predictor: str = "simulate") -> str | None:
    """The YAML text; None where the runs are of fewer than two families."""
    held = accuracy.select(evaluation.unique_rows, predictor, "heldout")
    learnt = intervals.learn(held, evaluation.heldout)
    if learnt is None or not math.isfinite(learnt.quantile):
        return None
    lines = [f"level: {intervals.LEVEL}", f"quantile: {learnt.quantile:.{_DIGITS}f}"]
    lines += [f"least: {learnt.least:.{_DIGITS}f}", "coefficients:"]
    lines += [f"  {name}: {value:.{_DIGITS}f}" for name, value in zip(FEATURES, learnt.coefficients, strict=True)]
    lines.append("seen:")
    lines += [f"  {name}: {value:.{_DIGITS}f}" for name, value in zip(FEATURES, learnt.seen, strict=True)]
    lines.append("grounds:")
    lines += _grounds(evaluation, accuracy.select(evaluation.unique_rows, predictor, "uncalibrated"))
    return _HEAD + "\n".join(lines) + "\n"


def _grounds(evaluation: Evaluation, rows: Sequence[Row]) -> list[str]:
    seen: dict[str, list[Observation]] = defaultdict(list)
    for row in accuracy.comparable(rows):
        facts = evaluation.facts[row.run_id]
        levels = (row.gpu, f"arch:{facts.arch}", f"vendor:{facts.vendor}", "all")
        one = Observation(
            run_id=row.run_id,
            family=row.family,
            framework=row.framework,
            levels=levels,
            log_ratio=math.log1p(row.error or 0.0),
        )
        for key in levels:
            seen[key].append(one)
    made = [calibration.factor_of(found, key) for key, found in sorted(seen.items())]
    return [f'  "{f.key}": {{factor: {f.value:.{_DIGITS}f}, cells: {f.cells}, rows: {f.rows}}}' for f in made]
