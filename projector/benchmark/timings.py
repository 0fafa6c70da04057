"""Describes what is asked of the ranks that time, and their answer, as values that files keep unchanged."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import Any

from projector.dataclass import dataclass
from projector.mechanisms import Execution
from projector.operators.types import Collective
from projector.workload.model import LayerKind
from projector.workload.workload import Workload


@dataclass(frozen=True, slots=True)
class Seconds:
    """Median seconds, their interquartile range over it, how many were taken, and the least decile: the time when
    nobody else wants the machine."""

    median: float
    spread: float = 0.0
    samples: int = 0
    quiet: float = 0.0

    @classmethod
    def of(cls, times: Sequence[float]) -> Seconds:
        """Returns what ``times``, one at least, say."""
        if len(times) < 2:
            return cls(times[0], 0.0, 1, times[0])
        low, median, high = statistics.quantiles(times, n=4)
        least = statistics.quantiles(times, n=10, method="inclusive")[0]
        return cls(median, (high - low) / max(median, 1e-9), len(times), least)

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Seconds:
        """Returns the seconds that :func:`dataclasses.asdict` gave, or the mean of several ranks' of them."""
        stated = cls(**value)
        return replace(stated, samples=int(stated.samples))


@dataclass(frozen=True, slots=True)
class PartWanted:
    """A kind of layer: ``count`` of them in the model; ``replayed``: its forward runs again before its backward."""

    key: str
    kind: LayerKind
    replayed: bool
    count: int


#: The names of timed parts, each with the layer that stands for it (None: an end of the model).
Made = tuple[tuple[str, PartWanted | None], ...]


@dataclass(frozen=True, slots=True)
class StageWanted:
    """What one pipeline rank updates: (key, count) of its parts; ``share``, ``expert_share``: the parts of its dense
    weights and of its experts' weights that are this data-parallel rank's."""

    key: str
    counts: tuple[tuple[str, int], ...]
    share: float = 1.0
    expert_share: float = 1.0

    def elements(self, weights: Mapping[str, Sequence[float]]) -> float:
        """Returns the elements of all weights that a stage updates. ``weights``: (dense, expert) elements of each part."""
        parts = ((count, *weights[key]) for key, count in self.counts)
        return sum(count * (self.share * dense + self.expert_share * expert) for count, dense, expert in parts)


@dataclass(frozen=True, slots=True)
class CollectiveWanted:
    """A collective of ``size`` ranks; ``bytes`` as :class:`projector.operators.types.Collective` counts them.
    ``per_node``: ranks on each node where it was timed (0: not stated, as many as a node of the cluster has)."""

    kind: str
    group: str
    size: int
    bytes: int
    width: int  # bytes of an element
    per_node: int = field(default=0, compare=False)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A whole measurement. ``workload``: shrunk to the ranks; ``budget``: seconds for each thing that is timed;
    ``beside``: processes that time one rank's work at once, each for itself, as the run keeps so many busy;
    ``wrapped``: weights are sharded tensors of one shard, as the host dispatches those of the run."""

    workload: Workload
    execution: Execution
    parts: tuple[PartWanted, ...]
    stages: tuple[StageWanted, ...]
    collectives: tuple[CollectiveWanted, ...]
    sharded: bool
    ranks: int
    layers: str = "torch"
    budget: float = 2.0
    beside: int = 1
    wrapped: bool = False


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Everything that was timed. ``laps``: seams of a step by name; ``step``: the shortened step; ``updates``: by
    pipeline rank's key, ``updated``: elements of each; ``update_short``: of the shortened model; ``collectives``: in
    the order asked. ``weights``: (dense, expert) elements of every part on one rank; ``conditions``: of the device,
    before and after; ``saved``: bytes that the forward of a part leaves for its backward."""

    source: str
    laps: Mapping[str, Seconds]
    step: Seconds
    update_short: Seconds
    updates: Mapping[str, Seconds]
    collectives: tuple[tuple[CollectiveWanted, Seconds], ...]
    weights: Mapping[str, tuple[float, float]]
    updated: Mapping[str, float]
    conditions: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    saved: Mapping[str, float] = field(default_factory=dict)

    def missing(self, asked: Asked) -> tuple[str, ...]:
        """Returns a note on collectives that were asked for and not timed, because a rank was lost."""
        left = len(asked.collectives) - len(self.collectives)
        return (f"{left} of {len(asked.collectives)} collectives are priced: a rank was lost",) if left else ()

    @classmethod
    def of(cls, found: Mapping[str, Any], asked: Asked) -> Timings:
        """Returns the timings in what :func:`projector.benchmark.task.run` returned."""
        wanted = map(asdict, asked.collectives)
        return cls.read(
            {
                **found,
                "collectives": zip(wanted, found["collectives"], strict=False),  # the first, where a rank was lost
                "updated": {stage.key: stage.elements(found["weights"]) for stage in asked.stages},
            }
        )

    @classmethod
    def read(cls, times: Mapping[str, Any]) -> Timings:
        """Returns the timings that :func:`dataclasses.asdict` gave."""
        return cls(
            source=str(times["source"]),
            laps={name: Seconds.read(value) for name, value in times["laps"].items()},
            step=Seconds.read(times["step"]),
            update_short=Seconds.read(times["update_short"]),
            updates={name: Seconds.read(value) for name, value in times["updates"].items()},
            collectives=tuple((CollectiveWanted(**w), Seconds.read(value)) for w, value in times["collectives"]),
            weights={name: (float(dense), float(expert)) for name, (dense, expert) in times["weights"].items()},
            updated={name: float(value) for name, value in times["updated"].items()},
            conditions=dict(times["conditions"]),
            saved={name: float(value) for name, value in times["saved"].items()},
        )


def key_of(kind: LayerKind, replayed: bool) -> str:
    """Returns the name of a kind of layer in laps and files."""
    words = ["moe" if kind.moe else "dense"]
    words += [f"window {kind.window}"] if kind.window is not None else []
    return "layer " + " ".join([*words, "recomputed"] if replayed else words)


def wanted(op: Collective, size: int, width: int) -> CollectiveWanted:
    """Returns ``op`` among ``size`` ranks, its bytes rounded to whole elements of every rank."""
    unit = width * size
    return CollectiveWanted(op.kind, op.group, size, max(unit, round(op.bytes / unit) * unit), width)
