"""What the collectives of one run take from the compute beside them: units and memory, and what each operator loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from projector.collectives.model import Pricing
from projector.frameworks.types import Resolved
from projector.hardware.types import Cluster, Efficiency, Gpu
from projector.kernels.settings import Settings
from projector.kernels.simulate import shared
from projector.layers.types import Collective, Operator
from projector.step import contention

__all__ = ["crowded"]


def crowded(
    resolved: Resolved,
    cluster: Cluster,
    efficiency: Efficiency,
    settings: Settings,
    ops: Sequence[Operator] | Mapping[Operator, float],
    price: Pricing,
) -> contention.Crowding:
    """What communication beside each of ``ops`` (with its seconds, where our own models gave them) costs it; nothing to
    ask where one GPU runs alone."""
    if resolved.workload.gpus == 1:
        return {}
    device, sustained = settings.device(cluster.gpu, efficiency)

    def priced(gpu: Gpu, those: Sequence[Operator]) -> Sequence[float]:
        times = shared(gpu, sustained, resolved.execution).times(those)  # type: ignore[arg-type]
        return [float(t) for t in times.seconds]

    known = ops if isinstance(ops, Mapping) else None
    return contention.crowding(tuple(ops), device, _taken(resolved, price), priced, known)


_LONG = 2.0**26  # bytes of a message that opens all channels (an all-gather of one layer's activations or weights)


def _taken(resolved: Resolved, price: Pricing) -> dict[str, contention.Taken]:
    """What each kind of traffic takes, from the channels and bytes of its collectives on the groups of this run; rings
    by copy engines (``tp_comm_overlap``) and compiled exchanges as the framework says."""
    recipe, execution = resolved.workload.recipe, resolved.execution

    def taken(kind: str, group: str, transport: str = "nccl", units: int | None = None) -> contention.Taken:
        op = Collective(name=group, kind=kind, group=group, bytes=_LONG, transport=transport)
        held, seconds = price.footprint(op), price.seconds(op)
        memory = held.traffic / seconds if seconds > 0 else 0.0
        return contention.Taken(round(held.units) if units is None else units, memory)

    return {
        "collective": taken("all_gather", "world"),
        "tp": taken("all_gather", "tp", units=execution.overlapped_tp_units if recipe.tp_comm_overlap else None),
        "dispatch": taken("all_to_all", "ep", "deepep"),
    }
