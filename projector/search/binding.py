"""Finds the resource that holds the best configuration back: the same run where each in turn is a tenth better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from projector.dataclass import dataclass
from projector.errors import InputError, Unsupported
from projector.hardware.scaled import BETTER, SCALES
from projector.hardware.types import Cluster
from projector.kernels.settings import Settings
from projector.many import project_many
from projector.projection import Projection, project
from projector.search.bounds import roomier
from projector.workload.workload import Workload

_MOST = 256  # near misses that are projected, the lowest bounds first


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What a tenth more of ``resource`` is worth. ``gain``: tokens/s/GPU over those of the best, less 1; ``changes``:
    fields of another configuration that is the best then."""

    resource: str
    gain: float
    changes: tuple[tuple[str, Any], ...] = ()


#: Keys of :data:`SCALES` by the words of a report.
_RESOURCES = {
    "compute": "flops",
    "memory bandwidth": "memory_bandwidth",
    "links in a node": "intra_bandwidth",
    "links between nodes": "inter_bandwidth",
}


def bindings(
    best: Projection, workload: Workload, cluster: Cluster, settings: Settings, misses: Sequence[tuple[float, Workload]]
) -> tuple[Binding, ...]:
    """Returns what a tenth more of every resource would gain, the largest first. ``misses``: configurations that just
    do not fit, with their bounds: what more memory would let in."""
    gains = [
        _gain_of(name, SCALES[word](cluster, BETTER), best, workload, settings) for name, word in _RESOURCES.items()
    ]
    host = best.breakdown.get("host_s", 0.0) / best.step_seconds
    gains.append(Binding(resource="host", gain=1 / (1 - host * (1 - 1 / BETTER)) - 1))
    gains.append(_with_more_memory(best, cluster, settings, misses))
    return tuple(sorted((each for each in gains if each is not None), key=lambda each: -each.gain))


def _gain_of(name: str, better: Cluster, best: Projection, workload: Workload, settings: Settings) -> Binding | None:
    try:
        projection = project(workload, better, settings=settings)
    except (InputError, Unsupported):
        return None
    return Binding(resource=name, gain=projection.tgs / best.tgs - 1)


def _with_more_memory(
    best: Projection, cluster: Cluster, settings: Settings, misses: Sequence[tuple[float, Workload]]
) -> Binding | None:
    loads = [load for _, load in sorted(misses, key=lambda each: each[0])[:_MOST]]
    many = project_many(loads, roomier(cluster, BETTER), best=1, settings=settings)
    if not many.ranking or many.tgs[many.ranking[0]] <= best.tgs:
        return Binding(resource="memory capacity", gain=0.0)
    row = many.ranking[0]
    recipe, other = best.resolved.workload.recipe, loads[row].recipe
    names = ("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch_size", "recompute_granularity")
    changes = tuple((n, getattr(other, n)) for n in names if getattr(other, n) != getattr(recipe, n))
    return Binding(resource="memory capacity", gain=float(many.tgs[row] / best.tgs - 1), changes=changes)
