"""How a framework executes a workload, as data: what no user flag says, but the kernel list depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property

from projector.workload.workload import Workload

__all__ = ["Execution", "Framework", "Resolved"]


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Behaviour of one framework (one release range of it) on one GPU vendor's stack.

    Kernel families are keys of the kernel models; ``*_us`` are host microseconds, ``step_ms`` host milliseconds a step.
    """

    gemm_family: str = "cublaslt"
    attention_family: str = "fa2"
    grouped_gemm_family: str = "multi_stream"
    # kernel list
    qkv_fused: bool = True
    gate_up_fused: bool = True
    fused_norm: bool = True
    residual_fused: bool = True
    elementwise_compiled: bool = False
    attention_materialised: bool = False
    wgrad_accumulation: str = "fused"  # fused | separate | none: how a wgrad reaches the gradient buffer
    grad_bytes: float = 4.0  # of the accumulation buffer
    expert_gemm_split: bool = False  # gate and up of experts are two grouped GEMMs
    expert_bias_fused: bool = True  # else biases of experts are added expert by expert and concatenated again
    expert_dispersion: float = 0.0  # coefficient of variation of the loads of experts where routing is not forced
    real_data_dispersion: float = 0.0  # the same on real text, at the start of a training or of a fine-tuning
    static_shapes: bool = False  # XLA: buffers of dropless experts hold the worst case
    capacity_dispatch: str = "permute"  # permute | einsum: how tokens reach the fixed slots of a capacity factor
    quantised_gather: str = "all"  # all | tensorwise: cast recipes whose tensor-parallel gathers carry 8 bits
    loss: str = "unfused"  # default cross-entropy: unfused | native | te | fp32 | linear
    tensor_parallel: str = "manual"  # manual | dtensor: autograd functions around local products, or sharded weights
    eager_ring: bool = False  # partial results of ring attention merged in fp32 by elementary kernels, heads expanded
    replay_pruned: bool = False  # XLA: what only a layer's output needs is not computed again in its backward
    recompute_fewest: bool = False  # where nothing is stated and something must be recomputed: as few layers as fit
    # parameters and data parallelism
    parameter_bytes: float = 2.0
    master_bytes: float = 4.0
    data_parallel: str = "ddp"  # ddp | fsdp1 | fsdp2 | megatron_fsdp | zero | xla_fsdp
    reduce_bytes: float = 4.0  # of one gradient element on the wire
    gather_bytes: float = 2.0
    reduce_every_microbatch: bool = False
    tp_backward_overlap: bool = True  # input gathered again beside dgrad, its gradient summed beside wgrad
    shard_overlap: float = 0.9  # share of the shorter of compute and weight traffic that really runs beside the other
    opaque_overlap: float = 1.0  # what is left of that beside layers whose experts run in custom calls
    shard_across_nodes: bool = False  # ranks of one shard group sit in different nodes (mesh axis over the network)
    # compute units that communication kernels hold while they run beside compute, where the collective model does not say
    overlapped_tp_units: int = (
        8  # under tp_comm_overlap: rings by copy engines, bulk gathers and scatters by 4 to 24 blocks
    )
    # host
    launch_us: float = 7.0
    collective_us: float = 25.0
    sync_us: float = 20.0
    step_ms: float = 5.0
    layer_us: float = 0.0  # module and autograd overhead of a layer beyond its linears, forward; backward the same
    moe_layer_us: float = 0.0  # the same of the expert half of a layer: router, dispatcher, their autograd functions
    linear_us: float = 35.0  # module overhead of one dense linear in forward (half of it per product in backward)
    attention_us: float = 80.0
    grouped_us: float = 100.0  # one grouped linear, and
    expert_us: float = 10.0  # each of its experts where the backend loops over them
    narrow_linear_factor: float = 2.0  # 8- and 4-bit linears: casts, scales, caches
    narrow_expert_factor: float = 4.0
    hook_us: float = 0.0  # what data parallelism hangs on one parameter's gradient: accumulation, bucket counters
    unbound_host_factor: float = 1.0  # host cost of a process that may run far from its GPU, over a bound one
    gc_stall_ms: float = 0.0  # one full collection of Python's oldest generation, and
    gc_steps: float = 0.0  # steps between two of them on one rank, where they are not run on all ranks together
    # an optimizer on the CPU (step/offload.py): host-memory traffic of a parameter, and parameters/s of one process
    host_optimizer_bytes: float = 80.0
    host_optimizer_rate: float = 0.68e9
    whole_step_compiled: bool = False  # XLA, full-iteration graphs: launches cost (almost) nothing
    # pipeline
    idle_stages_compute: bool = False  # one program for all stages: those without input run on zeros
    p2p_synchronous: bool = True
    # memory
    dummy_wgrad: str = "all"  # placeholder wgrads cached per weight shape by fused accumulation: none | dense | all
    dispatch_probs: bool = True  # router probabilities weight the expert activation (else: applied at unpermute)
    loss_compiled: bool = False  # loss "fp32" runs in compiled code: no fp32 copies of the logits are kept
    flat_buffers: bool = True  # weights are copied into one flat buffer on the device when DDP is built
    frozen_weights_quantised: bool = False  # weights below adapters exist in the narrow compute type only
    adapter_dropout: float = 0.0  # of the input of a low-rank adapter; above 0 its mask is kept
    cp_a2a_keeps_output: bool = True  # attention output saved before *and* after the CP all-to-all (TE >= 2.8)
    context_bytes: float = 1.0e9
    reserved_over_allocated: float = 1.05
    ragged_slack: float = 0.0  # more of it where buffers of an all-to-all change size with every micro-batch
    pool_fraction: float = (
        0.0  # share of the device that one pool takes at start (JAX); 0: the allocator grows as needed
    )
    planned_arena: bool = (
        False  # a compiler places every buffer of a step ahead of time: no allocator slack, no grads kept
    )
    kept_gradient_bytes: float = 0.0  # a second, narrow gradient that stays beside the accumulation buffer
    keeps_boundary_tensors: bool = (
        False  # the pipeline engine keeps a stage's received input and its output until backward
    )
    unsharded_pipeline: bool = (
        False  # under a pipeline weights stay gathered, gradients whole until the last micro-batch
    )


