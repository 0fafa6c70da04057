"""torchtune's configurations of full and low-rank fine-tuning on packed samples (``model._component_``, ``tokenizer``,
``dataset``).

Words and defaults: meta-pytorch/torchtune@bd2a0fc7 recipes/{full,lora}_finetune_distributed.py; what a packed sample is:
torchtune/datasets/_packed.py; builders: torchtune/models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from projector.errors import InputError, Problem, Unsupported
from projector.intake import known_settings
from projector.intake.loaded import Loaded
from projector.intake.shell.lists import word_set
from projector.intake.values import Reader, section
from projector.workload import zoo
from projector.workload.model import Model
from projector.workload.optimizers import named
from projector.workload.schema import parse_recipe

#: Sections and settings of other recipes: distillation, rewards, quantisation-aware training.
_OTHERS = word_set(
    """
    teacher_model kd_loss reward_and_value_model policy_model ppo_epochs reward_functions grpo_samples ref_checkpointer
    quantizer enable_kv_cache orchestration
    """
)
_ADAPTED = {"q_proj": "linear_qkv", "k_proj": "linear_qkv", "v_proj": "linear_qkv", "output_proj": "linear_proj"}
#: What ``model`` may say: the builder, and its adapters.
_SHAPE = word_set(
    """
    _component_ lora_attn_modules apply_lora_to_mlp apply_lora_to_output lora_rank lora_alpha lora_dropout use_dora
    quantize_base
    """
)
_WITHOUT_WINDOW = ("mistral", "phi3")  # the builders of these leave it out
_LOSSES = {"LinearCrossEntropyLoss": "linear", "CrossEntropyLoss": "none", "CEWithChunkedOutputLoss": "none"}
#: What may change seconds or bytes and is not modelled, with the value that does not.
_UNMODELLED: Mapping[str, object] = {
    "optimizer_in_bwd": False,
    "custom_sharded_layers": None,
    "memory_efficient_fsdp_wrap": False,
}
_TYPES = ("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
#: What changes neither.
_NEUTRAL = word_set(
    """
    output_dir tokenizer dataset dataset_val batch_size_val seed shuffle model checkpointer resume_from_checkpoint epochs
    optimizer loss max_steps_per_epoch device metric_logger log_every_n_steps log_peak_memory_stats log_level profiler
    lr_scheduler run_val_every_n_steps save_adapter_weights_only tensor_parallel_plan collate_fn low_cpu_ram
    save_every_n_epochs save_every_n_steps enable_async_checkpointing resize_token_embeddings clip_grad_norm
    cudnn_deterministic_mode context_parallel_rotate_method data_parallel_shard_dim activation_offloading_use_streams
    """
)


def is_torchtune(content: Mapping[str, object]) -> bool:
    """Whether ``content`` names a builder of torchtune's as its model."""
    return str(section(content, "model").get("_component_") or "").startswith("torchtune.")


