"""Host seconds to issue an operator: launches, and what the framework's modules cost around them.

A layer costs max(device, host) between synchronisation points, so these microseconds decide small micro-batches and
mixture-of-experts layers. Figures per stack are data in ``projector/frameworks``; published ranges: a launch through
an eager framework 5–10 µs, ``te.Linear`` about 2.7 times ``torch.nn.Linear`` (13.5 µs on x86, 33–37 µs on Grace;
NVIDIA/TransformerEngine issue 2053), at least twice that for FP8 (issue 761), fused attention 60–120 µs.
"""

from __future__ import annotations

from projector.layers.types import Attention, Collective, Gemm, GroupedGemm, HostWork, Operator, Stream
from projector.mechanisms import Execution
from projector.parameter import parameter

__all__ = ["collection_seconds", "host_seconds"]

_NARROW = frozenset({"fp8", "mxfp8", "mxfp4", "nvfp4", "fp4", "int8"})
_BACKWARD_HALF = parameter(
    0.5, kind="derived", source="dgrad and wgrad leave one autograd node: each carries half of the module's cost"
)


def host_seconds(op: Operator, execution: Execution) -> float:
    """Seconds of host time that one operator costs in eager execution (0 for a step compiled as a whole)."""
    if execution.runtime.whole_step:
        return 0.0
    return _microseconds(op, execution) * execution.runtime.unbound_host_factor * 1e-6


def _microseconds(op: Operator, x: Execution) -> float:
    launches = op.launches * x.runtime.launch_us
    if isinstance(op, Collective):
        return min(1, op.launches) * x.runtime.collective_us
    if isinstance(op, HostWork):
        return op.microseconds + launches
    if isinstance(op, Stream):
        return launches
    if isinstance(op, Attention):
        return launches + x.runtime.attention_us
    share = 1.0 if op.layout == "TN" else _BACKWARD_HALF
    hook = x.data_parallel.hook_us if op.layout == "NT" else 0.0
    if isinstance(op, Gemm):
        module = x.runtime.linear_us * (x.runtime.narrow_linear_factor if op.dtype in _NARROW else 1.0)
        return launches + module * share + hook
    weights = 1 if op.backend == "fused" else op.groups
    return launches + _grouped(op, x, share) + hook * weights


def collection_seconds(execution: Execution, ranks: int, aligned: bool) -> float:
    """Expected seconds of a step lost to Python's garbage collection on ``ranks`` ranks that wait for each other.

    Each rank collects its oldest generation once in ``gc_steps`` steps and stalls for ``gc_stall_ms``; unaligned, the
    step waits whenever any of them does: stall · (1 − (1 − 1/steps)^ranks). ``aligned`` (Megatron's ``manual_gc``):
    all at once, so one stall in that many steps.
    """
    if not execution.runtime.gc_steps:
        return 0.0
    miss = 1.0 - 1.0 / execution.runtime.gc_steps
    return execution.runtime.gc_stall_ms * 1e-3 * (1.0 - miss ** (1 if aligned else ranks))


def _grouped(op: GroupedGemm, x: Execution, share: float) -> float:
    """Microseconds of a grouped linear: one module call, and work per expert where the backend loops over experts."""
    per_expert = 0.0 if op.backend == "fused" else x.runtime.expert_us * op.groups
    factor = x.runtime.narrow_expert_factor if op.dtype in _NARROW else 1.0
    return (x.runtime.grouped_us * share + per_expert) * factor
