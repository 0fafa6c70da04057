"""Seconds of a step that go to host memory: optimizers that run there, states and activations that wait there.

Optimizer on the host (Megatron-LM core/optimizer/cpu_offloading, DeepSpeed runtime/zero with ``offload_optimizer``):
gradients of its share go down the link, the CPU updates as fast as its memory or the threads of one process allow,
parameters come back; one after the other, or each beside the others. torch's AdamW: 80 bytes of host-memory traffic a
parameter (a pass for each elementary function: decay 8, first moment 12, second 8 + 12, root 8, division 8, epsilon 8,
update 16), 0.64e9 to 0.76e9 parameters/s on one rank, 0.66e9 on each of eight (NVIDIA-NeMo/RL pull request 3628,
Megatron-Bridge pull request 3062). A fused kernel: 30 bytes, with the 16-bit copy (DeepSpeed ops/adam/cpu_adam.py).

States on the host (``offload_optimizer_states``, layer-wise optimizers): the device updates, states come back before it
and leave beside the next forward. Activations (TransformerEngine pytorch/cpu_offload.py, Megatron-LM
fine_grained_activation_offloading): what a layer saves goes down beside the layer after it and comes back beside the
backward of the layer above; the layer waits for what the link cannot carry in that time.
"""

from __future__ import annotations

from projector.frameworks.types import Resolved
from projector.layers.optimizers import by_rule, moments
from projector.layers.step import fraction_on_host
from projector.mechanism import mechanism
from projector.memory.offload import offloaded_bytes, states_on_host
from projector.operators.module import Block
from projector.operators.weights import WeightSet
from projector.parameter import parameter

_PARAMETER = 4.0  # bytes of a parameter that comes back: the fp32 copy of the host
_CHUNKS = parameter(
    8.0,
    kind="assumed",
    source="pieces in which overlapped copies leave their first and last exposed: streams of the two copies",
)


@mechanism(off=0.0)
def optimizer_seconds(resolved: Resolved, part: WeightSet) -> float:
    """Returns the seconds that a rank waits for its host between the last gradient and the next forward."""
    recipe, sharing = resolved.workload.recipe, resolved.execution.data_parallel
    share = sharing.resident("states", resolved.workload, part.dense, part.expert)
    link = min(resolved.host_bandwidth, resolved.host_copies)
    if states_on_host(recipe):
        shards = sharing.shards(resolved.workload)
        states = sum(moments(recipe, rule, updated, *shards) for rule, updated in by_rule(recipe, part))
        return (share * sharing.master_bytes + states) / link
    share *= fraction_on_host(resolved)
    if not share:
        return 0.0
    down = share * (2.0 if sharing.bucketed_to_host else sharing.optimizer_grad_bytes) / link
    up = share * (2.0 if sharing.bucketed_to_host else _PARAMETER) / link
    update = share * max(sharing.host_optimizer_bytes / resolved.host_optimizer, 1.0 / sharing.host_optimizer_rate)
    if sharing.bucketed_to_host:
        return update + up
    if recipe.overlap_cpu_optimizer_d2h_h2d:
        longest = max(down, update, up)
        return longest + (down + update + up - longest) / _CHUNKS
    return down + update + up


def layer_seconds(resolved: Resolved, layer: Block, position: int) -> float:
    """Returns the link's seconds, one way, for what ``layer`` at ``position`` of its stage leaves in host memory."""
    nbytes = offloaded_bytes(resolved.workload.recipe, layer, position)
    return nbytes / min(resolved.host_bandwidth, resolved.host_copies)
