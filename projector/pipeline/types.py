"""What a pipeline schedule is: which rank does what in which order, and where its virtual stages live."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "KINDS",
    "Action",
    "Compiled",
    "Costs",
    "Generator",
    "Indices",
    "Kind",
    "Schedule",
    "actions",
    "loop_placement",
    "v_placement",
]

Kind = Literal["F", "B", "W"]
KINDS: tuple[Kind, ...] = ("F", "B", "W")
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
    """The actions of one kind on one chunk, in the order of micro-batches; made once, shared by all schedules."""
    return tuple(Action(kind, chunk, number) for number in range(microbatches))


@dataclass(frozen=True)
class Schedule:
    """The order in which every rank works.

    ``orders[rank]``: its actions, first to last. ``placement[rank][chunk]``: the virtual stage (0 … pp·vpp − 1, in the
    order of the model's layers) which that chunk is. ``split``: backward comes as ``B`` (input gradient) and ``W``
    (weight gradient) apart; else one ``B`` does both.
    """

    name: str
    pp: int
    vpp: int
    microbatches: int
    split: bool
    orders: tuple[tuple[Action, ...], ...]
    placement: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Costs:
    """Seconds that an order is made for: per virtual stage, and per boundary between two of them (``p2p``)."""

    forward: tuple[float, ...]
    backward_input: tuple[float, ...]
    backward_weight: tuple[float, ...]
    p2p: tuple[float, ...]

    @classmethod
    def equal(cls, stages: int, forward: float = 1.0, backward: float = 1.0, weight: float = 1.0) -> Costs:
        """The same for every stage, messages for nothing."""
        return cls((forward,) * stages, (backward,) * stages, (weight,) * stages, (0.0,) * (stages - 1))


@dataclass(frozen=True)
class Generator:
    """How a schedule is registered: its name, the names the field uses for it, and who builds it.

    ``build(pp, vpp, microbatches, group, extra_warmup)`` returns the schedule; ``chunks``: the ``vpp`` it needs
    (``None``: any). ``source``: where the order is published. ``forwards_first``: all micro-batches are alive at once.
    ``tuned(pp, microbatches, costs)``: the schedule made for these durations, where the order depends on them.
    ``listed``: tried where schedules are compared; else only when it is asked for.
    """

    name: str
    build: Callable[[int, int, int, int | None, int], Schedule]
    chunks: int | None
    split: bool
    aliases: tuple[str, ...]
    source: str
    forwards_first: bool = False
    tuned: Callable[[int, int, Costs], Schedule] | None = None
    listed: bool = True


@dataclass(frozen=True, eq=False)
class Compiled:
    """A schedule as index arrays, in one topological order sorted by level (longest path in actions).

    All of shape ``[n]``, ``n`` the number of actions, unless said otherwise: ``rank``, ``stage`` (virtual stage),
    ``kind`` (index into ``KINDS``), ``microbatch``; ``before``: the action before it on the same rank; ``source``: the
    action whose output it waits for (both −1: none); ``boundary``: index ``v`` of the crossing of ``source`` between
    virtual stages ``v`` and ``v + 1`` when it leaves the rank, else −1; ``sends``: the boundary that the action's own
    output crosses to another rank, else −1; ``steady``: the action lies between the first backward and the last forward
    of its rank; ``levels`` ``[n_levels + 1]``: actions ``levels[i]:levels[i + 1]`` depend on earlier levels only.
    ``by_rank`` ``[n]``: all actions ordered by rank, then time; ``rank_starts`` ``[pp]``: where each rank begins in it.
    ``partner`` ``[n]``: the B that a forward runs beside, as one (−1: none, everywhere unless compiled ``paired``).
    """

    schedule: Schedule
    rank: Indices
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
        """Number of actions."""
        return len(self.rank)

    @property
    def stages(self) -> int:
        """Number of virtual stages, pp·vpp."""
        return self.schedule.pp * self.schedule.vpp

    @cached_property
    def duration_index(self) -> Indices:
        """``kind · stages + stage``: where an action finds its duration in the table F | B | W."""
        return self.kind * self.stages + self.stage

    @cached_property
    def pairs(self) -> tuple[Indices, Indices]:
        """The forwards that run beside a backward, and those backwards."""
        forward = np.flatnonzero(self.partner >= 0)
        return forward, self.partner[forward]

    @cached_property
    def predecessor_lists(self) -> tuple[list[int], list[int]]:
        """``before`` and ``source`` as plain lists, shifted by one so that 0 is 'none': for the scalar loop."""
        return (self.before + 1).tolist(), (self.source + 1).tolist()

    @cached_property
    def stage_rank(self) -> Indices:
        """``[stages]``: the rank that holds each virtual stage."""
        out = np.empty(self.stages, np.intp)
        for rank, stages in enumerate(self.schedule.placement):
            out[list(stages)] = rank
        return out


def loop_placement(pp: int, vpp: int) -> tuple[tuple[int, ...], ...]:
    """Megatron's placement: chunk ``c`` of rank ``r`` is virtual stage ``c·pp + r``."""
    return tuple(tuple(chunk * pp + rank for chunk in range(vpp)) for rank in range(pp))


def v_placement(pp: int) -> tuple[tuple[int, ...], ...]:
    """The V shape: down the ranks with chunk 0, back up with chunk 1; rank 0 holds both ends of the model."""
    return tuple((rank, 2 * pp - 1 - rank) for rank in range(pp))
