"""Bytes that live only for a moment of a layer's forward or backward, on top of everything saved."""

from __future__ import annotations

from dataclasses import dataclass

from projector.frameworks.types import Resolved
from projector.memory.moe import backward_buffers, forward_buffers
from projector.memory.parameters import StageParameters
from projector.memory.sizes import sizes
from projector.workload.model import LayerKind

__all__ = ["Stale", "Unsharded", "backward_moment", "boundary_tensors", "forward_moment", "stale", "unsharded"]


# DeepSpeed's reduce bucket, elements (deepspeed/runtime/zero/config.py, reduce_bucket_size; published).
_ZERO_BUCKET = 5e8


@dataclass(frozen=True, slots=True)
class Stale:
    """Hidden-state tensors that the schedule loop's variables still hold during a forward and a backward, bytes."""

    forward: float
    backward: float


@dataclass(frozen=True, slots=True)
class Unsharded:
    """Gathered weights (and their gradients) of sharded data parallelism, bytes: during layers, while the loss is
    differentiated, and while the output layer is."""

    forward: float = 0.0
    backward: float = 0.0
    loss: float = 0.0
    projection: float = 0.0


def forward_moment(resolved: Resolved, kind: LayerKind) -> tuple[str, float]:
    """The costliest moment of a layer's forward: (event name, bytes). Dense layers save all they make."""
    return ("moe_combine_forward", forward_buffers(resolved)) if kind.moe else ("layer_forward", 0.0)


def backward_moment(resolved: Resolved, kind: LayerKind) -> tuple[str, float]:
    """The costliest moment of a layer's backward, the incoming gradient excluded: (event name, bytes).

    Dense: the data gradient of fc2; the activation's (its two halves beside the incoming one, the input of fc2 freed);
    or with sequence parallelism the gathered norm output and data gradient of fc1.
    """
    if kind.moe:
        return "moe_backward", backward_buffers(resolved)
    size, model = sizes(resolved), resolved.workload.model
    one = size.element * size.tokens * size.ffn
    width = 2 if model.gated_linear_unit else 1
    gathered = size.gathered_bytes if size.sequence_parallel else 0.0
    moments = {
        "fc2_backward": gathered + one,
        "activation_backward": one + width * one - one,
    }
    if size.sequence_parallel:
        moments["fc1_backward"] = 2 * size.gathered_bytes + size.hidden_bytes - one
    name = max(moments, key=lambda key: moments[key])
    return name, moments[name]


def stale(resolved: Resolved, first: bool, last: bool) -> Stale:
    """Boundary tensors of the 1F1B loop (Megatron-LM core/pipeline_parallel/schedules.py).

    Forward: the previous output gradient where there is a next stage; the previous input and its gradient where there
    is one before. Backward: the current output gradient; the previous input gradient. ``first``/``last``: the chunk
    begins or ends the model. Without a pipeline the gradient that enters the last layer is counted here.
    """
    workload = resolved.workload
    x = sizes(resolved).hidden_bytes
    if workload.recipe.pp == 1:
        return Stale(0.0, x)
    several = workload.num_microbatches > 1
    forward = ((not last) + 2 * (not first)) * x if several else 0.0
    backward = x + (x if several and not first else 0.0)
    return Stale(forward, backward)


def boundary_tensors(resolved: Resolved, first: bool, last: bool) -> float:
    """Bytes that the pipeline engine itself keeps of every micro-batch in flight: the output until its backward, and a
    tensor towards the stage before (DeepSpeed: the received input, of which the stage works on a copy, runtime/pipe/
    engine.py ``pipe_buffers``; torch: a buffer for its gradient, distributed/pipelining/stage.py)."""
    if not resolved.execution.keeps_boundary_tensors or resolved.workload.recipe.pp == 1:
        return 0.0
    return ((not first) + (not last)) * sizes(resolved).hidden_bytes


def unsharded(resolved: Resolved, parameters: StageParameters) -> Unsharded:
    """Units that sharded data parallelism gathers: the current one and the prefetched one; in backward also the unit's
    gradient and, when it is reduced in a wider type, that copy.

    FSDP2: the embedding is released after use, the head stays gathered from its forward to its backward (torchtitan
    models/llama3/infra/parallelize.py); FSDP1 keeps its root unit, both ends, gathered throughout. Others: as FSDP2.
    Under a pipeline torchtitan does not reshard, and gradients add up whole, in the type they are reduced in, until the
    last micro-batch (torch distributed/pipelining/stage.py, ``backward_maybe_with_nosync``).
    """
    recipe, execution = resolved.workload.recipe, resolved.execution
    if recipe.data_parallel_sharding != "optim_grads_params":
        return Unsharded()
    gather, unit = execution.gather_bytes, parameters.unit
    if execution.unsharded_pipeline and recipe.pp > 1:
        whole = (gather + execution.reduce_bytes) * parameters.weights.total
        return Unsharded(whole, whole, whole, whole)
    gradient = 2.0 + (execution.reduce_bytes if execution.reduce_bytes > 2.0 else 0.0)
    ends = parameters.head + (parameters.embedding if execution.data_parallel == "fsdp1" else 0.0)
    kept = gather * ends
    layers = kept if execution.data_parallel == "fsdp1" else 0.0
    if execution.data_parallel == "zero":
        gradient = 2.0
        layers = 2.0 * min(_ZERO_BUCKET, parameters.weights.total)
    return Unsharded(
        forward=2 * gather * unit + layers,
        backward=(2 * gather + gradient) * unit + layers,
        loss=gather * unit + kept,
        projection=gather * unit + kept + gradient * ends,
    )
