"""Runtimes: microseconds of the host for what it issues, and the cost of a step beside its operators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from projector.dataclass import dataclass
from projector.mechanisms.strategy import Strategy
from projector.operators.types import Attention, Collective, Gemm, HostWork, Operator, Stream
from projector.parameter import parameter
from projector.size import least
from projector.workload.recipe import Recipe

_LAUNCH = parameter(
    7.0, unit="us", kind="published", source="a launch through an eager framework takes 5–10 µs", low=5.0, high=10.0
)
_LINEAR = parameter(
    35.0,
    unit="us",
    kind="published",
    source="te.Linear: about 2.7 times torch.nn.Linear, 13.5 µs on x86, 33–37 µs on Grace (NVIDIA/TransformerEngine issue "
    "2053)",
)
_ATTENTION = parameter(80.0, unit="us", kind="published", source="fused attention: 60–120 µs", low=60.0, high=120.0)
_NARROW_LINEAR = parameter(
    2.0, kind="published", source="at least twice for FP8 (NVIDIA/TransformerEngine issue 761)", low=2.0
)
_NARROW_EXPERT = parameter(
    4.0,
    kind="assumed",
    source="estimate: quantisers, caches and saved operands of each expert are Python objects; their casts are one call "
    "(ROCm/TransformerEngine@01f95ae5 pytorch/module/grouped_linear.py)",
)
_ESTIMATED = parameter(
    {"collective_us": 25.0, "sync_us": 20.0, "grouped_us": 100.0, "expert_us": 10.0},
    unit="us",
    kind="assumed",
    source="estimate from launches and modules of an eager framework",
)
_STEP_MS = parameter(5.0, unit="ms", kind="assumed", source="estimate: Python of a step outside its micro-batches")


@dataclass(frozen=True, kw_only=True)
class Runtime(Strategy, ABC):
    """The cost of the host. ``*_us``: host microseconds of a launch, the issue of a collective, a synchronisation; of a
    module beyond its launches: a layer beyond its linears (``layer_us``) and the Python modules and autograd functions
    around them (``modules_us``, which graphs replay), in forward and again in backward; a dense linear in forward (half
    of it per product in backward), attention, a grouped linear, and each of its experts where the backend loops over
    them. ``narrow_*``: factors of 8- and 4-bit linears and experts: casts, scales, caches.

    ``step_ms``: host milliseconds a step. ``unbound_host_factor``: host cost of a process that may run far from its
    GPU, over a bound one. ``gc_stall_ms``: one full collection of Python's oldest generation; ``gc_steps``: steps
    between two of them on one rank, where they are not run on all ranks together.
    """

    whole_step: ClassVar[bool] = False
    """Whether the step is one program: launches cost (almost) nothing, the host reads nothing back."""
    launch_us: float = _LAUNCH
    collective_us: float = _ESTIMATED["collective_us"]
    sync_us: float = _ESTIMATED["sync_us"]
    layer_us: float = 0.0
    modules_us: float = 0.0
    linear_us: float = _LINEAR
    attention_us: float = _ATTENTION
    grouped_us: float = _ESTIMATED["grouped_us"]
    expert_us: float = _ESTIMATED["expert_us"]
    narrow_linear_factor: float = _NARROW_LINEAR
    narrow_expert_factor: float = _NARROW_EXPERT
    unbound_host_factor: float = 1.0
    step_ms: float = _STEP_MS
    gc_stall_ms: float = 0.0
    gc_steps: float = 0.0

    def configured_by(self, recipe: Recipe) -> Runtime:
        """Returns this runtime under a recipe's binding and graphs."""
        return self

    @property
    def layer_seconds(self) -> float:
        """Returns the host seconds of a layer beyond its operators, in forward or in backward."""
        return self.layer_us * 1e-6

    @abstractmethod
    def seconds(self, op: Operator) -> float:
        """Returns the host seconds to issue ``op``."""

    def loop_seconds(self, ranks: int, aligned: bool) -> float:
        """Returns the host seconds of a step outside all operators: logging, barriers, the loop itself, and the
        expected loss of ``ranks`` ranks that wait for each other to Python's garbage collection.

        Each rank collects its oldest generation once in ``gc_steps`` steps and stalls for ``gc_stall_ms``; unaligned,
        the step waits whenever any of them does: stall · (1 − (1 − 1/steps)^ranks). ``aligned`` (Megatron's
        ``manual_gc``): all at once, so one stall in that many steps.
        """
        stalls = 1.0 - (1.0 - 1.0 / self.gc_steps) ** (1 if aligned else ranks) if self.gc_steps else 0.0
        return (self.step_ms + self.gc_stall_ms * stalls) * 1e-3


_NARROW = frozenset({"fp8", "mxfp8", "mxfp4", "nvfp4", "fp4", "int8"})
_BACKWARD_HALF = parameter(
    0.5, kind="derived", source="dgrad and wgrad leave one autograd node: each carries half of the module's cost"
)


@dataclass(frozen=True, kw_only=True)
class Eager(Runtime):
    """PyTorch's dispatcher and autograd. A layer costs max(device, host) between synchronisation points, so these
    microseconds decide small micro-batches and mixture-of-experts layers."""

    name: ClassVar[str] = "eager"

    def configured_by(self, recipe: Recipe) -> Runtime:
        if "full_iteration" in (recipe.cuda_graph_scope or ()):
            return FullIterationGraph(**self.carried(FullIterationGraph))
        return self.evolve({"unbound_host_factor": 1.0}) if recipe.numa_binding else self

    def seconds(self, op: Operator) -> float:
        """Returns the host seconds of an operator's launches and of the framework's modules around them."""
        if isinstance(op, Collective):
            issued = least(1, op.launches) * self.collective_us
        else:
            issued = op.launches * self.launch_us + self._module(op)
        return issued * self.unbound_host_factor * 1e-6

    def _module(self, op: Operator) -> float:
        """Returns the microseconds beyond launches."""
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
        per_expert = 0.0 if op.backend == "fused" else self.expert_us * op.groups
        return (self.grouped_us * share + per_expert) * (self.narrow_expert_factor if narrow else 1.0)


@dataclass(frozen=True, kw_only=True)
class WholeStep(Runtime):
    """Neither operators nor layers cost host time."""

    whole_step: ClassVar[bool] = True

    @property
    def layer_seconds(self) -> float:
        return 0.0

    def seconds(self, op: Operator) -> float:
        return 0.0


# One CUDA or HIP graph of the whole iteration (Megatron-LM core/full_cuda_graph.py).
@dataclass(frozen=True, kw_only=True)
class FullIterationGraph(WholeStep):
    """An eager runtime under ``cuda_graph_scope: [full_iteration]``."""

    name: ClassVar[str] = "full_iteration_graph"


# XLA: the step is compiled as a whole and runs as one executable.
@dataclass(frozen=True, kw_only=True)
class XLA(WholeStep):
    """JAX dispatches one executable a step (``jax.jit`` of the training step)."""

    name: ClassVar[str] = "xla"
