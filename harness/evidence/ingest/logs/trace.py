"""Kineto and Chrome traces of one rank: profiler steps, the kernels with most time, the share of communication."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.evidence.ingest.logs.events import Event, Fact, Kernels, Step
from harness.evidence.ingest.logs.jsonstream import elements
from harness.evidence.ingest.logs.numbers import real
from harness.evidence.ingest.logs.source import Source

NAME = "trace"

_MARKER = re.compile(r"^ProfilerStep#?\s?([0-9]{1,15})$")
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_op")
_COLLECTIVE = re.compile(
    r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv|deep_?ep|intranode|internode",
    re.IGNORECASE,
)
_OPTIMIZER = re.compile(
    r"^Optimizer\.(?:step|zero_grad)|multi_tensor|[Aa]dam|[Ll]amb[A-Z_]|[Mm]uon|fused_?sgd", re.ASCII
)
_GPU = re.compile(r'"deviceProperties"\s*:\s*\[\s*\{[^{}]{0,400}?"name"\s*:\s*"([^"]{1,80})"')
_WORLD = re.compile(r'"world_size"\s*:\s*([0-9]{1,7})')
_MOST_NAMES = 50_000
_TOP = 20
_MICRO = 1e-6  # Chrome's trace format counts in microseconds


def recognises(head: str) -> bool:
    bare = head.lstrip()[:1]
    return (bare == "{" and '"traceEvents"' in head) or (bare == "[" and '"ph"' in head and '"ts"' in head)


def read(source: Source) -> Iterator[Event]:
    head = source.head()
    if gpu := _GPU.search(head):
        yield Fact("gpu", gpu[1])
    if world := _WORLD.search(head):
        yield Fact("gpus", int(world[1]))
    device = _Device()
    steps: dict[int, float] = {}
    with source.text() as text:
        try:
            for element in elements(text, "traceEvents"):
                if isinstance(element, Mapping) and element.get("ph") == "X":
                    _take_event(element, device, steps)
        except (EOFError, OSError):
            source.truncated = True
    if steps and not device.optimized:
        yield Fact("note", "no optimizer's kernel in the trace: its profiler steps may be parts of a step")
        if len(steps) == 1:  # nothing shows that it comes again: chunks of a pipeline, a part of the accumulation
            steps.clear()
    for iteration in sorted(steps):
        yield Step(iteration=iteration, seconds=steps[iteration], line=1, mean=True)
    if (kernels := device.kernels()) is not None:
        yield kernels


def _take_event(event: Mapping[str, Any], device: _Device, steps: dict[int, float]) -> None:
    start, duration, name = real(event.get("ts"), 0.0), real(event.get("dur"), 0.0), event.get("name")
    if not isinstance(name, str) or start is None or duration is None:
        return
    category = event.get("cat")
    if _OPTIMIZER.search(name):
        device.optimized = True
    if category in _DEVICE:
        device.add(name, start, duration)
    elif category != "gpu_user_annotation" and duration and (marker := _MARKER.match(name)):
        steps[int(marker[1])] = duration * _MICRO


class _Device:
    """Kernels of all streams: 17 bytes each, and a sum by name."""

    def __init__(self) -> None:
        self._start, self._end, self._collective = array("d"), array("d"), array("b")
        self._names: dict[str, list[float]] = {}  # seconds, calls, whether it is a collective
        self.optimized = False

    def add(self, name: str, start: float, duration: float) -> None:
        if name not in self._names:
            if len(self._names) >= _MOST_NAMES:
                name = "(other kernels)"
            self._names.setdefault(name, [0.0, 0, _COLLECTIVE.search(name) is not None])
        total = self._names[name]
        total[0] += duration * _MICRO
        total[1] += 1
        self._start.append(start)
        self._end.append(start + duration)
        self._collective.append(int(total[2]))

    def kernels(self) -> Kernels | None:
        if not self._start:
            return None
        start, end = np.frombuffer(self._start), np.frombuffer(self._end)
        collective = np.frombuffer(self._collective, np.int8).astype(bool)
        busy = _union_length(start, end)
        other = _union_length(start[~collective], end[~collective])
        ranked = sorted(self._names.items(), key=lambda item: (-item[1][0], item[0]))[:_TOP]
        return Kernels(
            top=tuple((name, seconds, int(calls)) for name, (seconds, calls, _) in ranked),
            span_s=float(end.max() - start.min()) * _MICRO,
            busy_s=busy * _MICRO,
            communication_s=_union_length(start[collective], end[collective]) * _MICRO,
            exposed_s=(busy - other) * _MICRO,
        )


def _union_length(start: npt.NDArray[np.float64], end: npt.NDArray[np.float64]) -> float:
    """Returns the length of the union of intervals."""
    if not len(start):
        return 0.0
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    gaps = np.maximum(0.0, start[1:] - end[:-1])
    return float(end[-1] - start[0] - gaps.sum())
