"""What is scored: anything that turns a run into a prediction, and says at which levels it may be calibrated."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from harness.contracts.results import RunFacts
from harness.contracts.runs import MeasuredRun, Prediction


@runtime_checkable
class Predictor(Protocol):
    """``predict`` never raises for a run it cannot project: the prediction's status and reason say why.

    It does not look at ``run.measured`` figures (``memory_kind`` and ``memory_rank`` apart, which only say what is to
    be compared).
    ``levels`` gives the calibration keys of a run from finest to coarsest (see :mod:`harness.calibrate.calibration`).
    """

    @property
    def name(self) -> str: ...

    def predict(self, run: MeasuredRun) -> Prediction: ...

    def levels(self, run: MeasuredRun, facts: RunFacts) -> tuple[str, ...]: ...


def gpu_levels(run: MeasuredRun, facts: RunFacts) -> tuple[str, ...]:
    """One factor per GPU; architecture, vendor and everything are what a lonely family falls back on."""
    return (run.gpu, f"arch:{facts.arch}", f"vendor:{facts.vendor}", "all")
