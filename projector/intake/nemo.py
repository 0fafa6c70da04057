"""NeMo 1's configurations of GPT-like models (``trainer:``, ``model:``), as Megatron-LM's arguments.

Names and defaults: NVIDIA/NeMo v1.23 examples/nlp/language_modeling/conf/megatron_gpt_config.yaml, nemo/collections/nlp/
models/language_modeling/megatron_gpt_model.py and megatron_base_model.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from projector.errors import InputError, Problem, Unsupported
from projector.intake import known_settings
from projector.intake.aliases import renamings
from projector.intake.assemble import Origin, assemble
from projector.intake.loaded import Loaded
from projector.intake.shell.lists import word_set
from projector.intake.values import Reader, section
from projector.workload.model import Model
from projector.workload.optimizers import named

#: Arguments of the model that both call alike.
_MODEL = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels"),
    *("max_position_embeddings", "position_embedding_type", "moe_router_topk", "moe_ffn_hidden_size"),
    *("cross_entropy_loss_fusion", "apply_rope_fusion", "defer_embedding_wgrad_compute"),
    "moe_pad_expert_input_to_capacity",
)
#: What NeMo calls Megatron-LM's arguments; the rest of ``model`` is left to NeMo.
_NAMES: Mapping[str, str] = {
    **renamings("nemo"),
    "num_moe_experts": "num_experts",
    "override_vocab_size": "vocab_size",
    "bias": "add_bias_linear",
    "qkv_bias": "add_qkv_bias",
    "fp8_params": "fp8_param_gather",
    **{name: name for name in _MODEL},
}
#: A configuration is whole: what it leaves out or sets to null is this.
_DEFAULTS: Mapping[str, object] = {
    "recompute_granularity": "none",
    "sequence_parallel": False,
    "tp_comm_overlap": False,
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
}
_NEEDED = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "micro_batch_size",
    "global_batch_size",
    "encoder_seq_length",
)
_NORMS = {"layernorm": "LayerNorm", "layernorm1p": "LayerNorm", "rmsnorm": "RMSNorm"}
_GATED = ("swiglu", "geglu", "reglu", "fast-swiglu", "fast-geglu", "fast-reglu")
_SHARDED = ("distributed_fused_adam", "mcore_distributed_optim")
#: Keys of models that are no causal language model alone.
_OTHERS = (
    *("encoder", "decoder", "bert_binary_head", "mm_cfg", "unet_config", "vision", "encoder_num_layers", "retro"),
    *(
        "patch_dim",
        "img_h",
        "vision_pretraining_type",
        "decoder_seq_length",
        "first_stage_config",
        "preconditioning_type",
    ),
)
#: Sections of ``trainer`` in which NeMo-Aligner counts the steps of what it trains (examples/nlp/gpt/conf).
_ALIGNED = ("rm", "ppo", "dpo", "kto", "spin", "reinforce", "rs", "grpo", "self_rewarding")
#: Fields of the model that are read by their own rules.
_READ = word_set(
    """
    normalization activation bias share_embeddings_and_output_weights num_query_groups fp8 fp8_e4m3 megatron_amp_O2 tokenizer
    optim name mcore_customization_config peft fsdp transformer_block_type cpu_offloading cpu_offloading_num_layers
    """
)
#: Of ``optim``: what is read, and what changes neither seconds nor bytes.
_OPTIM = word_set(
    """
    name overlap_grad_sync overlap_param_sync grad_sync_dtype betas lr sched weight_decay eps contiguous_grad_buffer
    contiguous_param_buffer bucket_cap_mb ddp_bucket_size
    """
)
#: Of the model: what changes neither, beside what trainers of this kind have in common.
_NEUTRAL = word_set(
    """
    apex_transformer_log_level data grad_allreduce_chunk_size_mb grad_div_ar_fusion gradient_as_bucket_view mcore_gpt
    native_amp_init_scale native_amp_growth_interval post_process pre_process transformer_engine attention_type
    normalize_attention_scores rotary_percentage use_scaled_init_method use_flash_attention fp8_hybrid fp8_wgrad gc_interval
    reduce_amax scale_positional_embedding precision nsys_profile do_layer_norm_weight_decay dist_ckpt_format
    dist_ckpt_load_on_device dist_ckpt_parallel_save dist_ckpt_parallel_load dist_ckpt_load_strictness
    dist_ckpt_torch_dist_multiproc dist_ckpt_assume_constant_structure megatron_timer_kwargs resume_from_checkpoint
    get_attention_mask_from_fusion bias_dropout_add_fusion fsdp_sharding_strategy fsdp_grad_reduce_dtype
    fsdp_sharded_checkpoint fsdp_use_orig_params wgrad_deferral_limit restore_from_path save_nemo_on_validation_end
    """
)
_RECURRENT = re.compile(r"griffin|recurrentgemma|mamba|jamba|rwkv|hyena|evo2", re.IGNORECASE)
_BESIDE = ("parallel_attention", "new_decoder_architecture")
_REFERENCE = re.compile(r"\$\{\s*(?:(?:training\.)?model)?\.?([a-z_]+)\s*\}")
_PRODUCT = re.compile(r"\$\{\s*multiply\s*:\s*(\d+)\s*,\s*(\d+)\s*\}")


def is_nemo(content: Mapping[str, object]) -> bool:
    """Whether ``trainer`` and ``model`` are those of NeMo's GPT configurations."""
    model, trainer = content.get("model"), content.get("trainer")
    marks = {"micro_batch_size", "tensor_model_parallel_size", "encoder_seq_length", "mcore_gpt"}
    if "distributed_strategy" in content:  # neuronx-distributed-training, whose parallel sizes stand there
        return False
    return isinstance(model, Mapping) and isinstance(trainer, Mapping) and bool(marks & set(model))


