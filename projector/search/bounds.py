"""What configurations need of memory, and seconds that none of them beats: from weights alone, from the order of a
schedule, from the prices of its stages."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from projector.errors import InputError, Unsupported
from projector.frameworks.types import Resolved
from projector.hardware.efficiency import of as efficiency_of
from projector.hardware.types import Cluster
from projector.kernels.settings import Settings
from projector.memory.columns import Laid, laid
from projector.memory.peaks import fullest_of, least
from projector.memory.verdict import Need
from projector.settle.workload import settled
from projector.step.columns import staged
from projector.step.cycle import tuned
from projector.step.limit import shortest
from projector.workload.workload import Workload

REFUSALS = (InputError, Unsupported)

Floats = NDArray[np.float64]


def roomier(cluster: Cluster, factor: float) -> Cluster:
    """``cluster`` with so many times the memory that a process can get."""
    return replace(cluster, gpu=replace(cluster.gpu, usable_memory_bytes=factor * cluster.gpu.usable_memory_bytes))


def weights(loads: Sequence[Workload], cluster: Cluster) -> list[float | str]:
    """Share of the usable memory that weights and their state need on the fullest rank, whatever passes through them, or
    why no layer can be laid out."""
    held = _held(loads, cluster, tensors=False)
    needs = {i: least(each, cluster.gpu) for i, each in held.items() if isinstance(each, Laid)}
    return [needs[i].required / needs[i].usable if i in needs else str(each) for i, each in held.items()]


def _held(loads: Sequence[Workload], cluster: Cluster, *, tensors: bool = True) -> dict[int, Laid | Exception]:
    """What the ranks of each hold, or why nobody can say."""
    found: dict[int, Laid | Exception] = {}
    runs: dict[int, Resolved] = {}
    for i, load in enumerate(loads):
        try:
            runs[i] = settled(load, cluster, published=False)
        except REFUSALS as error:
            found[i] = error
    found |= zip(runs, laid(list(runs.values()), cluster.gpu, tensors=tensors), strict=True)
    return dict(sorted(found.items()))


def needs(loads: Sequence[Workload], cluster: Cluster) -> list[tuple[float, Need] | str]:
    """Bytes of the fullest rank and what that needs (of an order that is made for its times: the least of any order),
    or why there are none."""
    each = _held(loads, cluster)
    held = {i: one for i, one in each.items() if isinstance(one, Laid)}
    found: dict[int, tuple[float, Need] | str] = {i: str(one) for i, one in each.items() if i not in held}
    known = [i for i, run in held.items() if not tuned(run.resolved)]
    found |= zip(known, fullest_of([held[i] for i in known], cluster.gpu), strict=True)
    found |= {i: (0.0, least(run, cluster.gpu)) for i, run in held.items() if i not in found}
    return [found[i] for i in range(len(loads))]


def seconds(loads: Sequence[Workload], cluster: Cluster, settings: Settings) -> Floats:
    """``[loads]``: seconds that a step takes at least, by the prices of its stages in whatever order, exchanges that
    may hide left out; infinite where nothing prices it."""
    runs: dict[int, Resolved] = {}
    for i, load in enumerate(loads):
        with suppress(*REFUSALS):
            runs[i] = settled(load, cluster, published=False)
    priced = zip(runs, staged(list(runs.values()), cluster, efficiency_of(cluster.gpu), settings), strict=True)
    made = {i: (each[0], each[1], each[2]) for i, each in priced if isinstance(each, np.ndarray)}
    found = np.full(len(loads), np.inf)
    if made:
        found[list(made)] = shortest([runs[i] for i in made], list(made.values()))
    return found
