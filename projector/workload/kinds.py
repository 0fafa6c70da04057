"""Kinds of change from one run to another: by them the error of a projected ratio is told apart. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from projector.workload.declared import about_of
from projector.workload.recipe import Recipe

#: The kind of every field of a recipe, as it declares it, and of what is no field of one.
_KIND = {
    **{name: told.kind for name, told in about_of(Recipe).items()},
    "gpus": "scale",
    "gpu": "GPU",
    "model": "model",
    "num_layers": "model",
    "framework": "software",
}
#: By kind the keys that belong to it.
KINDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {kind: frozenset(key for key in _KIND if _KIND[key] == kind) for kind in _KIND.values()}
)


def between(one: Mapping[str, object], other: Mapping[str, object]) -> frozenset[str]:
    """The kinds of :data:`KINDS` in which two runs differ; keys of no kind are not looked at, and values compare as text.

    A global batch that grows as the number of GPUs does is no change of the batch (weak scaling).
    """
    changed = {key for key in (*one, *other) if key in _KIND and str(one.get(key, "")) != str(other.get(key, ""))}
    if "gpus" in changed and _for_each_gpu(one) == _for_each_gpu(other):
        changed.discard("global_batch_size")
    return frozenset(_KIND[key] for key in changed)


def _for_each_gpu(run: Mapping[str, object]) -> float | None:
    batch, gpus = run.get("global_batch_size"), run.get("gpus")
    return float(str(batch)) / float(str(gpus)) if batch and gpus else None
