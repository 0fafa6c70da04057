"""ZeRO-1 (Rajbhandari et al. 2020): every rank steps its share of the parameters (Megatron-LM core/optimizer/
distrib_optimizer.py; DeepSpeed runtime/zero/stage_1_and_2.py)."""

from __future__ import annotations

from typing import ClassVar

from projector.dataclass import dataclass
from projector.mechanisms.data_parallel.ddp import DDP


@dataclass(frozen=True, kw_only=True)
class DistributedOptimizer(DDP):
    """States are divided; gradients are reduce-scattered after the last micro-batch, parameters gathered before the
    next."""

    name: ClassVar[str] = "distributed_optimizer"
    degree: ClassVar[str] = "optim"
    divided: ClassVar[frozenset[str]] = frozenset({"states"})
