"""What the collectives of one run take from the compute beside them: units and memory, and what each operator loses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from projector.collectives.model import Pricing
from projector.frameworks.types import Resolved
from projector.hardware.types import Cluster, Efficiency, Gpu
from projector.kernels.settings import Settings
from projector.kernels.simulate import shared
from projector.memo import Recent, Same
from projector.operators.types import Collective, Operator
from projector.step import contention
from projector.step.stages import Part
from projector.step.timing import kind_of


def crowded(
    resolved: Resolved,
    cluster: Cluster,
    efficiency: Efficiency,
    settings: Settings,
    ops: Iterable[Operator],
    known: Mapping[Operator, float] | None,
    units: int,
) -> dict[Operator, float]:
    """What ``ops`` lose with so many ``units`` taken. ``known``: their seconds, where our own models gave them."""
    device, sustained = settings.device(cluster.gpu, efficiency)

    def priced(gpu: Gpu, those: Sequence[Operator]) -> Sequence[float]:
        times = shared(gpu, sustained, resolved.execution).times(those)  # type: ignore[arg-type]
        return times.seconds.tolist()  # type: ignore[no-any-return]

    return contention.matrix_losses(ops, device, units, priced, known)


def units_taken(resolved: Resolved, price: Pricing, blocks: Iterable[Part]) -> set[int]:
    """Compute units that traffic takes which hides behind operators of these ``blocks``."""
    taken = taken_by(resolved, price)
    every = (op for part in blocks for op in (*part.block.forward, *part.backward))
    return {taken[kind_of(op)].units for op in every if isinstance(op, Collective) and op.hides_behind and taken}


_LONG = 2.0**26  # bytes of a message that opens all channels (an all-gather of one layer's activations or weights)
_LONGER = 2.0**36  # bytes beside which latency is nothing


def taken_by(resolved: Resolved, price: Pricing) -> dict[str, contention.Taken]:
    """What each kind of traffic takes, from the channels and bytes of collectives on its own group, at the rate they reach
    once under way; rings by copy engines (``tp_comm_overlap``) and compiled exchanges as the framework says; nothing
    where one GPU runs alone."""
    if resolved.workload.gpus == 1:
        return {}
    execution = resolved.execution
    beside = execution.tensor_parallel.overlapped_units if resolved.workload.recipe.tp_comm_overlap else None
    return _TAKEN.get((Same(price), beside), lambda: _taken(price, beside))


_TAKEN: Recent[dict[str, contention.Taken]] = Recent(1024)


def _taken(price: Pricing, beside: int | None) -> dict[str, contention.Taken]:
    """``beside``: units of the rings by copy engines; None: those of collectives."""

    def taken(kind: str, group: str, transport: str = "nccl", units: int | None = None) -> contention.Taken:
        op = Collective(name=group, kind=kind, group=group, bytes=_LONG, transport=transport)
        held = price.footprint(op)
        under_way = price.seconds(replace(op, bytes=2.0 * _LONGER)) - price.seconds(replace(op, bytes=_LONGER))
        memory = held.traffic / _LONG * _LONGER / under_way if under_way > 0 else 0.0
        return contention.Taken(round(held.units) if units is None else units, memory)

    return {
        "tp": taken("all_gather", "tp", units=beside),
        "cp": taken("all_gather", "cp"),
        "ep": taken("all_gather", "ep"),
        "dp": taken("all_gather", "dp_shard"),
        "dispatch": taken("all_to_all", "ep", "deepep"),
    }
