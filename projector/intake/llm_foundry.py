"""llm-foundry's configurations of MPT and of models of a hub (``model``, ``train_loader``, ``fsdp_config``).

Words and defaults: mosaicml/llm-foundry@8c8dd48f7 llmfoundry/utils/config_utils.py ``TrainConfig``, models/mpt/
configuration_mpt.py; mosaicml/composer@0231f2663e composer/utils/parallelism.py ``FSDPConfig``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from projector.errors import InputError, Problem, Unsupported
from projector.intake import huggingface, known_settings
from projector.intake.loaded import Loaded
from projector.intake.shell.lists import word_set
from projector.intake.values import section
from projector.workload import zoo
from projector.workload.model import Model
from projector.workload.optimizers import named
from projector.workload.schema import parse_recipe

_MARKS = ("model", "train_loader", "max_seq_len", "global_train_batch_size")
#: Of a model of llm-foundry's own, where transformers has another default or none.
_MPT: Mapping[str, object] = {
    "d_model": 2048, "n_heads": 16, "n_layers": 24, "expansion_ratio": 4, "max_seq_len": 2048, "vocab_size": 50368,
    "no_bias": False, "tie_word_embeddings": True, "learned_pos_emb": True,
}  # fmt: skip
#: What a model says that changes neither seconds nor bytes.
_NEUTRAL = frozenset(
    {"name", "init_device", "init_config", "verbose", "pretrained", "loss_fn", "logit_scale", "norm_eps", "use_cache",
     "resid_pdrop", "emb_pdrop", "embedding_fraction", "use_pad_tok_in_ffn", "fc_type", "use_train_metrics"}
)  # fmt: skip
#: Settings of the attention that are not modelled, but for these values.
_ATTENTION: Mapping[str, tuple[object, ...]] = {
    "attn_impl": ("flash", "triton"), "attn_uses_sequence_id": (False, None), "attn_logit_softcapping": (None,),
    "fused_qkv": (True,), "qk_gn": (False,), "attn_pdrop": (0, 0.0),
}  # fmt: skip
#: Settings at the top that are read, or change neither (``TrainConfig``).
_TOP = word_set(
    """
    model tokenizer optimizer scheduler train_loader device_eval_batch_size max_duration max_seq_len seed global_seed
    precision code_paths dist_timeout fsdp_config tp_config eval_interval eval_loader eval_loaders icl_tasks icl_tasks_str
    eval_gauntlet eval_gauntlet_str icl_subset_num_batches icl_seq_len loggers progress_bar log_to_console
    python_log_level console_log_interval log_config callbacks algorithms save_folder save_latest_filename
    save_overwrite save_weights_only save_filename save_interval save_num_checkpoints_to_keep load_path
    load_weights_only load_strict_model_weights load_ignore_keys save_ignore_keys only_hf_checkpoint
    only_composer_checkpoint train_subset_num_batches device_train_microbatch_size global_train_batch_size
    spin_dataloaders eval_subset_num_batches eval_first compile_config metadata flatten_metadata run_name autoresume
    profiler variables n_gpus device_train_batch_size device_train_grad_accum max_split_size_mb expandable_segments
    cuda_load_lazy data_local data_remote tokenizer_name
    """
)
_ATTENDED = word_set(
    """
    attn_type kv_n_heads rope rope_theta rope_impl rope_dail_config rope_hf_config alibi alibi_bias_max clip_qkv qk_ln
    softmax_scale sliding_window_size prefix_lm
    """
)
_PRECISIONS = {"amp_bf16": "bf16", "amp_fp16": "fp16", "amp_fp8": "fp8", "fp32": "fp32"}
_SHARDING = {"FULL_SHARD": "optim_grads_params", "SHARD_GRAD_OP": "optim_grads", "NO_SHARD": "no_shard"}
_REDUCED_IN_16_BITS = {"PURE": True, "DEFAULT": False}
_FSDP = frozenset(
    {"sharding_strategy", "mixed_precision", "activation_checkpointing", "activation_checkpointing_reentrant",
     "activation_cpu_offload", "limit_all_gathers", "sync_module_states", "verbose", "state_dict_type",
     "sharded_ckpt_prefix_dir", "load_monolith_rank0_only", "use_orig_params"}
)  # fmt: skip
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_DEPTH = 5  # references to references


def is_llm_foundry(content: Mapping[str, object]) -> bool:
    """Whether ``content`` has the sections that every training of llm-foundry states."""
    return all(key in content for key in _MARKS) and isinstance(content["train_loader"], Mapping)


def load(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """The workload of a configuration, whose number of GPUs comes from elsewhere. Raises :class:`InputError` with everything
    that does not fit, :class:`Unsupported` for adapters, offloading and samples of lengths that nothing states."""
    resolved = _resolved(content, content)
    settings = resolved if isinstance(resolved, Mapping) else content
    given, fsdp = section(settings, "model"), section(settings, "fsdp_config")
    _supported(settings, given, fsdp, where)
    problems: list[Problem] = []
    fields = _recipe(settings, fsdp, where, problems)
    recipe, wrong = parse_recipe({key: value for key, value in fields.items() if value is not None}, where, "")
    problems += wrong
    if model is None and given["name"] == "hf_causal_lm" and not zoo.named(_of_hub(given)):
        name = _of_hub(given) or "nothing"
        problems.append(Problem(where, "model", name, "--model NAME|FILE: a model of the zoo, or its config.json"))
    if recipe is None or problems:
        raise InputError(problems)
    told = [f"fsdp_config.{key}={value}" for key, value in fsdp.items() if key not in _FSDP and value is not None]
    algorithms = section(settings, "algorithms")
    told += [f"algorithms.{key}" for key in algorithms if key not in ("gradient_clipping", "low_precision_layernorm")]
    told += [
        f"attn_config.{key}={value}"
        for key, value in section(given, "attn_config").items()
        if value not in _ATTENTION.get(key, (value,) if key in _ATTENDED else (None, False))
    ]
    top = known_settings.sort({key: value for key, value in settings.items() if key not in _TOP}, _TOP, where)
    if top.problems:
        raise InputError(top.problems)
    told += top.unmodelled
    base = Loaded(model=model) if model else _model(given, where)
    return replace(base, recipe=recipe, framework="llm-foundry", assumed=(), unmodelled=(*base.unmodelled, *told))


def _supported(
    settings: Mapping[str, object], model: Mapping[str, object], fsdp: Mapping[str, object], where: str
) -> None:
    if model.get("name") not in ("mpt_causal_lm", "hf_causal_lm"):
        raise Unsupported(
            f"{where}: an LLM Foundry configuration of {model.get('name')}: no causal language model of MPT or a hub"
        )
    reasons = {
        "model.block_overrides: layers that differ": model.get("block_overrides"),
        "model.peft_config: adapters": model.get("peft_config"),
        "model.config_overrides: another architecture than the hub's": model.get("config_overrides"),
        "tp_config: tensor parallelism of torch": settings.get("tp_config"),
        "fsdp_config.activation_cpu_offload: saved outputs that go to the host's memory": fsdp.get(
            "activation_cpu_offload"
        ),
    }
    loader = section(settings, "train_loader")
    if loader.get("name") == "finetuning" and not section(loader, "dataset").get("packing_ratio"):
        reasons["train_loader finetuning without a packing_ratio: samples of lengths that nothing states"] = True
    reason = next((text for text, value in reasons.items() if value), None)
    if reason:
        raise Unsupported(f"{where}: an LLM Foundry configuration with {reason}")


def _recipe(
    settings: Mapping[str, object], fsdp: Mapping[str, object], where: str, problems: list[Problem]
) -> dict[str, object]:
    def one_of(words: Mapping[str, object], key: str, value: object) -> object:
        if value not in words:
            problems.append(Problem(where, key, value, f"one of {', '.join(words)}"))
        return words.get(str(value))

    micro = settings.get("device_train_microbatch_size", "auto")
    if micro == "auto":
        key = "device_train_microbatch_size"
        problems.append(Problem(where, key, micro, "a whole number: what fits is found on the device alone"))
    sharding = one_of(_SHARDING, "fsdp_config.sharding_strategy", fsdp.get("sharding_strategy", "FULL_SHARD"))
    mixed = one_of(_REDUCED_IN_16_BITS, "fsdp_config.mixed_precision", fsdp.get("mixed_precision", "DEFAULT"))
    full = fsdp.get("activation_checkpointing") is True
    return {
        "micro_batch_size": None if micro == "auto" else micro,
        "global_batch_size": settings["global_train_batch_size"],
        "seq_length": settings["max_seq_len"],
        "precision": one_of(_PRECISIONS, "precision", settings.get("precision", "amp_bf16")),
        "data_parallel_sharding": sharding if settings.get("fsdp_config") else "no_shard",
        "grad_reduce_in_bf16": mixed if settings.get("fsdp_config") else None,
        "recompute_granularity": "full" if full else "none",
        **({"recompute_method": "uniform", "recompute_num_layers": 1} if full else {}),
        "optimizer": named(str(section(settings, "optimizer").get("name") or "adamw")),
        "torch_compile": settings.get("compile_config") is not None,
        "make_vocab_size_divisible_by": 1,
    }


def _of_hub(given: Mapping[str, object]) -> str:
    return str(given.get("pretrained_model_name_or_path") or "")


def _model(given: Mapping[str, object], where: str) -> Loaded:
    if given["name"] == "hf_causal_lm":
        return Loaded(model=zoo.load(zoo.named(_of_hub(given)) or ""))
    shape = {key: value for key, value in given.items() if key not in _NEUTRAL}
    return huggingface.from_mapping({**_MPT, **shape, "model_type": "mpt"}, where, name=Path(where).stem)


def _resolved(value: object, root: Mapping[str, object], depth: int = _DEPTH) -> object:
    """``value`` with references to other places of the file replaced by what stands there."""
    if isinstance(value, Mapping):
        return {str(key): _resolved(inner, root, depth) for key, inner in value.items()}
    match = _REFERENCE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or not depth:
        return value
    found: object = root
    for step in match[1].split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return value if found is None else _resolved(found, root, depth - 1)
