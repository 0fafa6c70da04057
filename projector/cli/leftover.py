"""Remarks on what a configuration holds beyond what is projected, and on what it leaves open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

_MOST = 12  # settings in one line; all of them are in the JSON document


def some(unmodelled: Sequence[str]) -> tuple[str, ...]:
    """One remark that names what may change time or memory and is not modelled; nothing where there is nothing."""
    if not unmodelled:
        return ()
    more = f" and {len(unmodelled) - _MOST} more" if len(unmodelled) > _MOST else ""
    return (f"{', '.join(unmodelled[:_MOST])}{more}: not in the figures",)


def counted(ignored: Sequence[str]) -> tuple[str, ...]:
    """One remark that counts what cannot change time or memory."""
    if not ignored:
        return ()
    settings = "1 setting" if len(ignored) == 1 else f"{len(ignored)} settings"
    return (f"{settings} that cannot change time or memory (named with --json)",)


def left_open(stated: Recipe, settled: Workload) -> Mapping[str, object]:
    """What decides most and nobody stated, by field: the framework's own defaults."""
    recipe = settled.recipe
    asked = {
        "recompute_granularity": True,
        "data_parallel_sharding": settled.dp > 1,
        "overlap_grad_reduce": settled.dp > 1,
        "sequence_parallel": recipe.tp > 1,
        "tp_comm_overlap": recipe.tp > 1,
        "cp_comm_type": recipe.cp > 1,
        "fp8_recipe": recipe.precision == "fp8",
        "moe_token_dispatcher_type": recipe.ep > 1,
        "moe_grouped_gemm": settled.model.moe,
    }
    return {name: getattr(recipe, name) for name, matters in asked.items() if matters and getattr(stated, name) is None}
