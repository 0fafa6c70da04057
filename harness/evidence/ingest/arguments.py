"""Framework arguments and launch exports → fields of ``Recipe``: one table, one reader per kind of value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields as dataclass_fields

from harness.evidence.ingest.parallel import SIZES
from harness.evidence.ingest.record import Record, boolean, integer, number
from projector.workload.checks import CHOICES
from projector.workload.recipe import Recipe

_KINDS = {field.name: str(field.type) for field in dataclass_fields(Recipe)}
# Fields decided elsewhere: sizes by parallel.py, words by recipe_words.py.
_DECIDED = {*SIZES, "etp", "precision", "lora"}
_FREE = sorted(set(_KINDS) - _DECIDED)

# Other names of a field, with blanks between them; the first that is stated counts.
_ALIASES: Mapping[str, str] = {
    "main_grads_dtype": "megatron_fsdp_main_grads_dtype",
    "main_params_dtype": "megatron_fsdp_main_params_dtype",
    "sequence_parallel": "sequence_parallel_flag config_exports.SEQ_PARALLEL config_exports.SP",
    "moe_expert_capacity_factor": "moe_capacity_factor",
    "overlap_moe_expert_parallel_comm": "ep_a2a_overlap a2a_overlap moe_a2a_overlap",
    "moe_router_force_load_balancing": "moe_force_load_balance",
    "defer_embedding_wgrad_compute": "defer_embedding_wgrad config_exports.DEFER_EMBEDDING_WGRAD_COMPUTE",
    "pipeline_model_parallel_layout": "pipeline_layout",
    "cross_entropy_fusion": "cross_entropy_fusion_impl loss_fusion",
    "fp8_param_gather": "fp8_params fp8_all_gather config_exports.FP8_PARAM_GATHER config_exports.FP8_PARAMS",
    "optimizer_cpu_offload": "cpu_offload_optimizer",
    "make_vocab_size_divisible_by": "vocab_divisible_by",
    "torch_compile": "compile",
    "tp_comm_overlap": "async_tp enable_async_tensor_parallel config_exports.TP_COMM_OVERLAP"
    " config_exports.MC_TP_OVERLAP_AG",
    "apply_rope_fusion": "rope_fusion config_exports.FUSED_QKV_ROPE config_exports.FUSED_SINGLE_QKV_ROPE",
    "overlap_grad_reduce": "config_exports.OVERLAP_GRAD_REDUCE",
    "overlap_param_gather": "config_exports.OVERLAP_PARAM_GATHER",
    "account_for_embedding_in_pipeline_split": "config_exports.ASYM_PP_EMBED",
    "account_for_loss_in_pipeline_split": "config_exports.ASYM_PP_LOSS",
    "fp8_recipe": "config_exports.FP8_RECIPE",
    "device_memory_fraction": "xla_mem_fraction",
    "activation_func_fp8_input_store": "config_exports.FP8_ACT config_exports.FP8_ACTIVATION",
    "fp8_dot_product_attention": "config_exports.FP8_DPA config_exports.NVTE_FP8_DPA_BWD",
}
# Names that say the opposite of a field.
_OPPOSITES: Mapping[str, str] = {
    "grad_reduce_in_bf16": "grad_reduce_in_fp32 accumulate_allreduce_grads_in_fp32",
    "check_for_nan_in_loss_and_grad": "no_check_for_nan_in_loss_and_grad",
    "create_attention_mask_in_dataloader": "no_create_attention_mask_in_dataloader",
}
# Names whose value is a type of numbers: fp32 means that the field is false.
_TYPES: Mapping[str, str] = {
    "grad_reduce_in_bf16": "grad_reduce_dtype grad_accum_dtype megatron_fsdp_grad_comm_dtype",
}


def arguments(record: Record) -> dict[str, object]:
    """Recipe fields that the record states as framework arguments. A value that no field can hold is a doubt."""
    found: dict[str, object] = {}
    for name in _FREE:
        _take(record, name, name, "same", found)
    for kind, names in (("not", _OPPOSITES), ("fp32", _TYPES), ("same", _ALIASES)):
        for field, keys in names.items():
            for key in keys.split():
                _take(record, key, field, kind, found)
    if found.get("recompute_granularity") == "none" or found.get("recompute_num_layers") == 0:
        found.pop("recompute_num_layers", None)
    for special in (
        *(_cuda_graph, _precision_aware, _weights, _states, _dispatcher, _scaling, _overlap_flags, _offload),
        *(_liger, _fused, _checkpointing),
    ):
        for field, value in special(record).items():
            found.setdefault(field, value)
    return found


def _weights(record: Record) -> dict[str, object]:
    """MaxText's ``weight_dtype``: parameters, gradients and moments are all held in it, without a master copy."""
    if str(record.get("other.weight_dtype") or "").lower() not in ("bf16", "bfloat16"):
        return {}
    held = ("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
    return {"use_precision_aware_optimizer": True, **dict.fromkeys(held, "bf16")}


def _states(record: Record) -> dict[str, object]:
    """Moments of Adam in 16 bits, as a word of their own or beside the optimizer's name."""
    words = record.text("other.optimizer_states", "other.adam_states", "other.optimizer_state_dtype")
    named = words or str(record.values.get("other.optimizer") or record.values.get("other.args.optimizer") or "")
    if not re.search(r"bf16|bfloat16", named.lower()):
        return {}
    return {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}


_LIGER = (
    (r"cross[-_ ]?entropy", "cross_entropy_fusion", "liger"),
    (r"rope|rotary", "apply_rope_fusion", True),
    (r"glu", "bias_activation_fusion", True),
)


def _liger(record: Record) -> dict[str, object]:
    """Kernels of linkedin/Liger-Kernel: all of a patched model, or those that are named."""
    stated = record.get("other.liger_kernel", "other.liger", "other.use_liger_kernel")
    if stated is None or boolean(stated) is False:
        return {}
    text = str(stated).lower()
    return {field: value for word, field, value in _LIGER if boolean(stated) or re.search(word, text)}


def _fused(record: Record) -> dict[str, object]:
    """Fused kernels by their words, as training code of Dao-AILab/flash-attention lists them; its cross-entropy leaves
    the gradient in the logits (flash_attn/losses/cross_entropy.py, ``inplace_backward``)."""
    text = record.text("other.fused").lower()
    words = (
        (r"fused cross[-_ ]?entropy", "cross_entropy_fusion", "te"),
        (r"fused mlp", "bias_activation_fusion", True),
    )
    return {field: value for word, field, value in words if re.search(word, text)}


def _checkpointing(record: Record) -> dict[str, object]:
    """The switch of PyTorch trainers (NeMo AutoModel, Hugging Face): every block again, or none."""
    stated = record.get("other.activation_checkpointing", "other.gradient_checkpointing")
    flag = boolean(stated)
    return {} if flag is None else {"recompute_granularity": "full" if flag else "none"}


def _take(record: Record, key: str, field: str, kind: str, found: dict[str, object]) -> None:
    if field in found or (key == "moe_grouped_gemm") or key in ("cuda_graph_scope", "optimizer", "recompute_modules"):
        return
    value = record.setting(key)
    if value is None:
        return
    typed = _typed(field, kind, value)
    if typed is None:
        record.doubts.append(f"{key}={value!r} is no value of {field}")
        return
    if field != "sync_free_stage" or typed != 0:  # 0 is how Primus spells "off"
        found[field] = typed
    record.map(field, typed, key)


def _typed(field: str, kind: str, value: object) -> object | None:
    if kind == "fp32":
        return {"fp32": False, "float32": False, "bf16": True}.get(str(value).lower())
    kind_of = _KINDS[field]
    if "bool" in kind_of:
        flag = boolean(value)
        if flag is None and field == "torch_compile":
            flag = re.match(r"no|off", str(value).lower()) is None  # what is compiled: model and loss, whole graph
        return None if flag is None else (not flag if kind == "not" else flag)
    if kind_of.startswith("int"):
        return integer(value)
    if kind_of.startswith("float"):
        return number(value)
    if "tuple[int" in kind_of or "tuple[str" in kind_of:
        return tuple(value) if isinstance(value, (list, tuple)) else tuple(str(value).split())
    return _word(field, value)


def _word(field: str, value: object) -> object | None:
    """A text field; where the words are fixed, one of them."""
    if field not in CHOICES:
        return str(value)
    if boolean(value) is False and field == "cross_entropy_fusion":
        return "unfused"
    text = str(value).lower()
    synonyms = {"float32": "fp32", "bfloat16": "bf16", "allreduce": "allgather"}
    text = synonyms.get(text, text)
    if field == "cross_entropy_fusion" and text.startswith("te"):
        return "te"
    if field == "attention_backend":
        return _attention(text)
    return text if text in CHOICES[field] else None


def _attention(text: str) -> object | None:
    for pattern, name in (
        (r"unfused|fused_attn=0|dot_product$|^off|eager|math", "unfused"),
        (r"flash|sdpa", "flash"),
        (r"fused|cudnn|dotproductattention", "fused"),
        (r"^auto$", "auto"),
        (r"local", "local"),
    ):
        if re.search(pattern, text):
            return name
    return None


def _cuda_graph(record: Record) -> dict[str, object]:
    """``cuda_graph_impl`` and ``cuda_graph_scope`` (Megatron) or MLPerf's exports → captured modules; () means off."""
    impl = record.text("other.cuda_graph_impl", "other.args.cuda_graph_impl", "cuda_graph_impl")
    stated = record.get("other.cuda_graph_scope", "other.args.cuda_graph_scope", "cuda_graph_scope")
    words = stated if isinstance(stated, (list, tuple)) else str(stated or "").split()
    scope = tuple(str(item) for item in words)
    if impl == "none":
        return {"cuda_graph_scope": ()}
    if impl == "full_iteration":
        return {"cuda_graph_scope": ("full_iteration",)}
    if impl or scope:
        return {"cuda_graph_scope": tuple(item for item in scope if item in CHOICES["cuda_graph_scope"]) or ("full",)}
    return _mlperf_graph(record)


def _mlperf_graph(record: Record) -> dict[str, object]:
    full = boolean(record.get("other.config_exports.FULL_CUDA_GRAPH"))
    layer = boolean(record.get("other.config_exports.LAYER_CUDA_GRAPH", "other.config_exports.MCORE_CUDA_GRAPH"))
    if full:
        return {"cuda_graph_scope": ("full_iteration",)}
    if layer:
        return {"cuda_graph_scope": ("full",)}
    return {"cuda_graph_scope": ()} if layer is False or full is False else {}


def _precision_aware(record: Record) -> dict[str, object]:
    value = record.get("other.precision_aware_optimizer")
    if value is None:
        return {}
    if "bf16" in str(value):
        bf16 = dict.fromkeys(("main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"), "bf16")
        return {"use_precision_aware_optimizer": True, **bf16}
    return {"use_precision_aware_optimizer": bool(boolean(value))}


def _dispatcher(record: Record) -> dict[str, object]:
    """DeepEP, HybridEP and MegaMoE under Megatron's names: the flex dispatcher and its backend."""
    text = record.text(
        "other.dispatcher", "other.moe_dispatcher", "other.ep_backend", "other.kernels", "other.moe"
    ).lower()
    deepep = record.get("deepep")
    if boolean(record.get("other.mega_moe")) or "megamoe" in text:
        return {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "mega_moe"}
    if "hybridep" in text:
        return {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
    if boolean(deepep) or (deepep is None and "deepep" in text):
        return {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
    if found := re.match(r"alltoall|allgather|flex", text):
        return {"moe_token_dispatcher_type": found[0]}
    plain = boolean(deepep) is False or "all-to-all" in text
    return {"moe_token_dispatcher_type": "alltoall"} if plain else {}


def _scaling(record: Record) -> dict[str, object]:
    """MLPerf's launch files state an amax history only for delayed scaling."""
    history = record.get("other.config_exports.FP8_AMAX_HISTORY", "other.config_exports.FP8_AMAX_ALGO")
    return {"fp8_recipe": "delayed"} if history is not None else {}


def _overlap_flags(record: Record) -> dict[str, object]:
    overlap = record.text("other.tp_overlap", "other.tp_comm")
    return {"tp_comm_overlap": False} if overlap.lower() == "none" else {}


def _offload(record: Record) -> dict[str, object]:
    graph = boolean(record.get("other.enable_cuda_graph", "other.cuda_graphs"))
    return {} if graph is None else {"cuda_graph_scope": ("full",) if graph else ()}
