"""Whether a GPU can run what a recipe asks of it: precision, attention kernel, transport of tokens.

A plan that asks for more is refused. A run that exists did it: then it is a doubt, named among what is assumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from projector.errors import Problem
from projector.hardware.architectures import ATTENTION, PRECISIONS, TRANSPORTS, known, precisions
from projector.hardware.types import Cluster, Gpu
from projector.workload.recipe import Recipe

#: Attention backends that name kernels; the others are products and a softmax, which every GPU has.
_KERNELS = ("flash", "fa2", "fa3", "fa4", "fused")


def problems(recipe: Recipe, gpu: Gpu) -> tuple[Problem, ...]:
    """Everything that ``recipe`` asks of ``gpu`` and that it cannot do, with what it can do."""
    library = (recipe.moe_flex_dispatcher_backend or "deepep") if recipe.moe_token_dispatcher_type == "flex" else None
    return _problems(gpu, recipe.precision, recipe.fp8_recipe, recipe.attention_backend, library)


def beyond(gpu: Gpu, fields: Mapping[str, Any]) -> tuple[Problem, ...]:
    """The same for some fields of a recipe, as an axis of a search or a change sets them."""
    flex = fields.get("moe_token_dispatcher_type") == "flex"
    library = (fields.get("moe_flex_dispatcher_backend") or "deepep") if flex else None
    return _problems(gpu, fields.get("precision"), fields.get("fp8_recipe"), fields.get("attention_backend"), library)


def shown_by(recipe: Recipe, cluster: Cluster) -> tuple[Cluster, tuple[str, ...]]:
    """``cluster`` with a GPU that can do what a run of ``recipe`` did on it, and the doubts about that run."""
    found = problems(recipe, cluster.gpu)
    if not found:
        return cluster, ()
    gpu = replace(cluster.gpu, shown=(*cluster.gpu.shown, *(str(each.found) for each in found)))
    return replace(cluster, gpu=gpu), tuple(map(doubt, found))


def doubt(problem: Problem) -> str:
    """A problem of a run that exists, as a text of what is assumed of it."""
    key = problem.key.removeprefix("recipe.")
    return f"{key}={problem.found} as the run says, though it is beyond {problem.expected}"


def _problems(
    gpu: Gpu, precision: str | None, scaling: str | None, backend: str | None, library: str | None
) -> tuple[Problem, ...]:
    return tuple(each for each in _asked(gpu, precision, scaling, backend, library) if each.found not in gpu.shown)


def _asked(
    gpu: Gpu, precision: str | None, scaling: str | None, backend: str | None, library: str | None
) -> Iterator[Problem]:
    able = precisions(gpu)
    if precision is not None and precision not in able:
        yield _problem("precision", precision, gpu, able)
    if scaling in PRECISIONS and precision == "fp8" and scaling not in able:  # a recipe that names its operands' format
        yield _problem("fp8_recipe", scaling, gpu, able)
    kernels = known(gpu.arch, ATTENTION)
    if kernels is not None and backend in _KERNELS and backend not in kernels:
        yield _problem("attention_backend", backend, gpu, (*kernels, "unfused"))
    transports = known(gpu.arch, TRANSPORTS)
    if transports is not None and library is not None and library not in transports:
        libraries = (f"flex with {name}" for name in transports if name != "nvls")
        yield _problem("moe_token_dispatcher_type", library, gpu, (*libraries, "alltoall", "allgather"))


def _problem(key: str, found: str, gpu: Gpu, able: tuple[str, ...]) -> Problem:
    return Problem("", f"recipe.{key}", found, f"what {gpu.name} ({gpu.arch}) runs: {', '.join(able)}")
