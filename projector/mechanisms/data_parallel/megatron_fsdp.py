"""Megatron-FSDP (Megatron-LM core/distributed/fsdp): units as views of one buffer."""

from __future__ import annotations

from typing import ClassVar

from projector.dataclass import dataclass
from projector.mechanisms.data_parallel.sharded import FullySharded


@dataclass(frozen=True, kw_only=True)
class MegatronFSDP(FullySharded):
    """16-bit weights beside the optimizer's fp32 copy, as Megatron-Core's optimizers keep them."""

    name: ClassVar[str] = "megatron_fsdp"
    megatron_core: ClassVar[bool] = True