def load(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """The workload of a whole configuration. Raises :class:`InputError` that names what other files would say,
    :class:`Unsupported` for models and trainings that are not those of a causal language model."""
    trainer, given = section(content, "trainer"), section(content, "model")
    _supported(given, where)
    _trains(content, where)
    stated = {str(key): _resolved(value, given) for key, value in given.items()}
    missing = [] if model else [key for key in _NEEDED if stated.get(key) is None]
    missing = [key for key in _NEEDED[3:] if stated.get(key) is None] if model else missing
    source = "a file of its defaults" if content.get("defaults") else "the recipe or the checkpoint that it builds on"
    problems = [Problem(where, f"model.{key}", "nothing", f"it stated: {source} is not read") for key in missing]
    args = {_NAMES[key]: value for key, value in stated.items() if key in _NAMES}
    problems += [
        Problem(where, f"model.{key}", value, "a value: this reference is not resolved")
        for key, value in stated.items()
        if key in _NAMES and isinstance(value, str) and "${" in value
    ]
    if problems:
        raise InputError(problems)
    if stated.get("cpu_offloading") is True:
        args["cpu_offloading_num_layers"] = stated.get("cpu_offloading_num_layers")
    args |= _precision(trainer, stated) | _optimizer(section(stated, "optim"))
    if model is None:
        args |= _architecture(stated, where) | _tokenizer(section(stated, "tokenizer"))
    gpus = _gpus(trainer)
    if gpus:
        args["world_size"] = gpus
    args = {**_DEFAULTS, **{key: value for key, value in args.items() if value is not None}}
    if isinstance(args.get("position_embedding_type"), str):
        args["position_embedding_type"] = str(args["position_embedding_type"]).lower()
    name = str(section(content, "run").get("name") or Path(where).stem)
    origin = Origin(where=where, name=model.name if model else name, base=model, framework="nemo")
    loaded = assemble(args, origin)
    told = () if stated.get("megatron_amp_O2") is not False else ("megatron_amp_O2=False: weights in fp32",)
    left = _left(stated, where)
    if left.problems:
        raise InputError(left.problems)
    return replace(
        loaded, ignored=(*loaded.ignored, *left.neutral), unmodelled=(*loaded.unmodelled, *told, *left.unmodelled)
    )


def _left(stated: Mapping[str, object], where: str) -> known_settings.Unread:
    """What stands in ``model`` and its ``optim`` beside what is read."""
    known = frozenset({*_NAMES, *_READ, *_OTHERS, *_BESIDE, *_NEUTRAL})
    optim = {f"optim.{key}": value for key, value in section(stated, "optim").items() if key not in _OPTIM}
    rest = {key: value for key, value in stated.items() if key not in known}
    left = {key: value for key, value in {**rest, **optim}.items() if value != 0}
    return known_settings.sort(left, known, where)


def _supported(model: Mapping[str, object], where: str) -> None:
    other = next((key for key in _OTHERS if model.get(key) is not None), None)
    if other is not None:
        raise Unsupported(f"{where}: a NeMo configuration with model.{other}: not a causal language model alone")
    custom = {**model, **section(model, "mcore_customization_config")}
    if any(custom.get(key) is True for key in _BESIDE) or "falcon" in str(model.get("name") or ""):
        raise Unsupported(f"{where}: a NeMo configuration with attention and MLP side by side on one norm")
    if section(model, "peft").get("peft_scheme"):
        raise Unsupported(f"{where}: a NeMo configuration with model.peft: adapters of another checkpoint")
    if model.get("fsdp") is True:
        raise Unsupported(f"{where}: a NeMo configuration with model.fsdp: torch's first FSDP over Megatron's layers")
    if str(model.get("transformer_block_type") or "pre_ln") != "pre_ln":
        raise Unsupported(f"{where}: model.transformer_block_type {model.get('transformer_block_type')}")


def _trains(content: Mapping[str, object], where: str) -> None:
    """Raises :class:`Unsupported` where the file aligns or converts a model, or names one of another kind."""
    trainer, run = section(content, "trainer"), section(content, "run")
    if aligned := [key for key in _ALIGNED if isinstance(trainer.get(key), Mapping)]:
        raise Unsupported(f"{where}: a NeMo configuration with trainer.{aligned[0]}: preference training")
    if "convert_name" in run or "huggingface_ckpt_path" in run:
        raise Unsupported(
            f"{where}: a NeMo configuration with run.convert_name: a checkpoint converted, nothing trained"
        )
    model = section(content, "model")
    names = (
        run.get("name"),
        content.get("name"),
        model.get("restore_from_path"),
        section(model, "tokenizer").get("type"),
    )
    if named_so := next((str(name) for name in names if _RECURRENT.search(str(name or ""))), None):
        raise Unsupported(f"{where}: a NeMo configuration of {named_so}: layers that this file does not describe")


def _resolved(value: object, model: Mapping[str, object], depth: int = 3) -> object:
    """References to other fields of the model, and products with them."""
    if not isinstance(value, str) or "${" not in value or not depth:
        return value
    alone = _REFERENCE.fullmatch(value.strip())
    if alone:
        return _resolved(model.get(alone[1]), model, depth - 1)
    product = _PRODUCT.fullmatch(_REFERENCE.sub(lambda found: str(model.get(found[1])), value.strip()))
    return math.prod(int(factor) for factor in product.groups()) if product else value


def _architecture(model: Mapping[str, object], where: str) -> dict[str, object]:
    norm = str(model.get("normalization") or "layernorm").lower()
    if norm not in _NORMS:
        raise InputError([Problem(where, "model.normalization", norm, f"one of {', '.join(_NORMS)}")])
    shared, bias = model.get("share_embeddings_and_output_weights"), model.get("bias")
    return {
        "normalization": _NORMS[norm],
        "swiglu": str(model.get("activation") or "gelu").lower() in _GATED,
        "untie_embeddings_and_output_weights": shared is False,
        "add_bias_linear": bias is not False,
        "group_query_attention": model.get("num_query_groups") is not None,
    }


def _tokenizer(tokenizer: Mapping[str, object]) -> dict[str, object]:
    library, kind = str(tokenizer.get("library") or "megatron"), tokenizer.get("type")
    if library == "huggingface":
        return {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": kind}
    if library == "sentencepiece":
        return {"tokenizer_type": "GPTSentencePieceTokenizer", "tokenizer_model": tokenizer.get("model")}
    return {
        "tokenizer_type": kind,
        "vocab_file": tokenizer.get("vocab_file"),
        "merge_file": tokenizer.get("merge_file"),
    }


def _precision(trainer: Mapping[str, object], model: Mapping[str, object]) -> dict[str, object]:
    word = str(trainer.get("precision") or "32")
    args: dict[str, object] = {"bf16": "bf16" in word, "fp16": word.startswith("16")}
    if model.get("fp8") is True:
        args |= {"fp8": "e4m3" if model.get("fp8_e4m3") is True else "hybrid", "fp8_recipe": "delayed"}
    return args


def _optimizer(optim: Mapping[str, object]) -> dict[str, object]:
    reader = Reader(optim)
    name = str(optim.get("name") or "")
    sharded = name in _SHARDED
    return {
        "optimizer": named(name) if name else "adam",
        "use_distributed_optimizer": sharded,
        "overlap_grad_reduce": reader.flag("overlap_grad_sync") if sharded else None,
        "overlap_param_gather": reader.flag("overlap_param_sync") if sharded else None,
        "grad_reduce_in_bf16": True if reader.word("grad_sync_dtype") in ("bf16", "bfloat16") else None,
    }


def _gpus(trainer: Mapping[str, object]) -> int | None:
    nodes, each = trainer.get("num_nodes"), trainer.get("devices")
    return nodes * each if type(nodes) is int and type(each) is int and nodes > 0 and each > 0 else None
