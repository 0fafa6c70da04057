"""A step that is one program: launches cost (almost) nothing, the host reads nothing back."""

from __future__ import annotations

from typing import ClassVar

from projector.dataclass import dataclass
from projector.mechanisms.runtime.base import Runtime
from projector.operators.types import Operator


@dataclass(frozen=True, kw_only=True)
class WholeStep(Runtime):
    """Neither operators nor layers cost host time."""

    whole_step: ClassVar[bool] = True

    @property
    def layer_seconds(self) -> float:
        return 0.0

    def seconds(self, op: Operator) -> float:
        return 0.0
