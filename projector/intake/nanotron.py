"""nanotron's configurations (``model``, ``parallelism``, ``tokens``, ``optimizer``) of dense decoders: a code base without
a profile.

Words and defaults: huggingface/nanotron@2411b022a src/nanotron/config/{models,parallelism}_config.py and config.py; biases:
models/{llama,qwen}.py; padding of the vocabulary: helpers.py ``_vocab_size_with_padding``; what is kept in which type:
helpers.py ``init_optimizer_and_grad_accumulator``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from projector.errors import InputError, Problem, Unsupported
from projector.intake import huggingface, known_settings
from projector.intake.asked import names_read
from projector.intake.loaded import Loaded
from projector.intake.values import Reader, section
from projector.workload.model import Model
from projector.workload.optimizers import named
from projector.workload.schema import parse_recipe

_FAMILIES = ("is_llama_config", "is_qwen2_config")
#: Sizes of a Llama, which is also what a Qwen2 of nanotron has where its file says nothing.
_SIZES: Mapping[str, object] = {
    "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": None, "vocab_size": 32000, "max_position_embeddings": 2048, "tie_word_embeddings": False,
}  # fmt: skip
#: Layers that are not those of a Llama.
_OTHER_LAYERS = ("moe_config", "moe_num_experts", "sliding_window_size", "flex_attention_mask")
_SCHEDULES = {"1f1b": "1f1b", "afab": "gpipe"}
_SHARDING = {0: "no_shard", 1: "optim"}
_TYPES = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
#: What may change seconds or bytes and is not modelled, with the value that does not.
_UNMODELLED: Mapping[str, object] = {
    "tp_linear_async_communication": False, "tp_recompute_allgather": True, "_use_doc_masking": False,
    "z_loss_enabled": False, "torch_adam_is_fused": True, "_fused_rms_norm": True, "_fused_rotary_emb": True,
    "_attn_implementation": "flash_attention_2",
}  # fmt: skip
#: What changes neither.
_NEUTRAL = frozenset(
    {*_FAMILIES, *_UNMODELLED, *_OTHER_LAYERS, "expert_parallel_size", "hidden_act", "attention_bias", "init_method",
     "model_config", "pretraining_tp", "use_cache", "bos_token_id", "eos_token_id", "pad_token_id",
     "initializer_range", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_interleaved", "no_rope_layer",
     "rope_seq_len_interpolation_factor", "z_loss_coefficient", "_use_qkv_packed", "log_attn_probs", "clip_grad",
     "weight_decay", "weight_decay_exclude_named_params", "learning_rate_scheduler", "optimizer_factory",
     "train_steps", "val_check_interval", "limit_val_batches", "limit_test_batches", "ddp_bucket_cap_mb"}
)  # fmt: skip

#: Sections that are read, or that change neither.
_SECTIONS = frozenset(
    {"model", "optimizer", "tokens", "parallelism", "general", "checkpoints", "data_stages", "logging", "lighteval",
     "profiler", "s3_upload", "tokenizer", "metrics_logging"}
)  # fmt: skip


def is_nanotron(content: Mapping[str, object]) -> bool:
    """Whether ``content`` states a model, its layout and its batch as nanotron does."""
    return (
        isinstance(section(content, "model").get("model_config"), Mapping)
        and {"dp", "tp", "pp"} <= set(section(content, "parallelism"))
        and "sequence_length" in section(content, "tokens")
    )


def load(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """The workload of a whole configuration. Raises :class:`InputError` with everything that does not fit,
    :class:`Unsupported` for layers that are not a Llama's."""
    parts = [section(content, name) for name in ("model", "optimizer", "tokens", "parallelism")]
    shape = section(parts[0], "model_config")
    settings = {key: value for part in (*parts, shape) for key, value in part.items()}
    _supported(settings, where)
    args = Reader(settings)
    fields = _recipe(args) | _optimizer(args, section(parts[1], "optimizer_factory"))
    known = names_read((_recipe, _architecture)) | {"accumulate_grad_in_fp32", "zero_stage"} | _NEUTRAL
    beside = {key: value for key, value in content.items() if key not in _SECTIONS}
    inside = {key: value for key, value in settings.items() if key not in known}
    left = known_settings.sort({**beside, **inside}, known, where)
    problems = [Problem(where, key, value, expected) for key, value, expected in args.problems]
    recipe, wrong = parse_recipe({key: value for key, value in fields.items() if value is not None}, where, "")
    if recipe is None or problems or left.problems:
        raise InputError([*problems, *left.problems, *wrong])
    if model is None:
        config = {**_architecture(args), "model_type": "llama", "attention_bias": _biased(settings)}
        model = huggingface.from_mapping(config, where, name=Path(where).stem).model
    told = [f"{key}={settings[key]}" for key, off in _UNMODELLED.items() if settings.get(key, off) != off]
    loaded = Loaded(model=model, recipe=recipe, gpus=_gpus(args), framework="unknown", ignored=left.neutral)
    counted = f"gpus={loaded.gpus} (dp · tp · pp · context_parallel_size)"
    return replace(loaded, assumed=(counted,), unmodelled=(*told, *left.unmodelled))


