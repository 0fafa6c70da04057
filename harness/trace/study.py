"""Studies one trace: reads it, cuts it to a step, divides its time, and compares it with a projection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from harness.report.said import said
from harness.trace.account import Account, account
from harness.trace.compare import Beside, beside, share_of
from harness.trace.events import Kernels, Launches, Trace
from harness.trace.idle import idle
from harness.trace.names import UNKNOWN
from harness.trace.owners import BACKWARD, UNSEEN, WEIGHT, Owner, owners
from harness.trace.projected import Planned, Share, planned
from harness.trace.reader import read
from harness.trace.shapes import Shaped, shaped
from harness.trace.steps import TracedPart, chosen, steps
from projector.dataclass import dataclass
from projector.errors import InputError, Problem, raise_all
from projector.hardware import catalogue
from projector.hardware.types import Cluster
from projector.io.rows import grouped
from projector.workload.workload import Workload


@dataclass(frozen=True, slots=True)
class Exchange:
    """All messages of one kind on one rank. ``seconds`` of their kernels; ``transfer``: the part needed to move the
    bytes; ``ranks``: of the group, 0 where the trace does not say."""

    op: str
    group: str
    ranks: int
    elements: int
    dtype: str
    count: int
    seconds: float
    transfer: float

    @property
    def waiting(self) -> float:
        return self.seconds - self.transfer


Key = tuple[str, str, int, int, str]


def exchanges(parts: Sequence[Kernels]) -> tuple[Exchange, ...]:
    """Returns the exchanges of the first of ``parts`` (one a rank, the same step), the longest first. Messages of
    several ranks are matched by their number where torch wrote one, else by their order in the group."""
    first, *others = [list(_messages(part)) for part in parts]
    # The fastest of each message: among ranks, or where there is one, of those of its kind
    named = 1 if others else 0
    times = grouped((message[named], message[2]) for messages in (others or [first]) for message in messages)
    alike = grouped((m[0], (m[2], min([m[2], *times.get(m[named], ())]))) for m in first)
    sums = [Exchange(*key, len(both), *map(sum, zip(*both, strict=True))) for key, both in alike.items()]
    return tuple(sorted(sums, key=lambda exchange: (-exchange.seconds, exchange.op)))


def _messages(part: Kernels) -> Iterator[tuple[Key, tuple[object, ...], float]]:
    """Yields kind, name among ranks, seconds of each communication kernel, in order."""
    names = part.kinds()
    seen: dict[object, int] = {}
    for at, (name, seconds) in enumerate(zip(part.name.tolist(), part.seconds.tolist(), strict=True)):
        kind, message = names[name], part.messages.get(at)
        if kind.communicates:
            key: Key = (kind.op or kind.provider, kind.kind, 0, 0, "")
            if message is not None:
                key = (message.op, message.group, message.ranks, message.elements, message.dtype)
            number = seen[key] = seen.get(key, -1) + 1
            sequence = number if message is None or message.sequence is None else ("#", message.sequence)
            yield key, (key, sequence), seconds


def as_kernels(trace: Trace) -> Trace:
    """Returns ``trace``, with operators of the host as kernels where it has none, each launched where it begins. Raises
    :class:`InputError` where nothing ran at all."""
    if len(trace.kernels):
        return trace
    if not len(trace.ops.start):
        raise InputError([Problem(trace.path, "traceEvents", "no kernel and no operator", "events of a training step")])
    ops = trace.ops
    events = zip(ops.start.tolist(), ops.end.tolist(), ops.name.tolist(), strict=True)
    threads = grouped(zip(ops.thread.tolist(), events, strict=True))
    rows = sorted(
        (start, end, thread, name)
        for thread, inside in threads.items()
        for start, end, name in _innermost(inside)
        if end > start
    )
    start, end, stream, name = (np.array(column) for column in zip(*rows, strict=True))
    number = np.arange(len(rows), dtype=np.int64)
    return replace(
        trace,
        kernels=Kernels(start, end, stream, name, number, ops.names, host=True),
        launches=Launches(start, start, stream, number, np.zeros(len(rows), dtype=bool)),
    )


def _innermost(events: list[tuple[float, float, int]]) -> list[tuple[float, float, int]]:
    """Returns stretches of one thread with the innermost operator in each."""
    stretches: list[tuple[float, float, int]] = []
    stack: list[tuple[float, int]] = []
    at = 0.0

    def until(when: float) -> None:
        nonlocal at
        while stack and stack[-1][0] <= when:
            end, name = stack.pop()
            stretches.append((at, end, name))
            at = max(at, end)
        if stack and when > at:
            stretches.append((at, when, stack[-1][1]))
        at = max(at, when)

    for start, end, name in sorted(events, key=lambda event: (event[0], -event[1])):
        until(start)
        stack.append((min(end, stack[-1][0]) if stack else end, name))
    until(float("inf"))
    return [(a, b, name) for a, b, name in stretches if b < float("inf")]


@dataclass(frozen=True, eq=False)
class Study:
    """A study of a trace. ``rows``: by kind; ``gaps``: idle seconds by reason; ``unknown``: seconds by name of kernels
    without a kind; ``notes``: caveats for a reader of the figures."""

    trace: Trace
    part: TracedPart
    account: Account
    rows: Sequence[Beside]
    gaps: Mapping[str, float]
    owners: Sequence[Owner]
    exchanges: Sequence[Exchange]
    shapes: Sequence[Shaped]
    unknown: Mapping[str, float]
    notes: tuple[str, ...]
    planned: Planned | None = None
    share: Share | None = None

    @property
    def unknown_share(self) -> float:
        """Returns the share of the busy seconds in which kernels of an unknown kind run."""
        return sum(row.busy for row in self.rows if row.kind == UNKNOWN) / max(self.account.busy, 1e-30)


def study(paths: Sequence[Path], step: int | None = None, case: tuple[Workload, Cluster] | None = None) -> Study:
    """Studies the first of ``paths``, the others being other ranks of the same step. Raises :class:`InputError`."""
    traces = [as_kernels(read(path)) for path in paths]
    _same_run(traces)
    parts = [_chosen(trace, step) for trace in traces]
    trace, part = traces[0], parts[0]
    who = owners(trace, part.kernels)
    seconds = account(part)
    notes = list(_notes(trace, part, who, len(traces)))
    plan = share = None
    passes = (kind.way for kind in part.kernels.kinds())
    trains = part.whole or "backward" in passes or any(owner.phase in (BACKWARD, WEIGHT) for owner in who)
    if case is not None and trains:
        notes += _device_note(trace, case[1])
        plan = planned(*case, layers_only=not part.whole)
        share = share_of(part, plan)
        notes += _scaling_note(part, share, plan)
    elif case is not None:
        notes.append(
            "no backward pass in it: a forward alone, or inference; nothing of a training step to compare with"
        )
    return Study(
        trace=trace,
        part=part,
        account=seconds,
        rows=beside(seconds, plan, share or Share()),
        gaps=idle(trace, part, seconds),
        owners=who,
        exchanges=exchanges([traced.kernels for traced in parts]),
        shapes=_modelled(shaped(trace.ops, part.kernels, who), plan),
        unknown=_unknown(part),
        notes=tuple(notes),
        planned=plan,
        share=share,
    )


def _chosen(trace: Trace, step: int | None) -> TracedPart:
    try:
        return chosen(trace, step)
    except KeyError:
        there = ", ".join(str(marked.number) for marked in steps(trace)) or "a trace that marks its steps"
        raise InputError([Problem(trace.path, "--step", step, there)]) from None


def _same_run(traces: Sequence[Trace]) -> None:
    first, problems = traces[0], []
    for other in traces[1:]:
        for what, expected, stated in (("world_size", first.world, other.world), ("GPU", first.gpu, other.gpu)):
            if expected != stated:
                problems.append(Problem(other.path, what, stated, f"{expected}, as in {first.path}"))
    ranks = [trace.rank for trace in traces]
    problems += [
        Problem(trace.path, "rank", trace.rank, "one file a rank")
        for at, trace in enumerate(traces)
        if trace.rank is not None and trace.rank in ranks[:at]
    ]
    raise_all(problems)


def _notes(trace: Trace, part: TracedPart, who: Sequence[Owner], ranks: int) -> list[str]:
    correlations = [number for number in part.kernels.correlation.tolist() if number >= 0]
    lost = sum(owner.phase == UNSEEN for owner in who) / max(len(who), 1)
    graphs = 1.0 - len(set(correlations)) / len(correlations) if correlations else 0.0  # kernels that share a launch
    conditions = {
        "cut": trace.cut,
        "lost": lost if lost > 0.01 else None,
        "graphs": graphs if graphs > 0.5 else None,
        "alone": ranks == 1 and any(kind.communicates for kind in part.kernels.kinds()),
    }
    return said("trace_notes", conditions)


def _device_note(trace: Trace, cluster: Cluster) -> list[str]:
    """Notes that a comparison of two devices says something else than one of a device with itself."""
    if not len(trace.kernels) or trace.kernels.host:
        return (
            [f"the trace is of the host, the projection of {cluster.gpu.name}"] if cluster.gpu.vendor != "cpu" else []
        )
    traced_gpu = catalogue.find_gpu(trace.gpu) if trace.gpu else None
    if traced_gpu == cluster.gpu.name:
        return []
    return [f"the trace is of {trace.gpu or 'a device that it does not name'}, the projection of {cluster.gpu.name}"]


def _scaling_note(part: TracedPart, share: Share, plan: Planned) -> list[str]:
    if part.whole:
        return []
    if not share.forward and not share.backward:
        return ["no attention kernel that tells layer passes: the projection is not scaled to this part and stays out"]
    forward, backward = (
        round(passes * whole) for passes, whole in zip((share.forward, share.backward), plan.attention, strict=True)
    )
    return [
        f"it holds {forward} of {plan.attention[0]:.0f} forward and {backward} of {plan.attention[1]:.0f} backward layer "
        "passes of a step: projected figures are of as many layers"
    ]


def _modelled(rows: tuple[Shaped, ...], plan: Planned | None) -> tuple[Shaped, ...]:
    if plan is None or not rows:
        return rows
    seconds = plan.model.times([row.op for row in rows]).seconds.tolist()
    return tuple(replace(row, model=time) for row, time in zip(rows, seconds, strict=True))


def _unknown(part: TracedPart) -> dict[str, float]:
    kernels, kinds = part.kernels, part.kernels.kinds()
    times = grouped(zip(kernels.name.tolist(), kernels.seconds.tolist(), strict=True))
    seconds = {kernels.names[name]: sum(each) for name, each in times.items() if kinds[name].kind == UNKNOWN}
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))
