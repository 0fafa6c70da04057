"""Shrinks a workload to the devices at hand: what one rank of it computes, as a workload of its own.

Pipeline stages are left out first (layers are timed by themselves), then expert parallelism goes (a rank's experts and
the tokens that reach them stay), then tensor parallelism (a rank's heads and widths stay), then the context split (a
rank's tokens stay). What goes is communication over more ranks than are here: it is priced, not timed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from projector.dataclass import dataclass
from projector.workload.model import MoE
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

WIDE = ("bf16", "fp16", "fp32")
#: Fields of a recipe that the run of its ranks keeps.
_KEPT = (
    *("micro_batch_size", "gradient_accumulation_fusion", "moe_grouped_gemm", "apply_rope_fusion"),
    *("bias_activation_fusion", "cross_entropy_fusion", "torch_compile"),
)
#: Parts of an architecture that the layers which are timed lack: priced.
OFF: Mapping[str, Any] = {
    **dict.fromkeys(("attention_sinks", "quick_geglu"), False),
    **dict.fromkeys(("activation_func_clamp_value", "activation_situ_beta")),
    **dict.fromkeys(("rotary_magnitude_scaled", "sandwich_norm", "embedding_layernorm"), False),
}


@dataclass(frozen=True)
class Shrunk:
    """The ``workload`` that ``ranks`` processes time together, in groups of ``tp`` and ``ep``; ``notes``: changes."""

    workload: Workload
    ranks: int
    tp: int
    ep: int
    notes: tuple[str, ...]


def shrink_to(workload: Workload, devices: int, narrow: bool = False) -> Shrunk:
    """Returns what ``devices`` devices can time together: as many ranks as the workload has, TP kept before EP.
    ``narrow``: 8-bit linears run as such."""
    recipe = workload.recipe
    tp = _largest_divisor(recipe.tp, min(devices, workload.gpus))
    ranks = min(devices, workload.gpus) // tp * tp
    etp = tp if recipe.etp > 1 else 1
    ep = _largest_divisor(recipe.ep, ranks // etp)
    ranks = ranks // (etp * ep) * etp * ep
    shrunk, notes = _shrunk(workload, tp, ep, ranks, narrow)
    return Shrunk(shrunk, ranks, tp, ep, tuple(notes))


def _largest_divisor(size: int, most: int) -> int:
    """Returns the largest divisor of ``size`` that is at most ``most``."""
    return next(part for part in range(min(size, max(most, 1)), 0, -1) if size % part == 0)


def _shrunk(workload: Workload, tp: int, ep: int, ranks: int, narrow: bool) -> tuple[Workload, list[str]]:
    model, recipe = workload.model, workload.recipe
    narrow = narrow and recipe.precision not in WIDE
    notes: list[str] = []
    moe = None if model.moe is None else _experts(model.moe, recipe, tp, ep, notes)
    split = ("num_attention_heads", "num_query_groups", "ffn_hidden_size")
    sizes: dict[str, Any] = {name: _held(getattr(model, name), recipe.tp, tp) for name in split}
    shrunk_model = replace(
        model, **sizes, vocab_size=_held(workload.padded_vocab_size, recipe.tp, tp), moe=moe, mtp_num_layers=0
    )
    if tp < recipe.tp and recipe.sequence_parallel:
        notes.append("norms and residuals run on all tokens, not on the sequence-parallel shard: the rest is taken off")
    if recipe.cp > 1:
        notes.append("attention runs on the rank's own tokens: the blocks that it exchanges are priced")
    if recipe.precision not in WIDE and not narrow:
        notes.append(f"linears run in bf16: what {recipe.precision} changes is priced")
    if recipe.recompute_granularity == "selective":
        notes.append("what selective recompute replays is priced")
    if model.mtp_num_layers:
        notes.append("a depth of token prediction is a layer and a head: what it has beside them is priced")
    notes += [f"{name} is priced" for name, off in OFF.items() if getattr(model, name) != off]
    balanced = True if ep < recipe.ep else None  # what a router says of experts that are elsewhere means nothing
    shrunk_recipe = _recipe_of_ranks(recipe, tp, ep, ranks, balanced, narrow)
    return replace(workload, model=shrunk_model, recipe=shrunk_recipe, gpus=ranks), notes


def _held(size: int, ranks: int, kept: int = 1) -> int:
    """Returns what ``kept`` of ``ranks`` ranks hold of ``size``."""
    return max(1, -(-size // ranks)) * kept if kept < ranks else size


def _experts(moe: MoE, recipe: Recipe, tp: int, ep: int, notes: list[str]) -> MoE:
    experts = _held(moe.num_experts, recipe.ep, ep)
    if experts < moe.moe_router_topk:
        notes.append(f"{experts} experts take turns for the {moe.moe_router_topk} that a token reaches: as many rows")
    width, shared = moe.moe_ffn_hidden_size, moe.moe_shared_expert_intermediate_size
    return replace(
        moe,
        num_experts=experts,
        moe_ffn_hidden_size=_held(width, recipe.etp, tp if recipe.etp > 1 else 1),
        moe_shared_expert_intermediate_size=_held(shared, recipe.tp, tp) if shared else 0,
        moe_router_num_groups=None,
        moe_router_group_topk=None,
    )


def _recipe_of_ranks(recipe: Recipe, tp: int, ep: int, ranks: int, balanced: bool | None, narrow: bool) -> Recipe:
    """Returns the recipe with the groups that are kept: one micro-batch a rank, a rank's tokens."""
    return Recipe(
        global_batch_size=recipe.micro_batch_size * (ranks // tp),
        seq_length=_held(recipe.seq_length, recipe.cp),
        tp=tp,
        ep=ep,
        etp=tp if recipe.etp > 1 else 1,
        sequence_parallel=recipe.sequence_parallel if tp > 1 else None,
        precision=recipe.precision if narrow or recipe.precision in WIDE else "bf16",
        fp8_recipe=recipe.fp8_recipe if narrow else None,
        recompute_granularity="none",
        data_parallel_sharding="no_shard",
        moe_router_force_load_balancing=recipe.moe_router_force_load_balancing if balanced is None else balanced,
        make_vocab_size_divisible_by=1,
        **{name: getattr(recipe, name) for name in _KEPT},
    )
