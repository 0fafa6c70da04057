"""One CUDA or HIP graph of the whole iteration (Megatron-LM core/full_cuda_graph.py)."""

from __future__ import annotations

from typing import ClassVar

from projector.dataclass import dataclass
from projector.mechanisms.runtime.whole_step import WholeStep


@dataclass(frozen=True, kw_only=True)
class FullIterationGraph(WholeStep):
    """What ``cuda_graph_scope: [full_iteration]`` makes of an eager runtime."""

    name: ClassVar[str] = "full_iteration_graph"
