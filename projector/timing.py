"""From operators to seconds: one phase of a block on one rank, with host, hidden and exposed communication."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from projector.frameworks.types import Execution
from projector.kernels.host import host_seconds
from projector.operators.types import Collective, HostWork, Operator

__all__ = ["Clock", "Phase", "Segment", "chain"]

CONTENTION = 0.10
"""Share of a hidden communication's time that the compute beside it loses (compute units and bandwidth taken by the
communication kernels; published range 5–20 %: NVIDIA/Megatron-LM overlap documentation, reference measurements of
FSDP overlap in PyTorch). derived, to be replaced by a model of compute units."""

GRAPH_REST = 0.1
"""Host time left of an operator that a graph replays: the graph's own launch, events and copies of static inputs,
10–15 µs for a layer of 100 launches or more (NVIDIA/Megatron-LM docs/user-guide/features/cuda_graph.md; estimate)."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch between two synchronisation points: device seconds and the host seconds needed to issue it."""

    device: float
    host: float

    @property
    def seconds(self) -> float:
        return max(self.device, self.host)


@dataclass(frozen=True, slots=True)
class Phase:
    """Forward or backward of a block or chunk. ``exposed``: communication seconds inside ``device``, by group.

    ``measured``: device seconds that rest on measured kernels. ``wait``: seconds lost at synchronisation points.
    ``hidden``: communication seconds that run beside compute, less what they slow it down, by group.
    """

    segments: tuple[Segment, ...]
    compute: float
    exposed: Mapping[str, float] = field(default_factory=dict)
    measured: float = 0.0
    wait: float = 0.0
    hidden: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return sum(s.seconds for s in self.segments) + self.wait

    @property
    def device(self) -> float:
        return sum(s.device for s in self.segments)

    @property
    def host_excess(self) -> float:
        """Seconds that the host adds: the device waits for it."""
        return self.seconds - self.device


@dataclass(frozen=True)
class Clock:
    """Prices operators for one projection: kernel seconds by operator, collective seconds, host cost."""

    kernels: Mapping[Operator, float]
    measured: frozenset[Operator]
    collective: Callable[[Collective], float]
    execution: Execution

    def phase(
        self, operators: Sequence[Operator], *, layer: bool = False, graphed: frozenset[str] = frozenset()
    ) -> Phase:
        """Seconds of ``operators`` run one after the other, those with ``hides_behind`` beside the ones they name.

        ``layer``: add the module overhead of one layer; ``graphed``: names of operators that a graph replays.
        """
        x = self.execution
        beside = self._beside(operators)
        segments: list[Segment] = []
        device, compute, measured, wait = 0.0, 0.0, 0.0, 0.0
        host = x.layer_us * 1e-6 if layer and not x.whole_step_compiled else 0.0
        exposed: dict[str, float] = {}
        covered: dict[str, float] = {}
        for op in operators:
            host += host_seconds(op, x) * (GRAPH_REST if op.name in graphed else 1.0)
            if isinstance(op, HostWork):
                if op.sync and not x.whole_step_compiled:
                    segments.append(Segment(device, host))
                    device = host = 0.0
                    wait += x.sync_us * 1e-6
            elif isinstance(op, Collective):
                seconds = self.collective(op)
                hidden = _take(beside, op.hides_behind, seconds)
                device += seconds - hidden + CONTENTION * hidden
                compute += CONTENTION * hidden
                if hidden > 0:
                    covered[op.group] = covered.get(op.group, 0.0) + (1.0 - CONTENTION) * hidden
                if seconds > hidden:
                    exposed[op.group] = exposed.get(op.group, 0.0) + seconds - hidden
            else:
                seconds = self.kernels[op]
                device += seconds
                compute += seconds
                measured += seconds if op in self.measured else 0.0
        segments.append(Segment(device, host))
        return Phase(tuple(segments), compute, exposed, measured, wait, covered)

    def _beside(self, operators: Iterable[Operator]) -> dict[str, float]:
        """Seconds of compute, by operator name, that communication may still hide behind; ``@phase`` is their sum."""
        beside: dict[str, float] = {}
        for op in operators:
            if not isinstance(op, Collective | HostWork):
                beside[op.name] = beside.get(op.name, 0.0) + self.kernels[op]
        beside["@phase"] = sum(beside.values())
        return beside


def _take(beside: dict[str, float], names: Sequence[str], seconds: float) -> float:
    """Hides up to ``seconds`` behind ``names``; what was used once can hide nothing else."""
    hidden = 0.0
    for name in names:
        part = min(seconds - hidden, beside.get(name, 0.0), beside["@phase"])
        if part > 0:
            beside[name] = beside.get(name, 0.0) - part
            if name != "@phase":
                beside["@phase"] -= part
            hidden += part
    return hidden


def chain(phases: Iterable[Phase]) -> Phase:
    """Phases one after the other: without a synchronisation point between them the host runs ahead across the seam."""
    segments: list[Segment] = [Segment(0.0, 0.0)]
    compute = measured = wait = 0.0
    exposed: dict[str, float] = {}
    covered: dict[str, float] = {}
    for phase in phases:
        first, *rest = phase.segments
        last = segments[-1]
        segments[-1] = Segment(last.device + first.device, last.host + first.host)
        segments += rest
        compute += phase.compute
        measured += phase.measured
        wait += phase.wait
        for group, seconds in phase.exposed.items():
            exposed[group] = exposed.get(group, 0.0) + seconds
        for group, seconds in phase.hidden.items():
            covered[group] = covered.get(group, 0.0) + seconds
    return Phase(tuple(segments), compute, exposed, measured, wait, covered)
