"""What a search counts, finds, and opens one by one."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields

from projector.dataclass import dataclass
from projector.search.axes import Option

#: Fields by which two configurations are different layouts.
LAYOUT = ("gpus", "tp", "cp", "pp", "vpp", "ep", "etp", "micro_batch_size")


@dataclass
class Counts:
    """Configurations: ``enumerated`` are valid, of these ``out_of_memory``, ``unsupported`` and ``bounded`` away were
    never timed, ``projected`` were. ``points``: combinations before any rule."""

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
class Hit:
    """A projected configuration: what it sets, its objective, seconds, bytes, and the ``share`` of the usable ones that it
    needs."""

    fields: Option
    value: float
    seconds: float
    memory: float
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Node:
    """One pipeline of one choice of sizes, with options of the layers and of what is done once a step (``options``: numbers
    of options). ``relaxed``: all recompute of one choice of switches, looked at as if there were none; else one group, of
    which is left open what is done once a step, and ``fits`` says that it does in memory. ``safe``: it may fit surely."""

    shape: int
    pipe: int
    options: tuple[tuple[int, tuple[int, ...]], ...]
    relaxed: bool = True
    fits: bool = False
    safe: bool = True

    @property
    def number(self) -> int:
        """Of the configurations below it."""
        return sum(len(each) for _, each in self.options)

    @property
    def layer(self) -> int:
        """Its first option of the layers."""
        return self.options[0][0]

    @property
    def step_options(self) -> tuple[int, ...]:
        """What goes with that."""
        return self.options[0][1]


def layout_of(fields: Option) -> Hashable:
    """Equal for configurations that are one layout."""
    return tuple(fields.get(name) for name in LAYOUT)


def without(option: Option, *prefixes: str) -> Hashable:
    return tuple(sorted((name, str(value)) for name, value in option.items() if not name.startswith(prefixes)))
