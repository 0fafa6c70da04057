"""What is scored: anything that turns a run into a prediction."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from harness.contracts.runs import MeasuredRun, Prediction


@runtime_checkable
class Predictor(Protocol):
    """``predict`` never raises for a run it cannot project: the prediction's status and reason say why.

    It does not look at ``run.measured`` figures (``memory_kind`` and ``memory_rank`` apart, which only say what is to
    be compared).
    """

    @property
    def name(self) -> str: ...

    def predict(self, run: MeasuredRun) -> Prediction: ...
