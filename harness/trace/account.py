"""Divides the seconds of a part of a trace into busy, exposed and idle; every second counts once. Kernels of several
streams run at a time. A moment belongs to the computation that runs in it, in equal parts where several kinds do; to
communication only where nothing computes; to copies only where neither does; to nobody where nothing runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from harness.trace.events import Floats, Kernels
from harness.trace.names import COMMUNICATION
from harness.trace.steps import TracedPart
from projector.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """The time of one kind of kernel. ``busy``: seconds in which at least one kernel of the kind ran; ``exposed``: the
    part of them that counts for the kind."""

    kind: str
    busy: float
    exposed: float
    calls: int


@dataclass(frozen=True, slots=True)
class Account:
    """The division of a part of a trace. ``entries``: longest exposed first; their exposed seconds and ``idle`` add up
    to ``seconds``. ``gaps``: [n, 2]."""

    seconds: float
    busy: float
    entries: tuple[Entry, ...]
    gaps: Floats

    @property
    def idle(self) -> float:
        return float((self.gaps[:, 1] - self.gaps[:, 0]).sum())


def account(part: TracedPart) -> Account:
    names = part.kernels.kinds()
    labels = [f"{named.kind}: {named.op}" if named.communicates and named.op else named.kind for named in names]
    kinds = sorted(set(labels))
    of_kernel = np.array([kinds.index(label) for label in labels], dtype=np.int64)[part.kernels.name]
    spans = [_clipped(part, of_kernel == place) for place in range(len(kinds))]
    # 0 for a kind that computes, 1 for one that communicates, 2 for copies
    heads = [kind.partition(":")[0] for kind in kinds]
    ranks = np.array([1 if head in COMMUNICATION else 2 * (head == "copy") for head in heads])
    edges, running = _sweep(spans, part.start, part.end)
    length = np.diff(edges)
    exposed = _owned(running, ranks) @ length if len(kinds) else np.zeros(0)
    nothing = np.asarray(~running.any(axis=0))
    calls = np.bincount(of_kernel, minlength=len(kinds))
    entries = [
        Entry(kind, float((span[:, 1] - span[:, 0]).sum()), float(owned), int(number))
        for kind, span, owned, number in zip(kinds, spans, exposed, calls, strict=True)
        if number
    ]
    return Account(
        seconds=part.seconds,
        busy=float(length[~nothing].sum()),
        entries=tuple(sorted(entries, key=lambda entry: (-entry.exposed, -entry.busy, entry.kind))),
        gaps=_joined(edges, nothing),
    )


def union(kernels: Kernels, kept: npt.NDArray[np.bool_]) -> Floats:
    """Returns the stretches [n, 2] in which at least one of the kernels runs, in order."""
    start, end = kernels.start[kept], kernels.end[kept]
    if not len(start):
        return np.zeros((0, 2))
    reach = np.maximum.accumulate(end)
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.stack((start[first], reach[last]), axis=1)


def _clipped(part: TracedPart, mask: npt.NDArray[np.bool_]) -> Floats:
    spans = np.clip(union(part.kernels, mask), part.start, part.end)
    return spans[spans[:, 1] > spans[:, 0]]


def _sweep(spans: Sequence[Floats], start: float, end: float) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Returns edges [n + 1] of stretches in which the same kinds run, and which of them do: [kinds, n]."""
    edges = np.unique(np.concatenate([np.array([start, end]), *[span.ravel() for span in spans]]))
    running = np.zeros((len(spans), len(edges) - 1), dtype=bool)
    for row, span in zip(running, spans, strict=True):
        steps = np.zeros(len(edges), dtype=np.int64)
        np.add.at(steps, np.searchsorted(edges, span[:, 0]), 1)
        np.add.at(steps, np.searchsorted(edges, span[:, 1]), -1)
        row[:] = np.cumsum(steps)[:-1] > 0
    return edges, running


def _owned(running: npt.NDArray[np.bool_], ranks: npt.NDArray[np.int64]) -> Floats:
    """Returns the share of each stretch that belongs to each kind: [kinds, n]."""
    first = np.where(running, ranks[:, None], 9).min(axis=0)
    owners = running & (ranks[:, None] == first)
    shared: Floats = owners / np.maximum(1, owners.sum(axis=0))
    return shared


def _joined(edges: Floats, nothing: npt.NDArray[np.bool_]) -> Floats:
    """Joins neighbouring stretches of nothing to gaps."""
    if not nothing.any():
        return np.zeros((0, 2))
    before = np.concatenate(([False], nothing[:-1]))
    after = np.concatenate((nothing[1:], [False]))
    return np.stack((edges[:-1][nothing & ~before], edges[1:][nothing & ~after]), axis=1)
