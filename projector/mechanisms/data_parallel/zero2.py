"""ZeRO-2 (Rajbhandari et al. 2020): nobody keeps whole gradients between micro-batches."""

from __future__ import annotations

from typing import ClassVar

from projector.dataclass import dataclass
from projector.mechanisms.data_parallel.ddp import DDP


@dataclass(frozen=True, kw_only=True)
class Zero2(DDP):
    """States and gradients are divided; gradients are reduce-scattered in every micro-batch."""

    name: ClassVar[str] = "zero2"
    degree: ClassVar[str] = "optim_grads"
    divided: ClassVar[frozenset[str]] = frozenset({"states", "gradients"})
