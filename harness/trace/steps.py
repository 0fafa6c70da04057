"""Whole steps of a trace, and the one that stands for it. A kernel belongs to the step in which it was launched: the device
runs behind the host, and by its own time it would fall into the next."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from harness.trace.events import Floats, Kernels, Mark, Trace

_MARKER = re.compile(r"^ProfilerStep#?\s?([0-9]{1,15})$")
_AT_EDGE = 1e-3  # seconds from the end of a file within which a marker counts as cut


@dataclass(frozen=True, slots=True)
class Step:
    """``kernels``: of the device, launched in it; ``host_seconds``: of its marker; ``whole``: with its optimizer."""

    number: int
    mark: Mark
    kernels: Kernels
    whole: bool

    @property
    def host_seconds(self) -> float:
        return self.mark.end - self.mark.start

    @property
    def device_seconds(self) -> float:
        return float(self.kernels.end.max() - self.kernels.start.min()) if len(self.kernels) else 0.0


@dataclass(frozen=True, slots=True)
class Part:
    """What is looked at: ``start`` to ``end`` seconds of the trace, its ``kernels``; ``whole``: one step from end to end.
    ``said``: which part it is, in words."""

    kernels: Kernels
    start: float
    end: float
    whole: bool
    said: str

    @property
    def seconds(self) -> float:
        return self.end - self.start


def steps(trace: Trace) -> list[Step]:
    """The steps that the profiler marked, in order. The mark of the last is left out where the file is cut."""
    markers = {m.name: (int(found[1]), m) for m in trace.marks if (found := _MARKER.match(m.name))}
    launched = _launched(trace)
    kinds = trace.kernels.kinds()
    steps_with_optimizer = np.array([kind.kind == "optimizer" for kind in kinds], dtype=bool)
    made = []
    for number, mark in sorted(markers.values(), key=lambda item: item[0]):
        inside = trace.kernels.only((launched >= mark.start) & (launched < mark.end))
        if len(inside):
            stepped = any(m.name.startswith("Optimizer.step") and mark.start <= m.start < mark.end for m in trace.marks)
            whole = stepped or bool(steps_with_optimizer[inside.name].any())
            made.append(Step(number, mark, inside, whole))
    if trace.cut and made:
        last = max(float(trace.kernels.end.max()), made[-1].mark.end - _AT_EDGE)
        made = [step for step in made if step.mark.end < last]
    return made


def chosen(trace: Trace, number: int | None = None) -> Part:
    """Step ``number``, or the one of median length among the whole steps (the first of several is slower as a rule), or
    all of the trace where it has none. Raises :class:`KeyError` for a number that is not there."""
    found = steps(trace)
    if number is not None:
        return _part({step.number: step for step in found}[number], found)
    whole = [step for step in found if step.whole]
    if whole:
        ranked = sorted(whole, key=lambda step: (step.device_seconds, -step.number))
        return _part(ranked[len(ranked) // 2 if len(ranked) % 2 else len(ranked) // 2 - 1], found)
    kernels = trace.kernels
    what = "a part of a step: no optimizer ran in it" if found else "all of it: no profiler step is marked"
    return Part(kernels, float(kernels.start.min()), float(kernels.end.max()), False, what)


def _part(step: Step, found: list[Step]) -> Part:
    """Up to the first kernel of the next step where there is one: what the device waits between them is part of a step."""
    start, end = float(step.kernels.start.min()), float(step.kernels.end.max())
    after = [other for other in found if other.number == step.number + 1]
    if after:
        end = max(end, float(after[0].kernels.start.min()))
    said = f"step {step.number} of {len(found)} marked" if step.whole else f"step {step.number}, without an optimizer"
    return Part(step.kernels, start, end, step.whole, said)


def _launched(trace: Trace) -> Floats:
    """When each kernel was launched; of one whose launch is not in the file, when it began."""
    times = trace.kernels.start.copy()
    launches, kernels = trace.launches, trace.kernels
    known = launches.correlation >= 0
    order = np.argsort(launches.correlation[known], kind="stable")
    keys, starts = launches.correlation[known][order], launches.start[known][order]
    if len(keys):
        at = np.clip(np.searchsorted(keys, kernels.correlation), 0, len(keys) - 1)
        hit = (keys[at] == kernels.correlation) & (kernels.correlation >= 0)
        times[hit] = starts[at][hit]
    return times
