"""Axolotl's configurations of pre-training and fine-tuning on packed samples (``base_model``, ``sequence_len``).

Words and defaults: axolotl-ai-cloud/axolotl@067b021c8 src/axolotl/utils/schemas/config.py; packed batches are padded to
``sequence_len``: src/axolotl/utils/schemas/validation.py (``pad_to_sequence_len``); weights are loaded in the type of the
training: src/axolotl/loaders/model.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from projector.errors import Problem, Unsupported
from projector.intake import hf_trainer
from projector.intake.loaded import Loaded
from projector.intake.shell.lists import word_set
from projector.intake.values import Reader, section
from projector.workload.model import Model
from projector.workload.optimizers import named

_SHARDING = {"FULL_SHARD": "optim_grads_params", "SHARD_GRAD_OP": "optim_grads", "NO_SHARD": "no_shard"}
#: Other ways to train, layers that others replace, and models that see.
_OTHERS = word_set(
    """
    load_in_4bit load_in_8bit gptq rl reward_model process_reward_model unfrozen_parameters qat trl ebft quantization
    processor_type activation_offloading layer_offloading relora peft_use_dora lora_target_parameters tiled_mlp
    expert_parallel_size s2_attention use_pose streaming kd_trainer diffusion tensor_parallel_size deepcompile fp8
    lisa_n_layers peft relora_steps model_quantization_config
    """
)
_NEUTRAL = word_set(
    """
    base_model model_type tokenizer_type tokenizer_config processor_kwargs datasets test_datasets dataset_prepared_path
    val_set_size output_dir learning_rate num_epochs lr_scheduler lr_scheduler_kwargs warmup_ratio warmup_steps
    evals_per_epoch saves_per_epoch eval_steps save_steps eval_strategy save_strategy save_total_limit save_only_model
    save_first_step logging_steps weight_decay max_grad_norm special_tokens tokens seed strict debug wandb_project
    wandb_entity wandb_watch wandb_name wandb_run_id wandb_log_model mlflow_experiment_name hub_model_id hub_strategy
    resume_from_checkpoint auto_resume_from_checkpoints local_rank early_stopping_patience loss_watchdog_threshold
    loss_watchdog_patience train_on_inputs group_by_length chat_template chat_template_jinja default_system_message
    eot_tokens trust_remote_code gradient_checkpointing_kwargs eval_sample_packing eval_batch_size eval_sequence_len
    eval_max_new_tokens eval_table_size remove_unused_columns lora_alpha lora_model_dir lora_fan_in_fan_out adapter
    lora_target_modules lora_target_linear tf32 plugins push_dataset_to_hub dataset_processes shuffle_merged_datasets
    skip_prepare_dataset max_steps adam_beta1 adam_beta2 adam_epsilon is_falcon_derived_model is_llama_derived_model
    is_mistral_derived_model is_qwen_derived_model pretraining_dataset cosine_min_lr_ratio cosine_constant_lr_ratio
    ddp_timeout ddp_find_unused_parameters bf16 fp16 float16 bfloat16 deepspeed fsdp fsdp_config fsdp_version
    attn_implementation flash_attention sdp_attention xformers_attention eager_attention flex_attention torchdistx_path
    use_tensorboard hf_use_auth_token sample_packing_eff_est total_num_tokens low_cpu_mem_usage load_best_model_at_end
    metric_for_best_model tokenizer_use_fast tokenizer_legacy tokenizer_use_mistral_common resize_token_embeddings_to_32x
    use_ray ray_num_workers ray_run_name reinit_weights pretrain_multipack_attn streaming_multipack_buffer_size eta_min
    do_causal_lm_eval eval_causal_lm_metrics swanlab_description swanlab_project use_swanlab swanlab_mode model_config
    gptq_groupsize gptq_model_v1 lora_on_cpu include_tokens_per_second cut_cross_entropy liger_rope liger_rms_norm
    liger_glu_activation liger_layer_norm use_cache
    """
)
#: What may change seconds or bytes and is not modelled, with the value that does not.
_UNMODELLED: Mapping[str, object] = {
    "lora_dropout": 0, "lora_modules_to_save": None, "lora_mlp_kernel": False, "lora_qkv_kernel": False,
    "lora_o_kernel": False, "cut_cross_entropy": False, "liger_rms_norm": False, "liger_glu_activation": False,
    "liger_rope": False, "pad_to_sequence_len": True, "flash_attn_cross_entropy": False, "flash_attn_rms_norm": False,
    "flash_attn_fuse_mlp": False, "flash_attn_fuse_qkv": False, "neftune_noise_alpha": None,
}  # fmt: skip


def is_axolotl(content: Mapping[str, object]) -> bool:
    """Whether ``content`` has the settings that every training of Axolotl states."""
    return "base_model" in content and "sequence_len" in content


def load(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """The workload of a configuration, whose number of GPUs comes from elsewhere. Raises :class:`InputError` with everything
    that does not fit, :class:`Unsupported` for other trainings and samples of lengths that nothing states."""
    _supported(content, where)
    args = Reader(content)
    problems: list[Problem] = []
    fields = _recipe(args, content)
    told: tuple[str, ...] = ()
    if content.get("deepspeed"):
        deep, told = hf_trainer.zero(content["deepspeed"], where, problems)
        fields |= {key: value for key, value in deep.items() if value is not None}
    else:
        fields |= _fsdp(content, problems, where)
        fields |= hf_trainer.IN_BF16 if fields["precision"] == "bf16" else {}
    told = ("sample_packing=True (attention inside each document: counted over the whole sample)", *told)
    return hf_trainer.loaded(
        args,
        content,
        where,
        named="base_model",
        model=model,
        fields=fields,
        others=_NEUTRAL | _OTHERS,
        unmodelled=_UNMODELLED,
        told=told,
        problems=problems,
    )


def _supported(content: Mapping[str, object], where: str) -> None:
    adapter, recompute = content.get("adapter"), content.get("gradient_checkpointing")
    streamed = content.get("pretraining_dataset") and content.get("sample_packing") is not False
    reasons = {
        f"adapter={adapter}": adapter not in (None, "", "lora"),
        **{f"{key}={content.get(key)}": content.get(key) not in (None, False, "", 1, []) or content.get(key) is True
           for key in sorted(_OTHERS)},
        f"gradient_checkpointing={recompute}": isinstance(recompute, str),
        "sample_packing not true: samples of lengths that nothing states": content.get("sample_packing") is not True
        and not streamed,
    }  # fmt: skip
    reason = next((text for text, holds in reasons.items() if holds), None)
    if reason:
        raise Unsupported(f"{where}: an Axolotl configuration with {reason}")


def _recipe(args: Reader, content: Mapping[str, object]) -> dict[str, object]:
    micro, steps = args.integer("micro_batch_size") or 1, args.integer("gradient_accumulation_steps") or 1
    full = args.raw("gradient_checkpointing") is True
    half = content.get("bf16", content.get("bfloat16")) in (True, "auto", "full")
    precision = "bf16" if half else "fp16" if content.get("fp16") or content.get("float16") else "fp32"
    attention = args.word("attn_implementation") or next(
        (word for name, word in _SWITCHES.items() if content.get(name) is True), ""
    )
    lora = content.get("adapter") == "lora"
    rank, linears = args.integer("lora_r"), content.get("lora_target_modules")
    replicas, shards = args.integer("dp_replicate_size") or 1, args.integer("dp_shard_size")
    args.flag("sample_packing")
    return {
        "micro_batch_size": micro,
        "global_batch_size": micro * steps,
        "seq_length": args.integer("sequence_len"),
        "cp": args.integer("context_parallel_size", "sequence_parallel_degree"),
        "precision": precision,
        "data_parallel_sharding": "no_shard",
        "data_parallel_shard_size": shards if replicas > 1 else None,
        "optimizer": named((args.word("optimizer") or "adamw_torch_fused").removeprefix("paged_")),
        "attention_backend": hf_trainer.ATTENTION.get(attention),
        "cross_entropy_fusion": "liger" if args.flag("liger_fused_linear_cross_entropy") else None,
        "torch_compile": args.raw("torch_compile") is True,
        "recompute_granularity": "full" if full else "none",
        **({"recompute_method": "uniform", "recompute_num_layers": 1} if full else {}),
        **(hf_trainer.adapters(rank, linears, content.get("lora_target_linear") is True) if lora else {}),
    }


_SWITCHES = {"flash_attention": "fa2", "eager_attention": "eager"}


def _fsdp(content: Mapping[str, object], problems: list[Problem], where: str) -> dict[str, object]:
    """Of torch's FSDP, the first (``fsdp`` and words with a prefix) or the second (``fsdp_version``)."""
    if not content.get("fsdp") and not content.get("fsdp_config"):
        return {}
    given = {str(key).removeprefix("fsdp_"): value for key, value in section(content, "fsdp_config").items()}
    words = content.get("fsdp")
    word = str(
        given.get("sharding_strategy") or (words[0] if isinstance(words, list) and words else "FULL_SHARD")
    ).upper()
    if word not in _SHARDING:
        problems.append(Problem(where, "fsdp_config.sharding_strategy", word, f"one of {', '.join(_SHARDING)}"))
    full = given.get("activation_checkpointing") is True
    reshard = given.get("reshard_after_forward")
    return {
        "data_parallel_sharding": _SHARDING.get(word),
        "fsdp_reshard_after_forward": reshard if isinstance(reshard, bool) else None,
        "optimizer_cpu_offload": True if given.get("offload_params") is True else None,
        **({"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1} if full else {}),
    }
