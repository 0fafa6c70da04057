"""What recompute keeps of a layer, and what it brings back for a moment in the backward.

Sources: Megatron-LM core/transformer/{transformer_config,transformer_layer,transformer_block}.py,
core/tensor_parallel/random.py (output-discarding checkpoints).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from projector.frameworks.types import Resolved
from projector.memory.activations import saved
from projector.memory.sizes import sizes
from projector.workload.model import LayerKind
from projector.workload.recipe import Recipe

__all__ = ["Kept", "checkpoint_groups", "named", "selective"]

_ATTENTION_CORE = ("attention_lse", "attention_scores")
_EXPERTS = (
    "router",
    "row_map",
    "expert_input",
    "expert_fc1_out",
    "expert_activation_out",
    "expert_out",
    "shared_fc1_out",
    "shared_activation_out",
)
_UP_PROJECTION = ("q_latent_norm", "kv_latent", "kv_latent_norm", "q", "k", "v")


@dataclass(frozen=True, slots=True)
class Kept:
    """``saved``: bytes of a layer that stay until its backward; ``returned``: bytes that its backward recreates;
    ``reruns_experts``: the recomputed part dispatches tokens again."""

    saved: float
    returned: float
    reruns_experts: bool = False


def selective(resolved: Resolved, kind: LayerKind) -> Kept:
    """A layer outside full recompute: everything saved but the tensors of ``recompute_modules``."""
    tensors = saved(resolved, kind)
    everything = sum(tensors.values())
    recipe = resolved.workload.recipe
    if recipe.recompute_granularity != "selective":
        return Kept(everything, 0.0)
    modules = recipe.recompute_modules or ("core_attn",)
    if "op_sac" in modules:
        kept = _every_other_product(resolved, tensors)
        return Kept(kept, everything - kept)
    gone: set[str] = set()
    for module in modules:
        gone.update(_dropped(module, resolved, kind))
    lost = sum(tensors.get(name, 0.0) for name in gone)
    return Kept(everything - lost + _checkpointed(resolved, modules), lost, kind.moe and "moe" in modules)


def named(resolved: Resolved, kind: LayerKind) -> float:
    """Bytes of the outputs that ``recompute_saved`` keeps of a layer under full recompute."""
    size, tensors = sizes(resolved), saved(resolved, kind)
    experts = size.element * size.received * size.hidden if kind.moe else 0.0
    found = {
        "qkv_proj": sum(tensors.get(name, 0.0) for name in ("q", "k", "v")),
        "out_proj": size.hidden_bytes,
        "mlpwi": sum(tensors.get(name, 0.0) for name in ("fc1_out", "expert_fc1_out", "shared_fc1_out")),
        "mlpwo": experts + (0.0 if kind.moe and "shared_fc1_out" not in tensors else size.hidden_bytes),
        "context": sum(tensors.get(name, 0.0) for name in ("attention_out", "attention_lse")),
    }
    return sum(found[name] for name in resolved.workload.recipe.recompute_saved or ())


def _every_other_product(resolved: Resolved, tensors: Mapping[str, float]) -> float:
    """torchtitan's operator-selective checkpoint: the layer's input, attention's output and every second matrix product
    (of wq, wk, wv, wo, w1, w3, w2: the first, third, fifth and seventh) stay
    (pytorch/torchtitan@b5bcd76c torchtitan/distributed/activation_checkpoint.py)."""
    size = sizes(resolved)
    names = ("attention_norm_in", "attention_out", "attention_lse", "q", "v")
    kept = sum(tensors.get(name, 0.0) for name in names)
    width = 2 if resolved.workload.model.gated_linear_unit else 1
    products = tensors.get("fc1_out", 0.0) + tensors.get("expert_fc1_out", 0.0) + tensors.get("shared_fc1_out", 0.0)
    return kept + products / width + size.hidden_bytes


def _dropped(module: str, resolved: Resolved, kind: LayerKind) -> tuple[str, ...]:
    mla = resolved.workload.model.mla is not None
    if module == "core_attn":
        return _ATTENTION_CORE
    if module == "mla_up_proj" and mla:
        return _UP_PROJECTION
    if module == "layernorm":
        # only norms that are modules of their own; the others live inside the linear that follows them
        return (("attention_norm_out",) if mla else ()) + (("mlp_norm_out",) if kind.moe else ())
    if kind.moe:
        by_module = {
            "moe": _EXPERTS,
            "moe_act": ("expert_activation_out",),
            "shared_experts": ("shared_fc1_out", "shared_activation_out"),
        }
        return by_module.get(module, ())
    return ("mlp_norm_out", "fc1_out", "activation_out", "gate_activation") if module == "mlp" else ()


def _checkpointed(resolved: Resolved, modules: tuple[str, ...]) -> float:
    """The combined latent that the MLA up projections are recomputed from."""
    model = resolved.workload.model
    if "mla_up_proj" not in modules or model.mla is None:
        return 0.0
    size = sizes(resolved)
    return size.element * size.shard * (model.mla.kv_lora_rank + model.mla.qk_pos_emb_head_dim)


def checkpoint_groups(recipe: Recipe, layers: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Positions (within the chunk) that full recompute replays together; positions in no group are saved as they are.

    ``uniform``: the whole chunk in groups of ``recompute_num_layers``; ``block``: its first ``recompute_num_layers``
    layers, one by one; ``recompute_layer_ids``: those layers of the model, one by one.
    """
    if recipe.recompute_granularity != "full":
        return ()
    if recipe.recompute_layer_ids is not None:
        chosen = set(recipe.recompute_layer_ids)
        return tuple((i,) for i, layer in enumerate(layers) if layer in chosen)
    number = recipe.recompute_num_layers or 1
    if recipe.recompute_method == "block":
        return tuple((i,) for i in range(min(number, len(layers))))
    return tuple(tuple(range(i, min(i + number, len(layers)))) for i in range(0, len(layers), number))
