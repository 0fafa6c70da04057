"""The types of a pipeline schedule: which rank does what in which order, and where its virtual stages are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cached_property, lru_cache
from itertools import accumulate, chain
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from projector.dataclass import dataclass
from projector.memo import cached_on

Kind = Literal["F", "B", "W"]
KINDS: tuple[Kind, ...] = ("F", "B", "W")
_CODE = {kind: code for code, kind in enumerate(KINDS)}
Indices = NDArray[np.intp]


class Action(NamedTuple):
    """One computation of a rank: forward ``F``, backward ``B`` (for the input only, when split), weight gradient ``W``.

    ``chunk`` is the model chunk *on the rank*, ``microbatch`` counts from 0.
    """

    kind: Kind
    chunk: int
    microbatch: int


@lru_cache(maxsize=1024)
def actions(kind: Kind, chunk: int, microbatches: int) -> tuple[Action, ...]:
    """Returns the actions of one kind on one chunk, in the order of micro-batches; made once, shared by all schedules."""
    return tuple(Action(kind, chunk, number) for number in range(microbatches))


class Flat(NamedTuple):
    """The actions of all ranks laid end to end, ``[actions]`` each: ``kind`` is an index into ``KINDS``; rank ``r`` has
    the actions from ``starts[r]`` to ``starts[r + 1]``."""

    rank: Indices
    kind: Indices
    chunk: Indices
    microbatch: Indices
    starts: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """The order in which every rank works.

    ``orders[rank]``: its actions, first to last. ``placement[rank][chunk]``: the virtual stage (0 … pp·vpp − 1, in the
    order of the model's layers) of that chunk. A stage may stand on several ranks, each of which then runs its share of
    the micro-batches there (bidirectional pipelines). ``split``: the backward comes as ``B`` (input gradient) and ``W``
    (weight gradient) apart; else one ``B`` does both. ``joined[rank]``: from which to which of its actions neighbours
    run together: a ``W`` right after its own ``B`` as one whole backward, whose gradient leaves at its end, and,
    compiled in pairs, a forward right before a backward beside it. ``None``: no whole backwards, pairs anywhere.
    """

    name: str
    pp: int
    vpp: int
    microbatches: int
    split: bool
    orders: tuple[tuple[Action, ...], ...]
    placement: tuple[tuple[int, ...], ...]
    joined: tuple[tuple[int, int], ...] | None = None

    @property
    def chunks(self) -> int:
        """Returns how many model chunks a rank holds."""
        return len(self.placement[0])

    @cached_property
    def home(self) -> tuple[tuple[int, int], ...]:
        """Returns ``[stages]``: (rank, chunk) where micro-batch 0 meets each virtual stage."""
        columns = enumerate(zip(*self.placement, strict=True))
        places = sorted(
            (chunk // self.vpp, stage, rank, chunk) for chunk, stages in columns for rank, stage in enumerate(stages)
        )
        return tuple((rank, chunk) for copy, _, rank, chunk in places if copy == 0)

    @property
    def copies(self) -> int:
        """Returns the ranks that hold the same virtual stage: 1, or 2 where micro-batches enter at both ends."""
        return self.chunks // self.vpp

    @property
    def each(self) -> int:
        """Returns how many micro-batches a chunk of a rank runs."""
        return self.microbatches // self.copies

    @cached_property
    def flat(self) -> Flat:
        """Returns all orders as index arrays."""
        lengths = [len(order) for order in self.orders]
        kinds, chunks, numbers = zip(*chain.from_iterable(self.orders), strict=True)
        rank = np.repeat(np.arange(self.pp), lengths)
        codes = [_CODE[kind] for kind in kinds]
        kind, chunk, microbatch = (np.asarray(column, np.intp) for column in (codes, chunks, numbers))
        return Flat(rank, kind, chunk, microbatch, (0, *accumulate(lengths)))


@dataclass(frozen=True)
class Costs:
    """The seconds for which an order is made: per virtual stage, and per boundary between two of them (``p2p``)."""

    forward: tuple[float, ...]
    backward_input: tuple[float, ...]
    backward_weight: tuple[float, ...]
    p2p: tuple[float, ...]

    @classmethod
    def equal(cls, stages: int, forward: float = 1.0, backward: float = 1.0, weight: float = 1.0) -> Costs:
        """Returns equal costs of every stage, and messages that take no time."""
        return cls((forward,) * stages, (backward,) * stages, (weight,) * stages, (0.0,) * (stages - 1))


@dataclass(frozen=True)
class Generator:
    """How a schedule is registered: its name, the names the field uses for it, and the function that builds it.

    ``build(pp, vpp, microbatches, group, extra_warmup)`` returns the schedule; ``chunks``: the ``vpp`` it needs
    (``None``: any). ``source``: where the order is published. ``forwards_first``: all micro-batches are alive at once.
    ``tuned(pp, microbatches, costs)``: the schedule made for these durations, where the order depends on them.
    ``listed``: tried where schedules are compared; else only when it is asked for. ``looped``, ``single``: the schedule
    that a framework runs in its place for several chunks a rank, and for one. ``multiples``: what ``pp``, ``vpp`` and
    ``microbatches`` must be multiples of. ``gap(schedule, costs, makespan)``: share of the makespan by which no order
    could be shorter, for orders that are searched for. ``pairs``: made for forwards that run beside backwards.
    ``configured_by``: the families of frameworks that run it as it is (:mod:`projector.settle.launch`).
    """

    name: str
    build: Callable[[int, int, int, int | None, int], Schedule]
    aliases: tuple[str, ...]
    source: str
    chunks: int | None = None
    split: bool = False
    forwards_first: bool = False
    tuned: Callable[[int, int, Costs], Schedule] | None = None
    listed: bool = True
    looped: str | None = None
    single: str | None = None
    multiples: Mapping[str, int] = field(default_factory=dict)
    gap: Callable[[Schedule, Costs, float], float] | None = None
    pairs: bool = False
    configured_by: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Compiled:
    """A schedule as index arrays, in one topological order sorted by level (longest path in actions).

    All of shape ``[n]``, ``n`` the number of actions, unless said otherwise: ``rank``, ``chunk`` (on the rank), ``stage``
    (virtual stage), ``kind`` (index into ``KINDS``), ``microbatch``; ``before``: the action before it on the same rank;
    ``source``: the action whose output it waits for (both −1: none); ``boundary``: index ``v`` of the crossing of
    ``source`` between virtual stages ``v`` and ``v + 1`` when it leaves the rank, else −1; ``sends``: the boundary that the
    action's own output crosses to another rank, else −1; ``steady``: the action lies between the first backward and the
    last forward of its rank; ``levels`` ``[n_levels + 1]``: actions ``levels[i]:levels[i + 1]`` depend on earlier levels
    only. ``by_rank`` ``[n]``: all actions ordered by rank, then time; ``rank_starts`` ``[pp]``: where each rank begins in
    it. ``partner`` ``[n]``: the B that a forward runs beside, as one (−1: none, everywhere unless compiled ``paired``).
    """

    schedule: Schedule
    rank: Indices
    chunk: Indices
    stage: Indices
    kind: Indices
    microbatch: Indices
    before: Indices
    source: Indices
    boundary: Indices
    sends: Indices
    steady: NDArray[np.bool_]
    levels: Indices
    by_rank: Indices
    rank_starts: Indices
    partner: Indices

    @property
    def size(self) -> int:
        """Returns the number of actions."""
        return len(self.rank)

    @property
    def stages(self) -> int:
        """Returns the number of virtual stages, pp·vpp."""
        return self.schedule.pp * self.schedule.vpp

    @cached_property
    def duration_index(self) -> Indices:
        """Returns ``kind · stages + stage``: where an action finds its duration in the table F | B | W."""
        return self.kind * self.stages + self.stage

    @cached_property
    def pairs(self) -> tuple[Indices, Indices]:
        """Returns the forwards that run beside a backward, and those backwards."""
        forward = np.flatnonzero(self.partner >= 0)
        return forward, self.partner[forward]

    @cached_property
    def posted(self) -> tuple[Indices, Indices]:
        """Returns the boundaries of the messages for which an action waits together with the action before it on its
        rank (−1: none): its own input, and what the action before sent."""
        after = self.before >= 0
        return np.where(after, self.boundary, -1), np.where(after, self.sends[self.before], -1)

    @cached_property
    def begun(self) -> int:
        """Returns the number of actions in the levels up to the last first forward of any chunk."""
        forwards = np.flatnonzero(self.kind == 0)
        _, first = np.unique(self.rank[forwards] * self.schedule.chunks + self.chunk[forwards], return_index=True)
        return int(self.levels[np.searchsorted(self.levels, forwards[first].max(), side="right")])

    @cached_property
    def last_of(self) -> tuple[Indices, ...]:
        """Returns for every kind the last action on each rank of each of its chunks; −1 for a kind without actions."""
        last = np.full((3, self.schedule.pp, self.schedule.chunks), -1, np.intp)
        order = self.by_rank
        last[self.kind[order], self.rank[order], self.chunk[order]] = order  # the last of several stays
        return tuple(last)

    @cached_on(0)
    def level_by_level(self, columns: int) -> Indices:
        """Returns the places of a table of ``columns`` columns, laid one after the other, in the order of levels."""
        level = np.repeat(np.arange(len(self.levels) - 1), np.diff(self.levels))
        return np.argsort(np.tile(level, columns), kind="stable")

    @cached_property
    def predecessor_lists(self) -> tuple[list[int], list[int]]:
        """Returns ``before`` and ``source`` as plain lists, shifted by one so that 0 is 'none': for the scalar loop."""
        return (self.before + 1).tolist(), (self.source + 1).tolist()

    def own(self, rank: int) -> Indices:
        """Returns the actions of one rank, in time."""
        bounds = self.schedule.flat.starts
        return self.by_rank[bounds[rank] : bounds[rank + 1]]


def loop_placement(pp: int, vpp: int) -> tuple[tuple[int, ...], ...]:
    """Returns Megatron's placement: chunk ``c`` of rank ``r`` is virtual stage ``c·pp + r``."""
    return tuple(tuple(chunk * pp + rank for chunk in range(vpp)) for rank in range(pp))


def snake_placement(pp: int, vpp: int = 2) -> tuple[tuple[int, ...], ...]:
    """Returns the placement down the ranks with even chunks, back up with odd ones: with two chunks a V, whose rank 0
    holds both ends of the model."""
    return tuple(
        tuple(chunk * pp + (pp - 1 - rank if chunk % 2 else rank) for chunk in range(vpp)) for rank in range(pp)
    )
