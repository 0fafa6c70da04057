"""What the engine that runs a pipeline does beside its schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from projector.mechanisms.strategy import Strategy

__all__ = ["PipelineEngine"]


@dataclass(frozen=True, kw_only=True)
class PipelineEngine(Strategy):
    """``p2p_synchronous``: a stage waits for its messages. ``idle_stages_compute``: one program for all stages; those
    without input run on zeros. ``keeps_boundary_tensors``: a stage's received input and its output stay until its
    backward."""

    name: ClassVar[str] = "stages"
    p2p_synchronous: bool = True
    idle_stages_compute: bool = False
    keeps_boundary_tensors: bool = False
