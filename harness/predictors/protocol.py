"""What is scored: anything that turns a run into a prediction."""

from __future__ import annotations

import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from harness.contracts.runs import MeasuredRun, Prediction
from harness.kept import Shelf
from projector.errors import InputError, NoMeasurement, Unsupported


@runtime_checkable
class Predictor(Protocol):
    """``predict`` never raises for a run it cannot project: the prediction's status and reason say why.

    It does not look at ``run.measured`` figures (``memory_kind`` and ``memory_rank`` apart, which only say what is to
    be compared).
    """

    @property
    def name(self) -> str: ...

    def predict(self, run: MeasuredRun) -> Prediction: ...


# Refusals: how a run that cannot be projected becomes a prediction that says why, and the base of predictors that do so.
#: How the reason of a prediction begins that a mistake of its predictor cost.
INTERNAL = "internal error"


class Guarded(ABC):
    """A predictor that refuses by raising."""

    @abstractmethod
    def project(self, run: MeasuredRun) -> Prediction:
        """Raises :class:`Unsupported`, :class:`NoMeasurement` or :class:`InputError` for a run that it refuses."""

    def predict(self, run: MeasuredRun) -> Prediction:
        return guarded(run, lambda: self.project(run))


def guarded(run: MeasuredRun, call: Callable[[], Prediction]) -> Prediction:
    """``call()`` with its wall time, or the refusal of a run that no predictor can be asked about or that it raises.

    A mistake of a predictor costs its row, not the report of a thousand others: it reads ``internal error`` with the
    place where it happened, lowers coverage and stands in the list of refusals.
    """
    refusal = refused(run)
    if refusal is not None:
        return refusal
    start = time.perf_counter()
    try:
        made = call()
    except NoMeasurement as none:
        return Prediction(status="no-measurement", reason=str(none))
    except Unsupported as unsupported:
        return Prediction(status="unsupported", reason=str(unsupported))
    except InputError as wrong:
        return Prediction(status="invalid", reason="; ".join(str(p).removeprefix(": ") for p in wrong.problems))
    except Exception as bug:
        return Prediction(status="unsupported", reason=_internal(bug))
    return replace(made, seconds_to_project=time.perf_counter() - start)


def _internal(bug: Exception) -> str:
    last = traceback.extract_tb(bug.__traceback__)[-1]
    said = " ".join(str(bug).split())
    return f"{INTERNAL}: {type(bug).__name__}: {said} ({Path(last.filename).name}:{last.lineno})"


def refused(run: MeasuredRun) -> Prediction | None:
    """An incomplete source is ``invalid``; a configuration outside the models is ``unsupported``."""
    if run.model is None or run.recipe is None:
        return Prediction(status="invalid", reason=run.problem or "configuration incomplete in the source")
    if run.problem:
        return Prediction(status="unsupported", reason=run.problem)
    if run.model.unsupported:
        return Prediction(status="unsupported", reason="; ".join(run.model.unsupported))
    return None


# Predictions that depend on the code and the run alone: made once, and remembered on disk (:mod:`harness.kept`).
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
