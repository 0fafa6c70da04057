"""What a search counts, what it projects, and the nodes that it expands one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import field, fields

from projector.dataclass import dataclass
from projector.search.axes import Option

#: Fields that make two configurations different layouts.
LAYOUT = ("gpus", "tp", "cp", "pp", "vpp", "ep", "etp", "micro_batch_size")


@dataclass
class Counts:
    """How many configurations a search has seen. ``points``: combinations before any rule; ``enumerated``: valid ones.
    Of these ``out_of_memory``, ``unsupported`` and ``bounded`` (pruned by their bound) were never timed, and
    ``projected`` were."""

    points: int = 0
    enumerated: int = 0
    out_of_memory: int = 0
    unsupported: int = 0
    projected: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Counts)))

    @property
    def bounded(self) -> int:
        return self.enumerated - self.out_of_memory - self.unsupported - self.projected


@dataclass(frozen=True, slots=True)
class Candidate:
    """A projected configuration: the fields that it sets, the ``value`` of the objective (smaller is better), seconds
    of a step, bytes on the fullest rank, and the ``share`` of the usable bytes that it needs."""

    fields: Option
    value: float
    seconds: float
    memory: float
    share: float = 0.0


@dataclass(kw_only=True)
class SearchState:
    """What a search has found so far, and what it reports to a search through a larger space. ``near_misses``: bound,
    share of the memory and fields of configurations that need little more than there is, or may not fit; ``reasons``: how
    many configurations no model covers, by reason; ``refused``: how many combinations, by (field, what its rule expects);
    ``open_bound``: the lowest bound of a wanted node that was not expanded; ``all_bounded``: whether every configuration
    has a bound; ``projected``: (seconds, bytes, share of the memory) by the text of the fields, earlier searches
    included."""

    counts: Counts = field(default_factory=Counts)
    hits: list[Candidate] = field(default_factory=list)
    near_misses: list[tuple[float, float, Option]] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    open_bound: float = float("inf")
    all_bounded: bool = True
    projected: dict[str, tuple[float, float, float]] = field(default_factory=dict)


class Incumbents:
    """The lowest values so far, by group and by layout. ``cutoff``: the value of the last group that is wanted; higher
    bounds are pruned."""

    def __init__(self, top: int) -> None:
        self._top, self._best = top, dict[Hashable, float]()
        self.layouts, self.cutoff = dict[Hashable, float](), float("inf")

    def add(self, group: Hashable, layout: Hashable, value: float) -> None:
        if value < self._best.get(group, float("inf")):
            self._best[group] = value
            self.layouts[layout] = min(value, self.layouts.get(layout, value))
            if len(self._best) >= self._top:
                self.cutoff = sorted(self._best.values())[self._top - 1]


@dataclass(frozen=True, slots=True)
class Node:
    """One pipeline of one choice of sizes (``shape``, ``pipe``: their numbers), with several ``options``: the number of
    an option of the layers, and the numbers of the options of what is done once a step that go with it. ``relaxed``:
    the options stand for all recompute of one choice of switches and are bounded as if there were no recompute; else
    there is one option, and only what is done once a step is open, and ``fits`` says that it fits in memory. ``safe``:
    nothing found yet rules out that it surely fits."""

    shape: int
    pipe: int
    options: tuple[tuple[int, tuple[int, ...]], ...]
    relaxed: bool = True
    fits: bool = False
    safe: bool = True

    @property
    def number(self) -> int:
        """Returns how many configurations are below the node."""
        return sum(len(each) for _, each in self.options)

    @property
    def layer(self) -> int:
        """Returns the number of the node's first option of the layers."""
        return self.options[0][0]

    @property
    def step_options(self) -> tuple[int, ...]:
        """Returns the numbers of the options once a step that go with :attr:`layer`."""
        return self.options[0][1]


def layout_of(fields: Option) -> Hashable:
    """Returns a key that is equal for configurations that have the same layout."""
    return tuple(fields.get(name) for name in LAYOUT)


def without(option: Option, *prefixes: str) -> Hashable:
    """Returns a key of ``option`` that leaves out the fields whose names begin with one of ``prefixes``."""
    return tuple(sorted((name, str(value)) for name, value in option.items() if not name.startswith(prefixes)))
