"""From operators to seconds: one phase of a block on one rank, with host, hidden and exposed communication."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from projector.frameworks.types import Execution
from projector.kernels.host import host_seconds
from projector.layers.types import Collective, HostWork, Operator
from projector.step.contention import Crowding

__all__ = ["CONTENTION", "SLOWED", "Clock", "Message", "Phase", "Segment", "chain"]

CONTENTION = 0.10
"""Share of the time of a communication that the compute beside it loses, where no :mod:`projector.step.contention` says what
each operator loses (published range 5–20 %)."""

SLOWED = 0.10
"""How much longer communication takes beside compute on the whole chip. published: 5–20 %, of NCCL beside products."""

GRAPH_REST = 0.1
"""Host time left of an operator that a graph replays: the graph's own launch, events and copies of static inputs,
10–15 µs for a layer of 100 launches or more (NVIDIA/Megatron-LM docs/user-guide/features/cuda_graph.md; estimate)."""


@dataclass(frozen=True, slots=True)
class Message:
    """One collective as it runs: its own seconds, and those of them that run beside compute."""

    op: Collective
    seconds: float
    hidden: float


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

    ``measured``: device seconds that rest on measured kernels. ``wait``: seconds lost at synchronisation points, ``waited``:
    those of them that are communication, by group.
    ``hidden``: communication seconds that run beside compute, less what they slow it down, by group. ``crowding``:
    seconds that its compute loses for each second of its own beside collectives.
    """

    segments: tuple[Segment, ...]
    compute: float
    exposed: Mapping[str, float] = field(default_factory=dict)
    measured: float = 0.0
    wait: float = 0.0
    hidden: Mapping[str, float] = field(default_factory=dict)
    crowding: float = CONTENTION
    waited: Mapping[str, float] = field(default_factory=dict)

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
    crowded: Crowding = field(default_factory=dict)

    def phase(
        self,
        operators: Sequence[Operator],
        *,
        layer: bool = False,
        graphed: frozenset[str] = frozenset(),
        covered: Mapping[str, tuple[float, float]] | None = None,
        ledger: list[Message] | None = None,
    ) -> Phase:
        """Seconds of ``operators`` run one after the other, those with ``hides_behind`` beside the ones they name.

        ``layer``: add the module overhead of one layer; ``graphed``: names of operators that a graph replays.
        ``covered``: by name of a collective, its seconds hidden behind compute of another phase, and what that loses.
        ``ledger`` takes down every collective.
        """
        x = self.execution
        windows = {kind: self._windows(operators, kind) for kind in {_kind(op) for op in operators if _hides(op)}}
        beside: dict[str, float] = self._beside(operators)
        segments: list[Segment] = []
        device, compute, measured, wait = 0.0, 0.0, 0.0, 0.0
        host = x.layer_us * 1e-6 if layer and not x.whole_step_compiled else 0.0
        exposed: dict[str, float] = {}
        beneath: dict[str, float] = {}
        elsewhere = covered or {}
        for op in operators:
            host += host_seconds(op, x) * (GRAPH_REST if op.name in graphed else 1.0)
            if isinstance(op, HostWork):
                if op.sync and not x.whole_step_compiled:
                    segments.append(Segment(device, host))
                    device = host = 0.0
                    wait += x.sync_us * 1e-6
            elif isinstance(op, Collective):
                seconds = self.collective(op)
                hidden, lost = elsewhere.get(op.name, (0.0, 0.0))
                if op.hides_behind:
                    hidden, lost = _take(beside, windows[_kind(op)], op.hides_behind, seconds)
                if ledger is not None:
                    ledger.append(Message(op, seconds, min(hidden, seconds)))
                device += seconds - hidden + lost
                compute += lost
                if hidden > 0:
                    beneath[op.group] = beneath.get(op.group, 0.0) + max(0.0, hidden - lost)
                if seconds > hidden:
                    exposed[op.group] = exposed.get(op.group, 0.0) + seconds - hidden
            else:
                seconds = self.kernels[op]
                device += seconds
                compute += seconds
                measured += seconds if op in self.measured else 0.0
        segments.append(Segment(device, host))
        crowding = self._windows(operators, "collective")["@phase"]
        return Phase(tuple(segments), compute, exposed, measured, wait, beneath, crowding)

    def kind_of(self, op: Collective) -> str:
        """The kind of traffic that ``op`` is (see :data:`projector.step.contention.Crowding`)."""
        return _kind(op)

    def work(self, operators: Iterable[Operator], kind: str) -> tuple[float, float]:
        """Compute seconds of ``operators``, and seconds lost for each of them beside traffic of ``kind``."""
        computing = [op for op in operators if not isinstance(op, Collective | HostWork)]
        return sum(self.kernels[op] for op in computing), self._windows(computing, kind)["@phase"]

    def _windows(self, operators: Iterable[Operator], kind: str) -> dict[str, float]:
        """By operator name, and for ``@phase``: seconds lost beside ``kind`` for each second of compute."""
        losses = self.crowded.get(kind)
        own: dict[str, float] = {}
        lost: dict[str, float] = {}
        for op in operators:
            if not isinstance(op, Collective | HostWork):
                seconds = self.kernels[op]
                loss = CONTENTION if losses is None else losses.get(op, CONTENTION)
                for name in (op.name, "@phase"):
                    own[name] = own.get(name, 0.0) + seconds
                    lost[name] = lost.get(name, 0.0) + seconds * loss
        rates = {name: lost[name] / seconds if seconds > 0 else CONTENTION for name, seconds in own.items()}
        return {"@phase": CONTENTION, **rates}

    def _beside(self, operators: Iterable[Operator]) -> dict[str, float]:
        """Seconds of compute, by operator name, that communication may still hide behind; ``@phase`` is their sum."""
        beside: dict[str, float] = {}
        for op in operators:
            if not isinstance(op, Collective | HostWork):
                beside[op.name] = beside.get(op.name, 0.0) + self.kernels[op]
        beside["@phase"] = sum(beside.values())
        return beside


