"""Bytes that schedules and sharded data parallelism hold for a moment, on top of everything saved."""

from __future__ import annotations

from projector.dataclass import dataclass
from projector.frameworks.types import Resolved
from projector.layers.local import local
from projector.mechanisms.data_parallel import Gathered
from projector.memory.parameters import StageParameters
from projector.size import where


@dataclass(frozen=True, slots=True)
class Stale:
    """Bytes of hidden-state tensors that the schedule loop's variables still hold during a forward and a backward."""

    forward: float
    backward: float


def stale(resolved: Resolved, first: bool, last: bool) -> Stale:
    """Returns the boundary tensors of the 1F1B loop (Megatron-LM core/pipeline_parallel/schedules.py).

    Forward: the previous output gradient where there is a next stage; the previous input and its gradient where there
    is one before. Backward: the current output gradient; the previous input gradient. ``first``/``last``: the chunk
    begins or ends the model. Without a pipeline the gradient that enters the last layer is counted here.
    """
    workload = resolved.workload
    x = local(resolved).residual_bytes
    if workload.recipe.pp == 1:
        return Stale(0.0, x)
    several = where(lambda number: number > 1, workload.num_microbatches, x, 0.0)
    return Stale(((not last) + 2 * (not first)) * several, x + (not first) * several)


def boundary_tensors(resolved: Resolved, first: bool, last: bool) -> float:
    """Returns the bytes that the pipeline engine itself keeps of every micro-batch in flight: the output until its
    backward, and a tensor towards the stage before (DeepSpeed: the received input, of which the stage works on a copy,
    runtime/pipe/engine.py ``pipe_buffers``; torch: a buffer for its gradient, distributed/pipelining/stage.py)."""
    if not resolved.execution.pipeline.keeps_boundary_tensors or resolved.workload.recipe.pp == 1:
        return 0.0
    return ((not first) + (not last)) * local(resolved).residual_bytes


def unsharded(resolved: Resolved, held: StageParameters) -> Gathered:
    """Returns the bytes of a rank's weights that sharded data parallelism gathers for a while."""
    sharing, recipe = resolved.execution.data_parallel, resolved.workload.recipe
    return sharing.gathered(recipe, held.weights.total, held.unit, held.embedding, held.head)
