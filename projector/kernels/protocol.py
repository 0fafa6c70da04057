"""The protocol of kernel models: operators in, seconds out, and which of them were measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from projector.dataclass import dataclass
from projector.operators.types import Attention, Gemm, GroupedGemm, Stream

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
ComputeOp = Gemm | GroupedGemm | Attention | Stream


@dataclass(frozen=True, slots=True)
class Times:
    """Device seconds of each operator, in the order given, and whether a measurement stands behind it. Shapes (n,).

    Device time only: what the host needs to launch a kernel is no part of it.
    """

    seconds: FloatArray
    measured: BoolArray


class KernelModel(Protocol):
    """A model of compute operators' seconds. Pure: the same operators always give the same times."""

    @property
    def name(self) -> str: ...

    def times(self, ops: Sequence[ComputeOp]) -> Times: ...