def _hides(op: Operator) -> bool:
    return isinstance(op, Collective) and bool(op.hides_behind)


def _kind(op: Operator) -> str:
    """Which compute units a collective takes: its own kernels', or those of an exchange that compiles its own."""
    if not isinstance(op, Collective) or op.transport in ("deepep", "hybridep"):
        return "dispatch"
    return "tp" if op.group == "tp" else "collective"


def _take(
    beside: dict[str, float], losses: Mapping[str, float], names: Sequence[str], seconds: float
) -> tuple[float, float]:
    """(communication seconds hidden behind ``names``, seconds that the compute there loses).

    ``beside``: compute seconds not yet used, by name; what was used once can hide nothing else. Both slow each other
    down: compute of t seconds offers a window of t·(1 + loss), in which communication moves at 1/(1 + SLOWED).
    """
    hidden = lost = 0.0
    for name in names:
        loss = losses.get(name, CONTENTION)
        free = min(beside.get(name, 0.0), beside["@phase"]) * (1.0 + loss)
        window = min((seconds - hidden) * (1.0 + SLOWED), free)
        if window > 0:
            used = window / (1.0 + loss)
            beside[name] = beside.get(name, 0.0) - used
            if name != "@phase":
                beside["@phase"] -= used
            hidden += window / (1.0 + SLOWED)
            lost += window - used
    return hidden, lost


def chain(phases: Iterable[Phase]) -> Phase:
    """Phases one after the other: without a synchronisation point between them the host runs ahead across the seam."""
    segments: list[Segment] = [Segment(0.0, 0.0)]
    compute = measured = wait = crowded = 0.0
    exposed: dict[str, float] = {}
    covered: dict[str, float] = {}
    waited: dict[str, float] = {}
    for phase in phases:
        crowded += phase.crowding * phase.compute
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
        for group, seconds in phase.waited.items():
            waited[group] = waited.get(group, 0.0) + seconds
    crowding = crowded / compute if compute > 0 else CONTENTION
    return Phase(tuple(segments), compute, exposed, measured, wait, covered, crowding, waited)
