"""Checks whether devices and hosts can do what a recipe asks: precision, attention kernel, token transport, memory.

A plan that asks for more is refused. A published run did it: then the problem is a doubt, listed among the assumptions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from projector.errors import Problem
from projector.frameworks.types import Resolved
from projector.hardware import host_link
from projector.hardware.architectures import ATTENTION, PRECISIONS, TRANSPORTS, known, precisions
from projector.hardware.types import Cluster, Gpu
from projector.memo import BoundedCache, IdentityKey, evolve
from projector.memory.plan import plan
from projector.workload.recipe import Recipe

#: Attention backends that name kernels; the others are products and a softmax, which every GPU has.
_KERNELS = ("flash", "fa2", "fa3", "fa4", "fused")


_ASKED = (
    *("precision", "fp8_recipe", "attention_backend"),
    *("moe_token_dispatcher_type", "moe_flex_dispatcher_backend"),
)


def problems(recipe: Recipe, gpu: Gpu) -> tuple[Problem, ...]:
    """Returns everything that ``recipe`` asks of ``gpu`` beyond what the GPU can do, with what it can do."""
    return field_problems(gpu, {name: getattr(recipe, name) for name in _ASKED})


def field_problems(gpu: Gpu, fields: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Returns the same as :func:`problems` for some ``fields`` of a recipe, as a search axis or a change sets them."""
    return tuple(problem for problem in _beyond(gpu, *map(fields.get, _ASKED)) if problem.found not in gpu.shown)


def cluster_as_run(recipe: Recipe, cluster: Cluster) -> tuple[Cluster, tuple[str, ...]]:
    """Returns ``cluster`` with a GPU that can do what a run of ``recipe`` did on it, and the doubts about that run."""
    wrong = problems(recipe, cluster.gpu)
    if not wrong:
        return cluster, ()
    gpu = replace(cluster.gpu, shown=(*cluster.gpu.shown, *(str(problem.found) for problem in wrong)))
    return replace(cluster, gpu=gpu), tuple(map(doubt, wrong))


def doubt(problem: Problem) -> str:
    """Returns a problem of a published run as a text for its list of assumptions."""
    key = problem.key.removeprefix("recipe.")
    return f"{key}={problem.found} as the run says, though it is beyond {problem.expected}"


def _beyond(
    gpu: Gpu, precision: str | None, scaling: str | None, backend: str | None, dispatcher: str | None, flex: str | None
) -> Iterator[Problem]:
    able = precisions(gpu)
    if precision is not None and precision not in able:
        yield _problem("precision", precision, gpu, able)
    if scaling in PRECISIONS and precision == "fp8" and scaling not in able:  # a recipe that names its operands' format
        yield _problem("fp8_recipe", scaling, gpu, able)
    kernels = known(gpu.arch, ATTENTION)
    if kernels is not None and backend in _KERNELS and backend not in kernels:
        yield _problem("attention_backend", backend, gpu, (*kernels, "unfused"))
    transports, library = known(gpu.arch, TRANSPORTS), (flex or "deepep") if dispatcher == "flex" else None
    if transports is not None and library is not None and library not in transports:
        libraries = (f"flex with {name}" for name in transports if name != "nvls")
        yield _problem("moe_token_dispatcher_type", library, gpu, (*libraries, "alltoall", "allgather"))


def _problem(key: str, found: str, gpu: Gpu, able: tuple[str, ...]) -> Problem:
    return Problem("", f"recipe.{key}", found, f"what {gpu.name} ({gpu.arch}) runs: {', '.join(able)}")


#: Fields of a recipe that use the host, with their values without offload.
OFFLOADS = {
    "optimizer_cpu_offload": False,
    "offload_optimizer_states": False,
    "cpu_offloading_num_layers": 0,
    "offload_modules": (),
}
_TB = 1e12
#: Bytes of each rank without offload: a search asks for them for many offloads of one run.
_BYTES_WITHOUT_OFFLOAD: BoundedCache[list[float]] = BoundedCache(1000)


def offloads(resolved: Resolved) -> tuple[str, ...]:
    """Returns the names of the recipe fields by which ``resolved`` uses the memory of its hosts."""
    recipe = resolved.workload.recipe
    return tuple(name for name in OFFLOADS if getattr(recipe, name))


def host_bytes(resolved: Resolved, cluster: Cluster) -> float:
    """Returns the least bytes that the fullest host holds: for each of its ranks the weights, states and activations that
    offload takes from the peak of the device. An optimizer on the host has fp32 states, whatever the device's would
    have. Ranks of one stage fill hosts first (tp, cp and dp before pp)."""
    workload = resolved.workload
    wide = {"use_precision_aware_optimizer": False} if workload.recipe.optimizer_cpu_offload else {}
    bare = evolve(resolved, workload=evolve(workload, recipe=evolve(workload.recipe, **OFFLOADS, **wide)))
    without = _BYTES_WITHOUT_OFFLOAD.get((bare, IdentityKey(cluster.gpu)), lambda: _movable_bytes(bare, cluster.gpu))
    moved = [max(0.0, whole - rest) for whole, rest in zip(without, _movable_bytes(resolved, cluster.gpu), strict=True)]
    ranks = min(workload.gpus, cluster.gpus_per_host)
    replicas = workload.gpus // workload.recipe.pp
    stages = max(1, ranks // replicas)
    fullest: float = max(sum(moved[i : i + stages]) for i in range(0, len(moved), stages))
    return min(ranks, replicas) * fullest


def _movable_bytes(resolved: Resolved, gpu: Gpu) -> list[float]:
    names = ("weights", "gradients", "master_weights", "moments", "activations")
    return [sum(rank.components[name] for name in names) for rank in plan(resolved, gpu).ranks]


def host_problems(resolved: Resolved, cluster: Cluster) -> list[Problem]:
    """Returns the problem of an offload that needs more memory than the hosts of ``cluster`` have, or nothing."""
    fields = offloads(resolved)
    if not fields:
        return []
    needed, limit = host_bytes(resolved, cluster), host_link.capacity(cluster)
    if needed <= limit:
        return []
    expected = (
        f"at most the {limit / _TB:.2f} TB of a host ({cluster.gpus_per_host} GPUs; host_memory_gib of a cluster file)"
    )
    return [Problem("", f"recipe.{fields[0]}", f"{needed / _TB:.2f} TB a host at least", expected)]
