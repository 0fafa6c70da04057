"""What offload puts into the memory of one host, and whether the host has it."""

from __future__ import annotations

from projector.errors import Problem
from projector.frameworks.types import Resolved
from projector.hardware import host_link
from projector.hardware.types import Cluster
from projector.memo import but
from projector.memory.plan import RankMemory, plan

#: Fields of a recipe that use the host, and what they are without it.
OFFLOADS = {
    "optimizer_cpu_offload": False,
    "offload_optimizer_states": False,
    "cpu_offloading_num_layers": 0,
    "offload_modules": (),
}
_TB = 1e12


def offloads(resolved: Resolved) -> tuple[str, ...]:
    """The fields by which ``resolved`` uses the memory of its hosts."""
    recipe = resolved.workload.recipe
    return tuple(name for name in OFFLOADS if getattr(recipe, name))


def host_bytes(resolved: Resolved, cluster: Cluster) -> float:
    """Bytes that the fullest host holds at least: of each of its ranks the states and activations that the peak of the
    device has less than it would have without offload. An optimizer on the host has fp32 states, whatever the device's
    would have. Ranks of one stage fill hosts first (tp, cp and dp before pp)."""
    workload = resolved.workload
    wide = {"use_precision_aware_optimizer": False} if workload.recipe.optimizer_cpu_offload else {}
    bare = but(resolved, workload=but(workload, recipe=but(workload.recipe, **OFFLOADS, **wide)))
    kept = [[_movable(rank) for rank in plan(each, cluster.gpu).ranks] for each in (bare, resolved)]
    saved = [max(0.0, here - left) for here, left in zip(*kept, strict=True)]
    ranks = min(workload.gpus, cluster.gpus_per_host)
    replicas = workload.gpus // workload.recipe.pp
    stages = max(1, ranks // replicas)
    heaviest: float = max(sum(saved[i : i + stages]) for i in range(0, len(saved), stages))
    return min(ranks, replicas) * heaviest


def _movable(rank: RankMemory) -> float:
    return sum(rank.components[name] for name in ("master_weights", "moments", "activations"))


def problems(resolved: Resolved, cluster: Cluster) -> list[Problem]:
    """What offload asks of the hosts of ``cluster`` beyond their memory."""
    fields = offloads(resolved)
    if not fields:
        return []
    needed, there = host_bytes(resolved, cluster), host_link.capacity(cluster)
    if needed <= there:
        return []
    expected = (
        f"at most the {there / _TB:.2f} TB of a host ({cluster.gpus_per_host} GPUs; host_memory_gib of a cluster file)"
    )
    return [Problem("", f"recipe.{fields[0]}", f"{needed / _TB:.2f} TB a host at least", expected)]
