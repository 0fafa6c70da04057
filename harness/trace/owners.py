"""Finds the owner of a kernel: the host operator and the annotations around its launch, and the phase of the step. The
way from a kernel to its operator is the launch with the same correlation, then the operators that enclose it on that
thread."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from harness.trace.events import Kernels, Trace
from projector.dataclass import dataclass
from projector.io.rows import grouped

PHASES = ("forward", "recompute", "backward", "weight gradient", "optimizer", "launch not in the trace")
FORWARD, RECOMPUTE, BACKWARD, WEIGHT, OPTIMIZER, UNSEEN = PHASES
_PASSING = re.compile(r"^ProfilerStep|^## Call|^Torch-Compiled Region|^PyTorch Profiler|^record_param_comms$")
_CHECKPOINT = re.compile(r"checkpoint\w*backward|recompute", re.IGNORECASE)
BACKWARD_NAME = re.compile(r"backward|autograd::engine::evaluate_function|\(B\)|bwd", re.IGNORECASE)
_WEIGHT = re.compile(r"\(W\)|wgrad|weight_grad|backward_dw", re.IGNORECASE)
_OPTIMIZER = re.compile(r"^Optimizer\.|optimizer[._ ]?step|clip_grad", re.IGNORECASE)


_Event = tuple[float, float, int, int, str]
"""Start, minus the end, kind of event (0 an annotation, 1 an operator, 2 a launch), its place, its name."""
_Stack = tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a kernel. ``op``: place among the operators of the trace, -1 for none; ``mark``: the innermost
    annotation of the user."""

    phase: str
    op: int = -1
    mark: str = ""


_NO_OWNER = Owner(UNSEEN)


def owners(trace: Trace, kernels: Kernels) -> list[Owner]:
    """Returns the owner of every kernel, in order."""
    by_call = dict(_enclosing(trace))
    return [by_call.get(call, _NO_OWNER) for call in trace.launches.of(kernels).tolist()]


def _enclosing(trace: Trace) -> Iterator[tuple[int, Owner]]:
    """Yields the owner of every launch, found by one walk over each thread in the order of time. Where no annotation of
    its own thread encloses a launch, those of the others do: torch runs the backward on a thread of its own."""
    ops, launches = trace.ops, trace.launches
    marks = [(mark.start, -mark.end, 0, -1, mark.name) for mark in trace.marks]
    calls = [(start, math.inf, 2, at, "") for at, start in enumerate(launches.start.tolist())]
    around = dict(_walked([*marks, *calls]))
    columns = zip(ops.start.tolist(), ops.end.tolist(), ops.name.tolist(), strict=True)
    inside = [(start, -end, 1, at, ops.names[name]) for at, (start, end, name) in enumerate(columns)]
    threads = [*ops.thread.tolist(), *(mark.thread for mark in trace.marks), *launches.thread.tolist()]
    for events in grouped(zip(threads, [*inside, *marks, *calls], strict=True)).values():
        for at, stack in _walked(events):
            annotated = any(place < 0 and not _PASSING.search(name) for place, name in stack)
            yield at, _owner(stack if annotated else (*around[at], *stack))


def _walked(events: list[_Event]) -> Iterator[tuple[int, _Stack]]:
    """Yields each launch with its enclosing events, outermost first: (operator's place or -1 for an annotation, name)."""
    open_: list[tuple[float, int, str]] = []
    for start, negative_end, kind, at, name in sorted(events, key=lambda event: event[:3]):
        while open_ and open_[-1][0] <= start:
            open_.pop()
        if kind == 2:
            yield at, tuple((place, text) for _, place, text in open_)
        else:
            open_.append((-negative_end, at, name))


def _owner(stack: _Stack) -> Owner:
    op = next((place for place, _ in reversed(stack) if place >= 0), -1)
    mark = next((name for place, name in reversed(stack) if place < 0 and not _PASSING.search(name)), "")
    return Owner(_phase(tuple(name for _, name in stack)), op, mark)


@lru_cache(maxsize=65536)
def _phase(names: tuple[str, ...]) -> str:
    """Returns the phase of a launch inside ``names``, outermost first."""
    if any(_OPTIMIZER.search(name) for name in names):
        return OPTIMIZER
    replays = [at for at, name in enumerate(names) if _CHECKPOINT.search(name)]
    if replays and not any(BACKWARD_NAME.search(name) for name in names[replays[-1] + 1 :]):
        return RECOMPUTE
    if any(_WEIGHT.search(name) for name in names):
        return WEIGHT
    return BACKWARD if any(BACKWARD_NAME.search(name) for name in names) else FORWARD


def phases(found: Sequence[Owner], seconds: Sequence[float]) -> Mapping[str, tuple[float, int]]:
    """Returns kernel seconds (streams added up) and kernels of each phase that has any."""
    times = grouped(zip((owner.phase for owner in found), seconds, strict=True))
    return {phase: (sum(times[phase]), len(times[phase])) for phase in PHASES if phase in times}
