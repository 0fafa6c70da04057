"""Finds whole steps of a trace, and the one that represents it. A kernel belongs to the step in which it was launched:
the device runs behind the host, and by its own time it would fall into the next."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from harness.trace.events import Kernels, Mark, Trace
from projector.dataclass import dataclass

_MARKER = re.compile(r"^ProfilerStep#?\s?([0-9]{1,15})$")
_AT_EDGE = 1e-3  # seconds from the end of a file within which a marker counts as cut


@dataclass(frozen=True, slots=True)
class TracedStep:
    """One step. ``kernels``: of the device, launched in the step; ``host_seconds``: of its marker; ``whole``: with its
    optimizer. ``start``: its first kernel, or the end of the computation of the step before where that still ran: copies
    and exchanges of a step run on streams of their own under the step before, while the device is behind the host."""

    number: int
    mark: Mark
    kernels: Kernels
    whole: bool
    start: float

    @property
    def host_seconds(self) -> float:
        return self.mark.end - self.mark.start

    @property
    def end(self) -> float:
        return float(self.kernels.end.max())

    @property
    def device_seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class TracedPart:
    """The part of a trace that is studied: ``start`` to ``end`` seconds of the trace, its ``kernels``; ``whole``: one
    step from end to end. ``said``: which part it is, in words."""

    kernels: Kernels
    start: float
    end: float
    whole: bool
    said: str

    @property
    def seconds(self) -> float:
        return self.end - self.start


def steps(trace: Trace) -> list[TracedStep]:
    """Returns the steps that the profiler marked, in order, without the last where the file is cut."""
    markers = {m.name: (int(match[1]), m) for m in trace.marks if (match := _MARKER.match(m.name))}
    # When each kernel was launched, or began where its launch is not in the file
    launched, calls = trace.kernels.start.copy(), trace.launches.of(trace.kernels)
    launched[calls >= 0] = trace.launches.start[calls[calls >= 0]]
    kinds = trace.kernels.kinds()
    steps_with_optimizer = np.array([kind.kind == "optimizer" for kind in kinds], dtype=bool)
    computing = np.array([not kind.communicates and kind.kind != "copy" for kind in kinds], dtype=bool)
    marked: list[TracedStep] = []
    for number, mark in sorted(markers.values(), key=lambda item: item[0]):
        inside = trace.kernels.only((launched >= mark.start) & (launched < mark.end))
        if len(inside):
            stepped = any(m.name.startswith("Optimizer.step") and mark.start <= m.start < mark.end for m in trace.marks)
            whole = stepped or bool(steps_with_optimizer[inside.name].any())
            start = float(inside.start.min())
            if marked and marked[-1].number == number - 1:
                start = max(start, min(_end_of_computation(marked[-1], computing), float(inside.end.max())))
            marked.append(TracedStep(number, mark, inside, whole, start))
    if trace.cut and marked:
        last = max(float(trace.kernels.end.max()), marked[-1].mark.end - _AT_EDGE)
        marked = [step for step in marked if step.mark.end < last]
    return marked


def _end_of_computation(step: TracedStep, computing: npt.NDArray[np.bool_]) -> float:
    """Returns the end of the last computation of a step; its start where it has none."""
    ends = step.kernels.end[computing[step.kernels.name]]
    return float(ends.max()) if len(ends) else step.start


def chosen(trace: Trace, number: int | None = None) -> TracedPart:
    """Returns step ``number``, or the one of median length among the whole steps (the first of several is slower as a
    rule), or all of the trace where it has none. Raises :class:`KeyError` for a number that is not there."""
    marked = steps(trace)
    if number is not None:
        return _part({step.number: step for step in marked}[number], marked)
    whole = [step for step in marked if step.whole]
    if whole:
        ranked = sorted(whole, key=lambda step: (step.device_seconds, -step.number))
        return _part(ranked[len(ranked) // 2 if len(ranked) % 2 else len(ranked) // 2 - 1], marked)
    kernels = trace.kernels
    what = "a part of a step: no optimizer ran in it" if marked else "all of it: no profiler step is marked"
    return TracedPart(kernels, float(kernels.start.min()), float(kernels.end.max()), False, what)


def _part(step: TracedStep, marked: list[TracedStep]) -> TracedPart:
    """Returns a step up to the first kernel of the next one: the device's wait between the two is part of a step."""
    end = max([step.end, *(other.start for other in marked if other.number == step.number + 1)])
    text = (
        f"step {step.number} (of {len(marked)} marked)" if step.whole else f"step {step.number}, without an optimizer"
    )
    return TracedPart(step.kernels, step.start, end, step.whole, text)
