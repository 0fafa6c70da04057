"""What is taken for granted of a run that exists although its source does not say it; of a planned one, nothing."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

from projector.frameworks import Resolved, resolve
from projector.hardware.types import Gpu
from projector.memory.plan import plan
from projector.settle import scheduling
from projector.workload.recipe import Recipe

_RECOMPUTE = "recompute_granularity"


def settled(resolved: Resolved, gpu: Gpu, host: str, published: bool) -> Resolved:
    """``published``: recompute that nobody stated is none where the run may fit in memory, else enough, because a run that
    exists did fit. What is over by less than the memory model's own tolerance says nothing, and is named. A planned run
    does what its framework does by default, which is no assumption."""
    if not published or f"{_RECOMPUTE}=none" not in resolved.assumed:
        return resolved
    without = plan(resolved, gpu)
    if without.fits:
        return resolved
    if without.status == "too-close":
        over, near = (100 * share for share in (without.required / without.usable - 1, without.tolerance))
        close = f"{_RECOMPUTE}=none ({over:.0f} % too much, within the {near:.0f} % of the memory model)"
        return replace(resolved, assumed=(*_others(resolved), close))
    recipe = replace(resolved.workload.recipe, recompute_granularity="full", recompute_method="uniform")
    if scheduling.conflict(recipe):
        return resolved

    def made(recipe: Recipe, how: str) -> Resolved:
        found = resolve(replace(resolved.workload, recipe=recipe), gpu.vendor, gpu.arch, host, published=True)
        return replace(found, assumed=(*_others(resolved), f"{_RECOMPUTE}=full{how} (does not fit without)"))

    full = made(recipe, "")
    if not plan(full, gpu).fits:
        return resolved
    if not resolved.execution.recompute.fewest:
        return full
    layers = -(-resolved.workload.model.num_layers // (recipe.pp * recipe.vpp))
    blocks = [replace(recipe, recompute_method="block", recompute_num_layers=n) for n in range(1, layers)]
    first = bisect_left(blocks, True, key=lambda block: plan(made(block, ""), gpu).fits)
    return made(blocks[first], f", {first + 1} of {layers} layers a stage") if first < len(blocks) else full


def _others(resolved: Resolved) -> tuple[str, ...]:
    return tuple(item for item in resolved.assumed if not item.startswith(_RECOMPUTE))
