"""XLA: the step is compiled as a whole and runs as one executable."""

from __future__ import annotations

from typing import ClassVar

from projector.dataclass import dataclass
from projector.mechanisms.runtime.whole_step import WholeStep


@dataclass(frozen=True, kw_only=True)
class XLA(WholeStep):
    """JAX dispatches one executable a step (``jax.jit`` of the training step)."""

    name: ClassVar[str] = "xla"
