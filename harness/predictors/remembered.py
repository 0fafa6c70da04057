"""Predictions that depend on the code and the run alone: made once, and remembered on disk (:mod:`projector.io.kept`)."""

from __future__ import annotations

from abc import abstractmethod

from harness.contracts.runs import MeasuredRun, Prediction
from harness.predictors.protocol import INTERNAL, Guarded, refused
from projector.io.kept import Shelf

_SHELF = Shelf("prediction", Prediction)


class Remembering(Guarded):
    """A predictor that is asked once for what it says of a run. ``seconds_to_project`` is what it took then."""

    @abstractmethod
    def content(self, run: MeasuredRun) -> str | None:
        """All that a prediction of ``run`` depends on beside the code, as values; None where nobody can name it all."""

    def recalled(self, run: MeasuredRun) -> Prediction | None:
        """What can be said at once: that it is refused, or what the same code said of the same run, in any process."""
        refusal = refused(run)
        if refusal is not None:
            return refusal
        content = self._whole(run)
        return _SHELF.recall(content) if content else None

    def predict(self, run: MeasuredRun) -> Prediction:
        found = self.recalled(run)
        if found is None:
            found = super().predict(run)
            content = self._whole(run)
            if content and not found.reason.startswith(INTERNAL):
                _SHELF.keep(content, found)
        return found

    def _whole(self, run: MeasuredRun) -> str | None:
        try:
            content = self.content(run)
        except Exception:  # a device that nobody knows, say: refused when it is projected
            return None
        return content and f"{type(self).__qualname__} {content}"
