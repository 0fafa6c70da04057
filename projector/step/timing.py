"""Turns operators into seconds: one phase of a block on one rank, with host, hidden and exposed communication."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from projector.dataclass import dataclass
from projector.mechanisms import Execution
from projector.operators.types import Collective, HostWork, Operator
from projector.parameter import parameter
from projector.size import column, height, least, most, table, total

#: Seconds that compute loses for each second of its own beside a communication, which holds compute units and moves bytes
#: through the same memory. A count of the units and bytes of each kernel (260 lines) did no better on measured runs.
CONTENTION = parameter(
    0.15,
    kind="published",
    source="16 to 24 of the 132 units of an H100 (NVIDIA developer forum, topic 337991) cost a product 14 to 22 %, a "
    "memory-bound kernel less; 5–20 % of NCCL beside products",
    low=0.05,
    high=0.2,
    scored=True,
)
#: Share by which communication takes longer beside compute on the whole chip.
SLOWED = parameter(0.10, kind="published", source="5–20 %, of NCCL beside products", low=0.05, high=0.2)
#: Power of the mean by which device and host add up: where they are equally long, now one is late and now the other, on
#: one rank or another, and all wait.
TURNS = parameter(
    4.0,
    kind="fitted",
    source="runs whose host needs half of the device's time or more: 21 sources, open and unseen ones, are nearer to what "
    "was measured than with the slower of the two alone, 6 farther; with a power of 6 the gain is half as large",
    low=3.0,
    high=8.0,
    scored=True,
)
#: Share of an operator's host time left when a graph replays it: the graph's launch, events, copies of static inputs.
GRAPH_REST = parameter(
    0.1,
    kind="assumed",
    source="10–15 µs for a layer of 100 launches or more (NVIDIA/Megatron-LM docs/user-guide/features/cuda_graph.md)",
)


@dataclass(frozen=True, slots=True)
class Message:
    """One collective as it runs: its ``seconds``, and how many of them are ``hidden`` beside compute."""

    op: Collective
    seconds: float
    hidden: float


class Segment(NamedTuple):
    """A stretch between two synchronisation points: the seconds of the device, and those that the host needs to issue
    its work. ``beside``: seconds that the device takes longer where no neighbour hides its exchanges; ``apart``:
    seconds of traffic that was started ahead and that fills time without a kernel.

    ``issued`` is the moment at which a device is done that has nothing to do at first: the largest, over its operators,
    of the host's seconds up to one and the device's from it on. A stretch whose kernels are issued slowly at first
    lasts longer than both of its sums, unless the host was ``ahead`` when it began. ``times``: how many such stretches
    there are, each between synchronisations of its own; the other fields are those of one.
    """

    device: float
    host: float
    beside: float = 0.0
    issued: float = 0.0
    apart: float = 0.0
    times: int = 1

    @property
    def seconds(self) -> float:
        """Returns how long all such stretches last where nothing varies."""
        return most(self.device + self.apart, self.host, self.issued) * self.times

    @property
    def expected(self) -> float:
        """Returns how long all such stretches last where device and host take turns at being late."""
        return most(in_turns(self.device + self.apart, self.host), self.issued) * self.times

    @property
    def ahead(self) -> Segment:
        """Returns this stretch as it runs without a synchronisation before it: it begins with the device still busy."""
        return self._replace(issued=0.0)

    @property
    def alone(self) -> float:
        """Returns how long all such stretches are expected to last where no neighbour hides their exchanges."""
        return most(in_turns(self.device + self.apart + self.beside, self.host), self.issued) * self.times

    def then(self, other: Segment) -> Segment:
        """Joins this stretch and ``other`` into one that the host issues without a synchronisation between them."""
        late = most(self.issued + other.device, self.host + other.issued)
        sums = self.device + other.device, self.host + other.host, self.beside + other.beside
        return Segment(*sums, late, self.apart + other.apart)

    def repeated(self, number: int) -> Segment:
        """Returns ``number`` such stretches in a row as one: device or host, whichever is slower, delays the last one."""
        late = self.issued + (number - 1) * most(self.device, self.host)
        return Segment(number * self.device, number * self.host, number * self.beside, late, number * self.apart)

    def running(self, seconds: float, host: float) -> Segment:
        """Returns this stretch with one operator more at its end, of ``host`` seconds of the host."""
        device, issuing, late = _appended(self.device, self.host, self.issued, seconds, host, 1)
        return Segment(device, issuing, self.beside, late, self.apart)


def in_turns(device: float, host: float) -> float:
    """Returns the seconds of a stretch for which the device needs ``device`` and the host ``host``: never less than the
    longer of the two, 1.19 of it where they are equal, 1.015 where one needs half."""
    together: float = (device**TURNS + host**TURNS) ** (1.0 / TURNS)
    return together


def _appended(
    device: float, host: float, issued: float, seconds: float, issue: float, launches: int
) -> tuple[float, float, float]:
    """Returns ``device``, ``host`` and ``issued`` of a stretch after one operator more, of ``issue`` seconds of the host."""
    if seconds:
        number = launches if launches > 1 else 1
        issued = most(issued + seconds, host + issue / number + seconds, host + issue + seconds / number)
    return device + seconds, host + issue, issued


#: Seconds of an operator on the device, its seconds of the host, and the launches that share both.
_Issued = tuple[float, float, int]


def _stretch(operators: Sequence[_Issued], host: float, beside: float) -> Segment:
    """Returns the stretch of ``operators`` one after the other, with ``host`` seconds of the host before them."""
    number = height(value for operator in operators for value in operator)
    if number > 1:
        return _stretch_of_columns(operators, number, host, beside)
    state = (0.0, host, 0.0)
    for issued in operators:
        state = _appended(*state, *issued)
    return Segment(state[0], state[1], beside, state[2])


def _stretch_of_columns(operators: Sequence[_Issued], number: int, host: float, beside: float) -> Segment:
    """Returns the same in closed form for columns with ``number`` rows: the last issue that the device had to wait for
    decides, with the seconds of the device from there on."""
    seconds, issue, launches = table(operators, number).reshape(3, -1, number)
    device, shares = np.cumsum(seconds, axis=0), np.maximum(launches, 1.0)
    hosts = np.cumsum(np.concatenate([np.full((1, number), host), issue]), axis=0)
    ends = np.maximum(hosts[:-1] + issue / shares + seconds, hosts[:-1] + issue + seconds / shares)
    late = np.where(seconds != 0.0, ends - device, 0.0).max(axis=0) + device[-1]
    return Segment(column(device[-1]), column(hosts[-1]), beside, column(late))


@dataclass(frozen=True)
class Phase:
    """The forward or the backward of a block or of a chunk, as a row of segments. ``exposed``: the seconds of
    communication inside ``device``, by group.

    ``measured``: device seconds that rest on measured kernels. ``wait``: seconds lost at synchronisation points.
    ``drained``: the device has nothing to do when the phase begins.
    """

    segments: tuple[Segment, ...]
    compute: float
    exposed: Mapping[str, float] = field(default_factory=dict)
    measured: float = 0.0
    wait: float = 0.0
    drained: bool = False

    @cached_property
    def seconds(self) -> float:
        return sum(s.expected for s in self.begun) + self.wait

    @property
    def begun(self) -> tuple[Segment, ...]:
        """Returns the segments as they run: before the first synchronisation the host is where the phase before left
        it, which is ahead of the device unless the device was drained."""
        return self.segments if self.drained else (*(s.ahead for s in self.segments[:1]), *self.segments[1:])

    @cached_property
    def device(self) -> float:
        return sum((s.device + s.apart) * s.times for s in self.segments)

    def waiting(self, seconds: float) -> Phase:
        """Returns this phase with ``seconds`` more in which the device waits."""
        return replace(self, wait=self.wait + seconds) if seconds else self

    def synchronised(self, seconds: float) -> Phase:
        """Returns this phase as it runs behind a synchronisation that takes ``seconds``."""
        return replace(self, wait=self.wait + seconds, drained=True)

    def repeated(self, number: int) -> Phase:
        """Returns ``number`` such phases, one after the other, without a synchronisation where they meet."""
        if not self.segments:
            return self
        first, *rest = self.segments
        if rest:
            *middle, last = rest
            middles = [segment._replace(times=(number - 1) * segment.times) for segment in (*middle, last.then(first))]
            segments = (first, *middles, *rest)
        else:
            segments = (first.repeated(number),)
        exposed = {group: number * t for group, t in self.exposed.items()}
        return Phase(segments, number * self.compute, exposed, number * self.measured, number * self.wait)

    @property
    def saved(self) -> float:
        """Returns the seconds by which the phase is longer where its exchanges have no neighbour to hide behind."""
        return sum(s.alone - s.expected for s in self.begun)

    @property
    def host_excess(self) -> float:
        """Returns the seconds by which the host makes the phase longer: the device waits for it."""
        return self.seconds - self.device


@dataclass(frozen=True)
class Clock:
    """Prices operators for one projection: kernel seconds by operator, collective seconds, host cost. ``forwards``:
    phases of the forwards of blocks, cached."""

    kernels: Mapping[Operator, float]
    measured: Set[Operator]
    collective: Callable[[Collective], float]
    execution: Execution
    forwards: dict[Hashable, Phase] = field(default_factory=dict)

    def phase(
        self,
        operators: Sequence[Operator],
        *,
        layer: bool = False,
        graphed: frozenset[str] = frozenset(),
        covered: Mapping[str, tuple[float, float]] | None = None,
        ledger: list[Message] | None = None,
    ) -> Phase:
        """Returns the phase of ``operators`` run one after the other, those with ``hides_behind`` beside the ones they name.

        ``layer``: add the module overhead of one layer; ``graphed``: names of operators that a graph replays. ``covered``:
        by name of a collective, its seconds hidden behind compute of another phase, and the seconds that this compute loses;
        such a partner keeps the device busy. ``ledger``: a list to which every collective is appended.
        """
        execution = self.execution
        beside: dict[str, float] | None = None
        segments: list[Segment] = []
        wait, unhidden, layer_host = 0.0, 0.0, execution.runtime.layer_seconds if layer else 0.0
        issued: list[_Issued] = []
        computing: list[float] = []
        exposed: dict[str, float] = {}
        hidden_elsewhere, measured_ops = covered or {}, self.measured
        for op in operators:
            host = execution.host_seconds(op) * (GRAPH_REST if op.name in graphed else 1.0)
            if isinstance(op, HostWork):
                issued.append((0.0, host, 1))
                if op.sync and not execution.runtime.whole_step:
                    segments.append(_stretch(issued, layer_host, unhidden))
                    issued, layer_host, unhidden = [], 0.0, 0.0
                    wait += execution.runtime.sync_us * 1e-6
            elif isinstance(op, Collective):
                seconds = self.collective(op)
                hidden, lost = hidden_elsewhere.get(op.name, (0.0, 0.0))
                unhidden += most(0.0, hidden - lost)
                if op.hides_behind:
                    beside = self._beside(operators) if beside is None else beside
                    hidden, lost = _hide_behind(beside, op.hides_behind, seconds)
                if ledger is not None:
                    ledger.append(Message(op, seconds, least(hidden, seconds)))
                issued.append((seconds - hidden + lost, host, op.launches))
                computing.append(lost)
                exposed[op.group] = exposed.get(op.group, 0.0) + most(0.0, seconds - hidden)
            else:
                seconds = self.kernels[op]
                issued.append((seconds, host, op.launches))
                computing.append(seconds)
        segments.append(_stretch(issued, layer_host, unhidden))
        if covered is not None:  # the device has its partner's kernels while the host issues these
            segments = [segment.ahead for segment in segments]
        measured = total([self.kernels[op] for op in operators if op in measured_ops]) if measured_ops else 0.0
        return Phase(tuple(segments), total(computing), exposed, measured, wait)

    def work(self, operators: Iterable[Operator]) -> float:
        """Returns the seconds in which ``operators`` compute."""
        return sum(self.kernels[op] for op in operators if not isinstance(op, Collective | HostWork))

    def _beside(self, operators: Iterable[Operator]) -> dict[str, float]:
        """Returns the seconds of compute, by operator name, that may still hide communication; ``@phase`` is their sum."""
        beside: dict[str, float] = {}
        for op in operators:
            if not isinstance(op, Collective | HostWork):
                beside[op.name] = beside.get(op.name, 0.0) + self.kernels[op]
        beside["@phase"] = total(beside.values())
        return beside


def _hide_behind(beside: dict[str, float], names: Iterable[str], seconds: float) -> tuple[float, float]:
    """Returns (communication seconds hidden behind the operators ``names``, seconds that their compute loses).

    ``beside``: compute seconds not yet used, by name; what was used once can hide nothing else. Both slow each other
    down: compute of t seconds offers a window of t·(1 + CONTENTION), in which communication moves at 1/(1 + SLOWED).
    """
    hidden = lost = 0.0
    for name in names:
        free = least(beside.get(name, 0.0), beside["@phase"]) * (1.0 + CONTENTION)
        window = most(0.0, least((seconds - hidden) * (1.0 + SLOWED), free))
        used = window / (1.0 + CONTENTION)
        beside[name] = beside.get(name, 0.0) - used
        if name != "@phase":
            beside["@phase"] -= used
        hidden += window / (1.0 + SLOWED)
        lost += window - used
    return hidden, lost


NOTHING = Phase((), 0.0)


def join_separate(first: Phase, second: Phase) -> Phase:
    """Joins two phases between which other work is issued: neither covers the host time of the other."""
    if not second.segments:
        return first
    joined = join((first, second))
    return replace(joined, segments=(*first.segments, *second.begun), drained=first.drained)


def join(phases: Iterable[Phase]) -> Phase:
    """Joins ``phases`` in order: without a synchronisation point between them the host runs ahead where they meet."""
    segments: list[Segment] = [Segment(0.0, 0.0)]
    compute = measured = wait = 0.0
    exposed: dict[str, float] = {}
    for phase in phases:
        first, *rest = phase.segments or (Segment(0.0, 0.0),)
        segments[-1] = segments[-1].then(first)
        segments += rest
        compute += phase.compute
        measured += phase.measured
        wait += phase.wait
        for group, seconds in phase.exposed.items():
            exposed[group] = exposed.get(group, 0.0) + seconds
    return Phase(tuple(segments), compute, exposed, measured, wait)