def _supported(settings: Mapping[str, object], where: str) -> None:
    if not any(settings.get(family) is True for family in _FAMILIES):
        kinds = [key for key in settings if key.startswith("is_") and key.endswith("_config")]
        raise Unsupported(
            f"{where}: a nanotron configuration of {', '.join(kinds) or 'no family'}: only {_FAMILIES} are read"
        )
    other = next((key for key in _OTHER_LAYERS if settings.get(key) is not None), None)
    if other is None and settings.get("expert_parallel_size", 1) != 1:
        other = "expert_parallel_size"
    if other:
        raise Unsupported(
            f"{where}: a nanotron configuration with {other}={settings[other]}: not a dense Llama's layers"
        )


def _architecture(args: Reader) -> dict[str, object]:
    """Fields of a Llama's ``config.json``."""
    return {key: value if (given := args.raw(key)) is None else given for key, value in _SIZES.items()}


def _biased(settings: Mapping[str, object]) -> bool:
    """Only nanotron's Qwen2 looks at ``attention_bias``; its Llama has none."""
    return settings.get("is_qwen2_config") is True and settings.get("attention_bias") is True


def _recipe(args: Reader) -> dict[str, object]:
    """Fields of a recipe, but for the optimizer's."""
    tp, each = args.integer("tp"), args.integer("micro_batch_size")
    counts = [each, args.integer("batch_accumulation_per_replica"), args.integer("dp")]
    mode = (args.word("tp_mode") or "ALL_REDUCE").upper()
    if mode not in ("ALL_REDUCE", "REDUCE_SCATTER"):
        args.problems.append(("tp_mode", mode, "ALL_REDUCE or REDUCE_SCATTER"))
    engine = args.word("pp_engine") or "afab"
    if engine not in _SCHEDULES:
        args.problems.append(("pp_engine", engine, " or ".join(_SCHEDULES)))
    full = args.flag("recompute_layer") is True
    pp = args.integer("pp") or 1
    return {
        "micro_batch_size": each,
        "global_batch_size": None if None in counts else math.prod(count or 0 for count in counts),
        "seq_length": args.integer("sequence_length"),
        "tp": tp,
        "pp": pp,
        "cp": args.integer("context_parallel_size"),
        "precision": args.word("dtype") or "bf16",
        "sequence_parallel": mode == "REDUCE_SCATTER" and (tp or 1) > 1,
        "pipeline_schedule": _SCHEDULES.get(engine) if pp > 1 else None,
        "make_vocab_size_divisible_by": args.integer("make_vocab_size_divisible_by") or 1,
        "recompute_granularity": "full" if full else "none",
        **({"recompute_method": "uniform", "recompute_num_layers": 1} if full else {}),
    }


def _optimizer(args: Reader, factory: Mapping[str, object]) -> dict[str, object]:
    """Without sums in fp32 there is no copy of the weights in it either: the optimizer works on the model's own."""
    stage = args.integer("zero_stage")
    if stage not in _SHARDING:
        args.problems.append(("zero_stage", stage, "0 or 1"))
    fields: dict[str, object] = {
        "data_parallel_sharding": _SHARDING.get(stage or 0),
        "optimizer": named(str(factory.get("name") or "adamW")),
    }
    if args.flag("accumulate_grad_in_fp32"):
        return fields | {"main_grads_dtype": "fp32", "grad_reduce_in_bf16": False}
    own = args.word("dtype") or "bf16"
    if own not in ("bf16", "fp16"):
        return fields
    return fields | {"grad_reduce_in_bf16": True, "use_precision_aware_optimizer": True, **dict.fromkeys(_TYPES, own)}


def _gpus(args: Reader) -> int:
    return math.prod(args.integer(name) or 1 for name in ("dp", "tp", "pp", "context_parallel_size"))