def load(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """The workload of a configuration, whose number of GPUs comes from elsewhere. Raises :class:`InputError` with everything
    that does not fit, :class:`Unsupported` for other trainings and samples of lengths that nothing states."""
    shape = section(content, "model")
    _supported(content, shape, where)
    args = Reader(content)
    fields = _recipe(args) | _of_sections(content, shape, args)
    recipe, wrong = parse_recipe({key: value for key, value in fields.items() if value is not None}, where, "")
    problems = [item for item in wrong if item.key != "seq_length"]  # told as tokenizer.max_seq_len
    builder = str(shape["_component_"])
    if model is None:
        model = _published(builder)
    if model is None:
        problems.append(Problem(where, "model", builder, "--model NAME|FILE: a model of the zoo, or its config.json"))
    known = args.used | _NEUTRAL | set(_UNMODELLED)
    left = known_settings.sort(
        {key: value for key, value in content.items() if key not in known}, frozenset(known), where
    )
    problems += [Problem(where, key, value, expected) for key, value, expected in args.problems] + list(left.problems)
    if model is None or recipe is None or problems:
        raise InputError(problems)
    return Loaded(
        model=model,
        recipe=recipe,
        framework="torchtune",
        samples_per_rank=recipe.global_batch_size,
        assumed=(f"model={model.name} ({builder.rpartition('.')[2]})",),
        ignored=left.neutral,
        unmodelled=(*_told(content, shape), *left.unmodelled),
    )


def _supported(content: Mapping[str, object], shape: Mapping[str, object], where: str) -> None:
    data = content.get("dataset")
    several = data if isinstance(data, list) else [data]
    packed = all(isinstance(item, Mapping) and item.get("packed") is True for item in several)
    reasons = {
        **{name: content.get(name) is not None for name in sorted(_OTHERS)},
        "a model that sees, or a classifier": re.search("vision|classifier", str(shape["_component_"])) is not None,
        "weights in 4 bits": "qlora" in str(shape["_component_"]) or shape.get("quantize_base") is True,
        "loss: preferences": "rlhf" in str(section(content, "loss").get("_component_")),
        "use_dora": shape.get("use_dora") is True,
        "enable_activation_offloading: saved outputs that go to the host's memory": content.get(
            "enable_activation_offloading"
        )
        is True,
        "ac_mode": content.get("ac_mode") is not None,
        "dataset.packed not True: samples of lengths that nothing states": not packed,
    }
    reason = next((text for text, holds in reasons.items() if holds), None)
    if reason:
        raise Unsupported(f"{where}: a torchtune configuration with {reason}")


def _published(builder: str) -> Model | None:
    """The zoo's model that a builder makes: ``torchtune.models.qwen2_5.lora_qwen2_5_0_5b_instruct`` is Qwen2.5-0.5B."""
    *_, family, name = builder.split(".")
    size = name.removeprefix("lora_").removeprefix(family).strip("_")
    size = re.sub(r"(?<=\d)_(?=\d)", ".", re.sub(r"_(instruct|base)$", "", size)).replace("_", " ")
    found = zoo.named(f"{family.replace('_', '.')} {size}") if size else None
    if found and family in _WITHOUT_WINDOW:
        return replace(zoo.load(found), window_size=None)
    return zoo.load(found) if found else None


def _recipe(args: Reader) -> dict[str, object]:
    """Fields of the settings at the top."""
    dtype = args.word("dtype") or "bf16"
    precision = "fp8" if args.flag("enable_fp8_training") else dtype
    scaling = args.word("fp8_recipe_name") or ("tensorwise" if precision == "fp8" else None)
    micro, steps = args.integer("batch_size"), args.integer("gradient_accumulation_steps") or 1
    replicas, full = args.integer("data_parallel_replicate_dim") or 1, args.flag("enable_activation_checkpointing")
    shards = args.integer("data_parallel_shard_dim")
    if replicas > 1 and (shards or -1) < 1:
        args.problems.append(("data_parallel_shard_dim", shards, "a whole number: ranks that share one copy"))
    compiled = args.raw("compile")
    kept: dict[str, object] = {}
    if dtype == "bf16":  # weights, gradients and moments are of the model's type
        kept = {"grad_reduce_in_bf16": True, "use_precision_aware_optimizer": True, **dict.fromkeys(_TYPES, dtype)}
    return {
        "micro_batch_size": micro,
        "global_batch_size": None if micro is None else micro * steps,
        "tp": args.integer("tensor_parallel_dim") or 1,
        "cp": args.integer("context_parallel_dim") or 1,
        "data_parallel_sharding": "optim_grads_params",
        "data_parallel_shard_size": shards if replicas > 1 else None,
        "fsdp_reshard_after_forward": args.flag("fsdp_reshard_after_forward"),
        "optimizer_cpu_offload": args.flag("fsdp_cpu_offload"),
        "precision": precision,
        "fp8_recipe": scaling.removesuffix("_with_gw_hp") if scaling else None,
        "recompute_granularity": "full" if full else "none",
        **({"recompute_method": "uniform", "recompute_num_layers": 1} if full else {}),
        "torch_compile": compiled.get("model", True) is True if isinstance(compiled, Mapping) else compiled is True,
        **kept,
    }


def _of_sections(content: Mapping[str, object], shape: Mapping[str, object], args: Reader) -> dict[str, object]:
    length = section(content, "tokenizer").get("max_seq_len")
    if type(length) is not int:
        args.problems.append(("tokenizer.max_seq_len", length, "a whole number: tokens of a packed sample"))
    loss = str(section(content, "loss").get("_component_") or "").rpartition(".")[2]
    fields: dict[str, object] = {
        "seq_length": length if type(length) is int else None,
        "cross_entropy_fusion": _LOSSES.get(loss),
        "optimizer": named(_optimizer(content).removeprefix("Paged")) if _optimizer(content) else None,
    }
    if "lora_rank" in shape:
        words = shape.get("lora_attn_modules")
        linears = [_ADAPTED[str(word)] for word in words if word in _ADAPTED] if isinstance(words, list) else []
        mlp = ["linear_fc1", "linear_fc2"] if shape.get("apply_lora_to_mlp") is True else []
        output = ["output_layer"] if shape.get("apply_lora_to_output") is True else []
        fields["lora"] = {"dim": shape["lora_rank"], "targets": list(dict.fromkeys([*linears, *mlp, *output]))}
    return fields


def _optimizer(content: Mapping[str, object]) -> str:
    return str(section(content, "optimizer").get("_component_") or "").rpartition(".")[2]


def _told(content: Mapping[str, object], shape: Mapping[str, object]) -> tuple[str, ...]:
    told = [f"{key}={content[key]}" for key, off in _UNMODELLED.items() if content.get(key, off) not in (off, None)]
    told.append("dataset.packed=True (attention inside each document: counted over the whole sample)")
    loss = str(section(content, "loss").get("_component_") or "").rpartition(".")[2]
    if loss not in ("LinearCrossEntropyLoss", "CrossEntropyLoss", ""):
        told.append(f"loss={loss}")
    if _optimizer(content).startswith("Paged"):
        told.append(f"optimizer={_optimizer(content)} (pages on the device)")
    told += [f"model.{key}={value}" for key, value in shape.items() if key not in _SHAPE and value not in (None, False)]
    modules = shape.get("lora_attn_modules")
    if isinstance(modules, list) and {"q_proj", "k_proj", "v_proj"} & set(modules) != {"q_proj", "k_proj", "v_proj"}:
        told.append(f"lora_attn_modules={', '.join(map(str, modules))} (one adapter for queries, keys and values)")
    if shape.get("lora_dropout"):
        told.append(f"lora_dropout={shape['lora_dropout']}")
    return tuple(told)
