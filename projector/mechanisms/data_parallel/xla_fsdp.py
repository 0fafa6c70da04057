"""Weights sharded over a mesh axis that XLA gathers and scatters along (AI-Hypercomputer/maxtext
MaxText/configs/base.yml, ``ici_fsdp_parallelism``, ``dcn_fsdp_parallelism``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from projector.mechanisms.data_parallel.sharded import FullySharded


@dataclass(frozen=True, kw_only=True)
class XlaFSDP(FullySharded):
    """fp32 weights, gathered and reduced in 16 bits."""

    name: ClassVar[str] = "xla_fsdp"
    parameter_bytes: float = 4.0
    master_bytes: float = 0.0
    reduce_bytes: float = 2.0
