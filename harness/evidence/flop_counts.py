"""FLOP of a token of a run by the least and the most that any framework counts, remembered: tables repeat configurations."""

from __future__ import annotations

from functools import lru_cache

from harness.contracts.runs import MeasuredRun
from projector.errors import Unsupported
from projector.frameworks import flops
from projector.workload import validate
from projector.workload.workload import Workload

# Share of the matrix products left where weights are frozen: forward and data gradient, no weight gradient.
_FROZEN = 2.0 / 3.0
_COMMON = "megatron-2025-04"


def flops_per_token(run: MeasuredRun, seconds_per_flop: float, believed: tuple[float, float]) -> tuple[float, float]:
    """(least, most); by one formula alone where that puts the MFU in what is ``believed``: then the least of all is not
    above that, nor the most below. ``seconds_per_flop``: what turns FLOP a token into an MFU."""
    common, (low, high) = _common_count(run), believed
    if low <= common * seconds_per_flop <= high:
        return common, common
    return _all_counts(run.workload)


_RECENT: dict[tuple[int, int, int, str, str], tuple[MeasuredRun, float]] = {}
_MOST_RECENT = 1024


def _common_count(run: MeasuredRun) -> float:
    """FLOP a token by one formula. Rows of a table share model and recipe as objects: these are looked up, not compared."""
    key = (id(run.model), id(run.recipe), run.gpus, run.stack.framework, run.stack.date)
    if key not in _RECENT:
        if len(_RECENT) >= _MOST_RECENT:
            _RECENT.clear()
        try:
            count = flops.flops_per_token(run.workload, _COMMON)
        except (Unsupported, ArithmeticError):
            count = 0.0
        _RECENT[key] = (run, count)  # the run keeps both objects, so that no other gets their identity
    return _RECENT[key][1]


@lru_cache(maxsize=4096)
def _all_counts(workload: Workload) -> tuple[float, float]:
    """(least, most) FLOP a token over all formulas; zeros where none covers the model or the configuration is none."""
    if workload.model.unsupported or validate.problems(workload):
        return 0.0, 0.0
    found = []
    for formula in flops.formulas():
        try:
            found.append(flops.flops_per_token(workload, formula))
        except Unsupported:
            continue
    if not found:
        return 0.0, 0.0
    return min(found) * (_FROZEN if workload.recipe.lora else 1.0), max(found)
