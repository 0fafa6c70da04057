"""A measured run beside what measured runs of others let expect of it, as data: the verdict and what explains it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

from harness.contracts.runs import MeasuredRun
from projector.dataclass import dataclass
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
class Judged:
    """A run beside what measured runs of others let expect of it. ``causes``: factors of the step by cause that explain
    the gap best, their product is :attr:`ratio`; ``spans``: parts that the log timed; ``doubts``: on the log itself;
    ``refused``: why nothing can be said."""

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
        """Measured, of a step."""
        assert self.run is not None
        assert self.run.measured.step_seconds is not None
        return self.run.measured.step_seconds

    @property
    def ratio(self) -> float:
        """Measured over expected step."""
        assert self.found is not None
        return self.seconds / self.found.middle

    @property
    def verdict(self) -> str:
        """``normal`` inside the 90 % interval, else ``slow`` or ``fast``; empty where nothing can be said."""
        if self.found is None:
            return ""
        return SLOW if self.seconds > self.found.high else FAST if self.seconds < self.found.low else NORMAL

    @property
    def gap(self) -> Span | None:
        """The timed part that makes up most of what the step takes too long (or too short), where one makes up half."""
        if self.found is None or not self.spans:
            return None
        missing = self.seconds - self.found.middle
        most = max(self.spans, key=lambda span: (span.measured - span.expected) * math.copysign(1.0, missing))
        return most if (most.measured - most.expected) / missing >= 0.5 else None


def values(every: Sequence[Judged]) -> list[dict[str, Any]]:
    """Figures for JSON: seconds, factors."""
    return [
        {"run": each.name, "verdict": each.verdict or None, "reason": each.refused or None}
        | (
            {}
            if each.found is None or each.made is None
            else {
                "measured_step_seconds": each.seconds,
                "projected_step_seconds": each.made.step_seconds,
                "expected": asdict(each.found),
                "ratio": each.ratio,
                "because": each.gap.name if each.gap else next(iter(each.causes), None),
                "causes": dict(each.causes),
                "breakdown": dict(each.made.breakdown),
                "timed": [asdict(span) for span in each.spans],
                "doubts": list(each.doubts),
            }
        )
        for each in every
    ]
