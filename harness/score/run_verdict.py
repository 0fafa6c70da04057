"""The verdict on a measured run by the step time that measured runs of others let expect, and what explains the gap."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

from harness.contracts.runs import MeasuredRun
from projector.dataclass import dataclass
from projector.io.table import values as values_of
from projector.posterior import Expectation
from projector.projection import Projection

NORMAL, SLOW, FAST = "normal", "slow", "fast"


@dataclass(frozen=True, kw_only=True)
class Span:
    """A part of a step for which the log has timers: seconds as expected (a projection's, in the proportion in which the
    whole step is expected) and as measured."""

    name: str
    expected: float
    measured: float


@dataclass(frozen=True, kw_only=True)
class RunVerdict:
    """A run with its verdict. ``made``: the projection; ``found``: the expected step; ``causes``: factors of the step by
    cause that explain the gap best, whose product is :attr:`ratio`; ``spans``: parts that the log timed; ``doubts``: on
    the log itself; ``refused``: why nothing can be said."""

    name: str
    run: MeasuredRun | None = None
    made: Projection | None = None
    found: Expectation | None = None
    causes: Mapping[str, float] = field(default_factory=dict)
    spans: tuple[Span, ...] = ()
    doubts: tuple[str, ...] = ()
    refused: str = ""

    @property
    def seconds(self) -> float:
        """Returns the measured step time in seconds."""
        assert self.run is not None
        assert self.run.measured.step_seconds is not None
        return self.run.measured.step_seconds

    @property
    def ratio(self) -> float:
        """Returns the measured over the expected step time."""
        assert self.found is not None
        return self.seconds / self.found.middle

    @property
    def verdict(self) -> str:
        """Returns ``normal`` inside the 90 % interval, else ``slow`` or ``fast``; empty where nothing can be said."""
        if self.found is None:
            return ""
        return SLOW if self.seconds > self.found.high else FAST if self.seconds < self.found.low else NORMAL

    @property
    def gap(self) -> Span | None:
        """Returns the timed part that makes up at least half of what the step takes too long (or short), if one does."""
        if self.found is None or not self.spans:
            return None
        missing = self.seconds - self.found.middle
        most = max(self.spans, key=lambda span: (span.measured - span.expected) * math.copysign(1.0, missing))
        return most if (most.measured - most.expected) / missing >= 0.5 else None


def values(every: Sequence[RunVerdict]) -> list[dict[str, Any]]:
    """Returns the verdicts as values for JSON: seconds, factors."""
    return [
        {"run": judged.name, "verdict": judged.verdict or None, "reason": judged.refused or None}
        | (
            {}
            if judged.found is None or judged.made is None
            else {
                **values_of(judged, "measured_step_seconds=seconds projected_step_seconds=made.step_seconds"),
                "expected": asdict(judged.found),
                "ratio": judged.ratio,
                "because": judged.gap.name if judged.gap else next(iter(judged.causes), None),
                "causes": dict(judged.causes),
                "breakdown": dict(judged.made.breakdown),
                "timed": [asdict(span) for span in judged.spans],
                "doubts": list(judged.doubts),
            }
        )
        for judged in every
    ]
