"""SimpleFSDP (Zhang et al. 2024, "SimpleFSDP: Simpler Fully Sharded Data Parallel with torch.compile")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from projector.dataclass import dataclass
from projector.mechanisms.data_parallel.fsdp2 import FSDP2
from projector.operators.types import Collective, Operator
from projector.operators.weights import Held
from projector.workload.workload import Workload


@dataclass(frozen=True, kw_only=True)
class SimpleFSDP(FSDP2):
    """Every weight is a collective of its own, in its forward, its backward and for its gradient: buckets are a pass over
    the graph that has to be asked for. It is read where it lands; gradients are cast for the wire. No module is FSDP2's, so
    a pipeline defers nothing (pytorch/torchtitan@f6ebe8402 torchtitan/experiments/graph_trainer/simple_fsdp.py,
    ``ReplicateComputation``)."""

    name: ClassVar[str] = "simple_fsdp"
    wraps_stages: bool = False

    def reduction(self, workload: Workload, part: Held, name: str = "grad") -> tuple[Collective, ...]:
        reduce = super().reduction
        return tuple(op for each in _apart(part) for op in reduce(workload, each, name))

    def gather(self, workload: Workload, part: Held, name: str = "param") -> tuple[Collective, ...]:
        gather = super().gather
        return tuple(op for each in _apart(part) for op in gather(workload, each, name))

    def copied(
        self, unit: str, workload: Workload, elements: float, activation_bytes: float
    ) -> tuple[tuple[Operator, ...], tuple[Operator, ...], tuple[Operator, ...]]:
        *_, cast = super().copied(unit, workload, elements, activation_bytes)
        return (), (), cast


def _apart(part: Held) -> Iterator[Held]:
    return (Held({weight: 1}) for weight, number in part.weights.items() for _ in range(number))
