"""The interface of a predictor, which turns a run into a prediction, and how refusals become predictions."""

from __future__ import annotations

import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from harness.contracts.runs import MeasuredRun, Prediction
from harness.disk_cache import CachedValues
from projector.errors import InputError, NoMeasurement, Unsupported


@runtime_checkable
class Predictor(Protocol):
    """A predictor. ``predict`` never raises for a run it cannot project: the prediction's status and reason say why. It
    does not look at figures of ``run.measured`` (``memory_kind`` and ``memory_rank`` only say what is to be compared)."""

    @property
    def name(self) -> str: ...

    def predict(self, run: MeasuredRun) -> Prediction: ...


#: The beginning of a reason: a mistake of the predictor cost the prediction.
INTERNAL = "internal error"


class Guarded(ABC):
    """A predictor that refuses by raising."""

    @abstractmethod
    def project(self, run: MeasuredRun) -> Prediction:
        """Predicts. Raises :class:`Unsupported`, :class:`NoMeasurement` or :class:`InputError` for a run that it
        refuses."""

    def predict(self, run: MeasuredRun) -> Prediction:
        return guarded(run, lambda: self.project(run))


def guarded(run: MeasuredRun, call: Callable[[], Prediction]) -> Prediction:
    """Returns ``call()`` with its wall time, or a refusal, of the run before it is asked or by an exception that it
    raises. A mistake of a predictor costs its row, not the report of a thousand others: the reason reads ``internal
    error`` with the place where it happened, the row lowers coverage and stands in the list of refusals."""
    refusal = refused(run)
    if refusal is not None:
        return refusal
    start = time.perf_counter()
    try:
        prediction = call()
    except NoMeasurement as none:
        return Prediction(status="no-measurement", reason=str(none))
    except Unsupported as unsupported:
        return Prediction(status="unsupported", reason=str(unsupported))
    except InputError as wrong:
        return Prediction(status="invalid", reason="; ".join(str(p).removeprefix(": ") for p in wrong.problems))
    except Exception as bug:
        last, message = traceback.extract_tb(bug.__traceback__)[-1], " ".join(str(bug).split())
        where = f"{Path(last.filename).name}:{last.lineno}"
        return Prediction(status="unsupported", reason=f"{INTERNAL}: {type(bug).__name__}: {message} ({where})")
    return replace(prediction, seconds_to_project=time.perf_counter() - start)


def refused(run: MeasuredRun) -> Prediction | None:
    """Returns the refusal of a run that no predictor is asked about, or None. An incomplete source is ``invalid``; a
    configuration outside the models is ``unsupported``."""
    if run.model is None or run.recipe is None:
        return Prediction(status="invalid", reason=run.problem or "configuration incomplete in the source")
    if run.problem:
        return Prediction(status="unsupported", reason=run.problem)
    if run.model.unsupported:
        return Prediction(status="unsupported", reason="; ".join(run.model.unsupported))
    return None


# Predictions that depend on the code and the run alone are made once, and remembered on disk (:mod:`harness.disk_cache`).
_SHELF = CachedValues("prediction", Prediction)


class Remembering(Guarded):
    """A predictor that is asked once for each run. ``seconds_to_project`` is the time that it took then."""

    @abstractmethod
    def content(self, run: MeasuredRun) -> str | None:
        """Returns all values beside the code that a prediction depends on; None where they cannot all be named."""

    def recalled(self, run: MeasuredRun) -> Prediction | None:
        """Returns a refusal, or what the same code said of the same run in any process; None where neither is known."""
        refusal = refused(run)
        if refusal is not None:
            return refusal
        content = self._named_content(run)
        return _SHELF.recall(content) if content else None

    def predict(self, run: MeasuredRun) -> Prediction:
        prediction = self.recalled(run)
        if prediction is None:
            prediction = super().predict(run)
            content = self._named_content(run)
            if content and not prediction.reason.startswith(INTERNAL):
                _SHELF.keep(content, prediction)
        return prediction

    def _named_content(self, run: MeasuredRun) -> str | None:
        try:
            content = self.content(run)
        except Exception:  # for example an unknown device: refused when it is projected
            return None
        return content and f"{type(self).__qualname__} {content}"
