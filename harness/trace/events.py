"""A profiler's events as columns: kernels on the device, launches and operators on the host, annotations of both. Times
are seconds from the first event of the file; -1 is a correlation that is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.trace.names import Named, named
from projector.dataclass import dataclass

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """A collective as its issuer describes it (``record_param_comms`` of torch). ``elements``: of the larger side;
    ``group``: its description, ``ranks``: its number of ranks."""

    op: str
    group: str
    ranks: int
    elements: int
    dtype: str
    sequence: int | None = None


_COLUMNS = ("start", "end", "stream", "name", "correlation")


@dataclass(frozen=True, eq=False)
class Kernels:
    """Device events, by start. ``name``: place in ``names``; ``messages``: by place of the kernel; ``host``: operators
    of the host stand for kernels."""

    start: Floats
    end: Floats
    stream: Integers
    name: Integers
    correlation: Integers
    names: tuple[str, ...]
    messages: Mapping[int, CollectiveCall] = field(default_factory=dict)
    host: bool = False

    def __len__(self) -> int:
        return len(self.start)

    @property
    def seconds(self) -> Floats:
        return self.end - self.start

    def kinds(self) -> tuple[Named, ...]:
        """Returns the kind of each of ``names``."""
        return tuple(named(name, self.host) for name in self.names)

    def only(self, kept: npt.NDArray[np.bool_]) -> Kernels:
        place = {int(old): new for new, old in enumerate(np.flatnonzero(kept))}
        columns: dict[str, Any] = {name: getattr(self, name)[kept] for name in _COLUMNS}
        messages = {place[at]: message for at, message in self.messages.items() if at in place}
        return replace(self, messages=messages, **columns)


@dataclass(frozen=True, eq=False)
class Launches:
    """Calls of the driver or runtime, by start. ``waits``: marks calls in which the host waits for the device."""

    start: Floats
    end: Floats
    thread: Integers
    correlation: Integers
    waits: npt.NDArray[np.bool_]

    def of(self, kernels: Kernels) -> Integers:
        """Returns the place of the call that launched each kernel (the first with its correlation), -1 for none."""
        first: dict[int, int] = {}
        for at, correlation in enumerate(self.correlation.tolist()):
            first.setdefault(correlation, at)
        return np.array([first.get(number, -1) if number >= 0 else -1 for number in kernels.correlation.tolist()], int)


@dataclass(frozen=True, slots=True)
class Inputs:
    """The recorded inputs of an operator: sizes, strides and element types; empty where the profiler did not record
    them, and for an input that is no tensor."""

    sizes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Ops:
    """Operators of the host, by start. ``inputs``: by place, of products and attention."""

    start: Floats
    end: Floats
    thread: Integers
    name: Integers
    names: tuple[str, ...]
    inputs: Mapping[int, Inputs] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mark:
    """An annotation of the user or the framework on a thread of the host."""

    name: str
    start: float
    end: float
    thread: int


@dataclass(frozen=True, eq=False)
class Trace:
    """One file of one rank. ``cut``: it ends in the middle; ``rank``, ``world``: where the file states them."""

    path: str
    kernels: Kernels
    launches: Launches
    ops: Ops
    marks: tuple[Mark, ...]
    gpu: str = ""
    rank: int | None = None
    world: int | None = None
    cut: bool = False