@dataclass(frozen=True, kw_only=True)
class Framework:
    """A framework file: names, defaults of recipe fields, execution, FLOP formula, each with its source in the file.

    ``rules`` change defaults or execution when all words of their ``when`` hold, in order. ``uncertain``: recipe fields
    whose default is a guess for published figures (they are reported as assumed when a source leaves them out).
    ``published``: what such figures are taken to have been run with where that differs from the framework's default.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    defaults: Mapping[str, object]
    execution: Mapping[str, object]
    flop_formula: str
    rules: tuple[Mapping[str, Mapping[str, object]], ...] = ()
    uncertain: tuple[str, ...] = ()
    published: Mapping[str, object] = field(default_factory=dict)
    sources: tuple[str, ...] = field(default=())


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A workload with nothing left open: every recipe field stated, the execution chosen, and what was assumed.

    ``node_ranks``, ``pod_ranks``: ranks of the run in one node (NVLink domain) of its cluster, and in one pod where the
    network has a third level. Of each rank: ``host_bandwidth``: bytes/s from the host's memory to the device alone;
    ``host_copies``: its share of host memory when all copy; ``host_optimizer``: what an optimizer there sustains of it.
    """

    workload: Workload
    execution: Execution
    assumed: tuple[str, ...] = ()
    node_ranks: int = 8
    pod_ranks: int | None = None
    host_bandwidth: float = 55e9
    host_copies: float = 61e9
    host_optimizer: float = 32e9

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Made once: caches ask for it thousands of times a projection, and some 200 fields lie behind it."""
        return hash(tuple(getattr(self, each.name) for each in fields(self)))

    def __getstate__(self) -> dict[str, object]:
        """Without the hash, which another process makes otherwise."""
        return {each.name: getattr(self, each.name) for each in fields(self)}
