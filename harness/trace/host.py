"""A trace without a device: what the operators of the host do takes the place of kernels. A moment belongs to the innermost
operator that runs in it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.trace.events import Kernels, Launches, Trace
from projector.errors import InputError, Problem


def as_kernels(trace: Trace) -> Trace:
    """``trace``, with kernels, each launched where it begins. Raises :class:`InputError` where nothing ran at all."""
    if len(trace.kernels):
        return trace
    if not len(trace.ops.start):
        raise InputError([Problem(trace.path, "traceEvents", "no kernel and no operator", "events of a training step")])
    rows: list[tuple[float, float, int, int]] = []
    threads: dict[int, list[tuple[float, float, int]]] = {}
    ops = trace.ops
    for start, end, thread, name in zip(
        ops.start.tolist(), ops.end.tolist(), ops.thread.tolist(), ops.name.tolist(), strict=True
    ):
        threads.setdefault(thread, []).append((start, end, name))
    for thread, events in threads.items():
        rows += [(start, end, thread, name) for start, end, name in _innermost(events) if end > start]
    rows.sort()
    start, end, stream, name = (np.array(column) for column in zip(*rows, strict=True))
    number = np.arange(len(rows), dtype=np.int64)
    return replace(
        trace,
        kernels=Kernels(start, end, stream, name, number, ops.names, host=True),
        launches=Launches(start, start, stream, number, np.zeros(len(rows), dtype=bool)),
    )


def _innermost(events: list[tuple[float, float, int]]) -> list[tuple[float, float, int]]:
    """Stretches of one thread with the innermost operator in each."""
    made: list[tuple[float, float, int]] = []
    stack: list[tuple[float, int]] = []
    at = 0.0

    def until(when: float) -> None:
        nonlocal at
        while stack and stack[-1][0] <= when:
            end, name = stack.pop()
            made.append((at, end, name))
            at = max(at, end)
        if stack and when > at:
            made.append((at, when, stack[-1][1]))
        at = max(at, when)

    for start, end, name in sorted(events, key=lambda event: (event[0], -event[1])):
        until(start)
        stack.append((min(end, stack[-1][0]) if stack else end, name))
    until(float("inf"))
    return [(a, b, name) for a, b, name in made if b < float("inf")]
