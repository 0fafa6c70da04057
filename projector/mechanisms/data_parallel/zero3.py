"""DeepSpeed ZeRO-3 (deepspeed/runtime/zero/stage3.py)."""

from __future__ import annotations

from typing import ClassVar

from projector.dataclass import dataclass
from projector.mechanisms.data_parallel.sharded import FullySharded
from projector.parameter import parameter
from projector.size import least

_BUCKET = parameter(
    5e8, unit="elements", kind="published", source="deepspeed/runtime/zero/config.py, reduce_bucket_size"
)


@dataclass(frozen=True, kw_only=True)
class Zero3(FullySharded):
    """Gradients leave in buckets of 16 bits, beside the backward."""

    name: ClassVar[str] = "zero3"
    bucketed_to_host: ClassVar[bool] = True

    @property
    def _unit_gradient(self) -> float:
        return 2.0

    def _beside_layers(self, whole: float, ends: float) -> float:
        return 2.0 * least(_BUCKET, whole)
