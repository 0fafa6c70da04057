"""What configurations need of memory, and seconds that none of them beats: from weights alone, from the order of a
schedule, from the prices of its stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from projector.frameworks.types import Resolved
from projector.hardware.efficiency import of as efficiency_of
from projector.hardware.types import Cluster
from projector.kernels.settings import Settings
from projector.memory.columns import Laid, laid
from projector.memory.peaks import Fullest, fullest_of, least
from projector.memory.verdict import Need
from projector.settle.workload import settled_each
from projector.step.columns import staged
from projector.step.limit import shortest
from projector.workload.workload import Workload

Floats = NDArray[np.float64]


def roomier(cluster: Cluster, factor: float) -> Cluster:
    """``cluster`` with so many times the memory that a process can get."""
    return replace(cluster, gpu=replace(cluster.gpu, usable_memory_bytes=factor * cluster.gpu.usable_memory_bytes))


def weights(loads: Sequence[Workload], cluster: Cluster) -> list[float | str]:
    """Share of the usable memory that weights and their state need on the fullest rank, whatever passes through them, or
    why no layer can be laid out."""
    held = laid(settled_each(loads, cluster), cluster.gpu, tensors=False)
    needs = [least(each, cluster.gpu) if isinstance(each, Laid) else str(each) for each in held]
    return [each if isinstance(each, str) else each.required / each.usable for each in needs]


def needs(loads: Sequence[Workload], cluster: Cluster) -> list[tuple[float, Need] | str]:
    """Bytes of the fullest rank and what that needs (of an order that is made for its times: the least of any order),
    or why there are none."""
    found = fullest_of(laid(settled_each(loads, cluster), cluster.gpu), cluster.gpu)
    return [(each.allocated, each.need) if isinstance(each, Fullest) else str(each) for each in found]


def seconds(loads: Sequence[Workload], cluster: Cluster, settings: Settings) -> Floats:
    """``[loads]``: seconds that a step takes at least, by the prices of its stages in whatever order, exchanges that
    may hide left out; infinite where nothing prices it."""
    runs = {i: run for i, run in enumerate(settled_each(loads, cluster)) if isinstance(run, Resolved)}
    priced = zip(runs, staged(list(runs.values()), cluster, efficiency_of(cluster.gpu), settings), strict=True)
    made = {i: (each[0], each[1], each[2]) for i, each in priced if isinstance(each, np.ndarray)}
    found = np.full(len(loads), np.inf)
    if made:
        found[list(made)] = shortest([runs[i] for i in made], list(made.values()))
    return found
