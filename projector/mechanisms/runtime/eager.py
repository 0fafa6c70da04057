"""Kernels launched one by one from Python, whole modules or partial graphs of them replayed where the recipe says
so."""

from __future__ import annotations

from typing import ClassVar

from projector.dataclass import dataclass
from projector.mechanisms.runtime.base import Runtime
from projector.mechanisms.runtime.full_iteration_graph import FullIterationGraph
from projector.operators.types import Attention, Collective, Gemm, GroupedGemm, HostWork, Operator, Stream
from projector.parameter import parameter
from projector.size import least
from projector.workload.recipe import Recipe

_NARROW = frozenset({"fp8", "mxfp8", "mxfp4", "nvfp4", "fp4", "int8"})
_BACKWARD_HALF = parameter(
    0.5, kind="derived", source="dgrad and wgrad leave one autograd node: each carries half of the module's cost"
)


@dataclass(frozen=True, kw_only=True)
class Eager(Runtime):
    """PyTorch's dispatcher and autograd. A layer costs max(device, host) between synchronisation points, so these
    microseconds decide small micro-batches and mixture-of-experts layers."""

    name: ClassVar[str] = "eager"

    def run_by(self, recipe: Recipe) -> Runtime:
        if "full_iteration" in (recipe.cuda_graph_scope or ()):
            return FullIterationGraph(**self.carried(FullIterationGraph))
        return self.but({"unbound_host_factor": 1.0}) if recipe.numa_binding else self

    def seconds(self, op: Operator) -> float:
        """Its launches, and what the framework's modules cost around them."""
        if isinstance(op, Collective):
            issued = least(1, op.launches) * self.collective_us
        else:
            issued = op.launches * self.launch_us + self._module(op)
        return issued * self.unbound_host_factor * 1e-6

    def _module(self, op: Operator) -> float:
        """Microseconds beyond launches."""
        if isinstance(op, HostWork):
            return op.microseconds
        if isinstance(op, Attention):
            return self.attention_us
        if isinstance(op, Stream | Collective):
            return 0.0
        share = 1.0 if op.layout == "TN" else _BACKWARD_HALF
        narrow = op.dtype in _NARROW
        if isinstance(op, Gemm):
            return self.linear_us * (self.narrow_linear_factor if narrow else 1.0) * share
        return self._grouped(op, share) * (self.narrow_expert_factor if narrow else 1.0)

    def _grouped(self, op: GroupedGemm, share: float) -> float:
        """One module call, and work per expert where the backend loops over experts."""
        per_expert = 0.0 if op.backend == "fused" else self.expert_us * op.groups
        return self.grouped_us * share + per_expert
