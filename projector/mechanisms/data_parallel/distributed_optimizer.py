"""ZeRO-1 (Rajbhandari et al. 2020): every rank steps its share of the parameters (Megatron-LM core/optimizer/
distrib_optimizer.py; DeepSpeed runtime/zero/stage_1_and_2.py)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from projector.mechanisms.data_parallel.ddp import DDP
from projector.operators.types import Collective
from projector.operators.weights import Held
from projector.size import least
from projector.workload.workload import Workload


@dataclass(frozen=True, kw_only=True)
class DistributedOptimizer(DDP):
    """States are divided; gradients are reduce-scattered after the last micro-batch, parameters gathered before the
    next.

    ``whole_tensors``: shares are of whole tensors, the largest first to the rank that has least. Gradients are summed on
    every rank, and one owner after the other broadcasts what it has stepped (InternLM/InternEvo@c628a8c874
    internlm/solver/optimizer/hybrid_zero_optim.py, ``_partition_param_list``, ``broadcast_params``).
    """

    name: ClassVar[str] = "distributed_optimizer"
    degree: ClassVar[str] = "optim"
    divided: ClassVar[frozenset[str]] = frozenset({"states"})
    whole_tensors: bool = False

    @property
    def scatters(self) -> bool:
        return not self.whole_tensors

    def gather(self, workload: Workload, part: Held, name: str = "param") -> tuple[Collective, ...]:
        ops = super().gather(workload, part, name)
        if not self.whole_tensors:
            return ops
        owners = dict(zip(("dp", "edp"), self.shards(workload), strict=True))
        found: list[Collective] = []
        for op in ops:
            group = op.group.removesuffix("_shard")
            number = least(part.tensors(expert=group == "edp"), owners[group])
            name = op.name.replace("all_gather", "broadcast")
            found += [replace(op, name=name, kind="broadcast", bytes=op.bytes / number, calls=1)] * number
        return tuple(found)
