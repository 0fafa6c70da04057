"""What no training code here is known to do with a stack of layers before the model's own."""

from __future__ import annotations

from dataclasses import replace

from projector.layers.optimizers import MUON
from projector.workload.workload import Workload

#: Settings that reach into layers or stages in a way that is known for one stack alone.
_ONE_STACK = (
    *("lora", "rlhf_type", "document_lengths", "cpu_offloading_num_layers", "offload_modules", "recompute_layer_ids"),
    *("fp8_dot_product_attention", "first_last_layers_bf16"),
)
#: Of a language model that sees: its layers are its own.
_SEEN = ("sandwich_norm", "mla")
_ONE_KIND = (
    *("mtp_num_layers", "hyper_connections", "attn_res_block_size", "parallel_residual", "sandwich_norm", "mla"),
    *(
        "altup_num_inputs",
        "laurel_rank",
        "hidden_size_per_layer_input",
        "num_kv_shared_layers",
        "compressed",
        "indexer",
    ),
)


def without_images(workload: Workload) -> Workload:
    """``workload`` without the vision tower that no sample has an image for."""
    if workload.model.vision is None or workload.recipe.images:
        return workload
    recipe = replace(workload.recipe, freeze_vision_model=None, recompute_vision=None)
    return replace(workload, model=replace(workload.model, vision=None), recipe=recipe)


def conflict(workload: Workload) -> str:
    """Why ``workload`` is not covered; empty where it is."""
    model, recipe = workload.model, workload.recipe
    encodes, sees = model.encoder is not None, model.vision is not None
    if recipe.pp > 1 and (encodes or model.position_embedding_type == "relative"):
        # NVIDIA/Megatron-LM@00caa53a pretrain_t5.py raises "Pipeline parallelism is not supported for T5."
        return "pipeline parallelism of an encoder and a decoder: Megatron-LM has none for T5"
    if not (encodes or sees):
        return ""
    what = "an encoder" if encodes else "a vision tower"
    if recipe.cp > 1 or recipe.tp2 > 1:
        return f"a sequence split over ranks (context parallelism, SUMMA) beside {what}"
    if sees and recipe.precision not in ("bf16", "fp16", "fp32"):
        return f"a vision tower in {recipe.precision}: its tokens are no whole blocks of that"
    if (recipe.freeze_language_model or recipe.freeze_vision_model) and recipe.optimizer in MUON:
        return f"{recipe.optimizer} of a model that is frozen in part"
    used = [name for name in _ONE_STACK if getattr(recipe, name, None)]
    used += [name for name in _ONE_KIND if getattr(model, name) and not (sees and name in _SEEN)]
    if (recipe.recompute_num_layers or 1) > 1 and recipe.recompute_method != "block":
        used.append("recompute_num_layers")
    if used or not model.uniform:
        return f"{what} beside {', '.join(used) or 'layers that are not attention and an MLP'}"
    return ""
