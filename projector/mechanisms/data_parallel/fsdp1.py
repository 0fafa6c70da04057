"""PyTorch FSDP1 (Zhao et al. 2023; torch distributed/fsdp/fully_sharded_data_parallel.py): one flat parameter a
unit."""

from __future__ import annotations

from typing import ClassVar

from projector.dataclass import dataclass
from projector.mechanisms.data_parallel.sharded import FullySharded


@dataclass(frozen=True, kw_only=True)
class FSDP1(FullySharded):
    """The root unit, both ends of the model, stays gathered throughout. Units work on views of their buffer."""

    name: ClassVar[str] = "fsdp1"
    parameter_bytes: float = 4.0
    master_bytes: float = 0.0

    def _ends(self, embedding: float, head: float) -> float:
        return head + embedding

    def _beside_layers(self, whole: float, ends: float) -> float:
        return self.gather_bytes * ends
