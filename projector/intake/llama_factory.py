"""LLaMA-Factory's configurations of pre-training and fine-tuning on packed samples (``model_name_or_path``, ``stage``,
``finetuning_type``).

Words and defaults: hiyouga/LLaMA-Factory@ff6d4d12e src/llamafactory/hparams; packed samples have ``cutoff_len`` tokens:
src/llamafactory/data/processor/{pretrain,supervised}.py; what is recomputed: src/llamafactory/model/model_utils/
checkpointing.py. The rest is ``TrainingArguments`` of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping

from projector.errors import Problem, Unsupported
from projector.intake import hf_trainer
from projector.intake.loaded import Loaded
from projector.intake.shell.lists import word_set
from projector.intake.values import Reader
from projector.workload.model import Model
from projector.workload.optimizers import named

_BATCH, _LENGTH, _RANK = 8, 2048, 8  # per_device_train_batch_size, cutoff_len, lora_rank
#: Other ways to train, or kernels of another library.
_OTHERS = word_set(
    """
    quantization_bit use_unsloth use_unsloth_gc use_galore use_apollo use_badam use_llama_pro use_mca use_megatron_bridge
    use_kt use_hyper_parallel mixture_of_depths shift_attn use_dora fp8 use_asft_loss use_eaft_loss pissa_init
    """
)
_NEUTRAL = word_set(
    """
    model_name_or_path stage do_train do_eval do_predict finetuning_type template dataset eval_dataset dataset_dir media_dir
    max_samples preprocessing_num_workers preprocessing_batch_size dataloader_num_workers output_dir logging_steps
    save_steps plot_loss overwrite_output_dir overwrite_cache save_only_model report_to run_name learning_rate
    num_train_epochs lr_scheduler_type lr_scheduler_kwargs warmup_ratio warmup_steps ddp_timeout resume_from_checkpoint
    val_size per_device_eval_batch_size eval_strategy eval_steps trust_remote_code max_steps save_strategy
    save_total_limit weight_decay max_grad_norm seed adam_beta1 adam_beta2 adam_epsilon lora_alpha cache_dir streaming
    buffer_size tokenized_path mask_history train_on_prompt use_fast_tokenizer enable_thinking flash_attn rope_scaling
    new_special_tokens_config add_tokens add_special_tokens resize_vocab data_seed include_num_input_tokens_seen
    include_effective_tokens_per_second use_swanlab swanlab_project swanlab_run_name swanlab_mode create_new_adapter
    freeze_vision_tower freeze_multi_modal_projector image_max_pixels video_max_pixels load_best_model_at_end
    metric_for_best_model logging_dir logging_first_step disable_shuffling ray_num_workers ray_run_name
    ray_storage_path resources_per_worker placement_strategy use_rslora loraplus_lr_ratio deepspeed fsdp fsdp_config
    lora_target dataloader_drop_last dataloader_pin_memory remove_unused_columns bf16 fp16 pure_bf16 packing
    neat_packing use_reentrant_gc low_cpu_mem_usage hub_model_id push_to_hub compute_accuracy use_dft_loss
    """
)
#: What may change seconds or bytes and is not modelled, with the value that does not.
_UNMODELLED: Mapping[str, object] = {
    "lora_dropout": 0.0, "additional_target": None, "upcast_layernorm": False, "upcast_lmhead_output": False,
    "use_adam_mini": False, "use_muon": False, "neftune_noise_alpha": None,
}  # fmt: skip


def is_llama_factory(content: Mapping[str, object]) -> bool:
    """Whether ``content`` has the settings that every training of LLaMA-Factory states."""
    return "model_name_or_path" in content and bool({"finetuning_type", "cutoff_len"} & set(content))


def load(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """The workload of a configuration, whose number of GPUs comes from elsewhere. Raises :class:`InputError` with everything
    that does not fit, :class:`Unsupported` for other trainings and samples of lengths that nothing states."""
    _supported(content, where)
    args = Reader(content)
    problems: list[Problem] = []
    fields = _recipe(args)
    deep, told = ({}, ()) if args.raw("deepspeed") is None else hf_trainer.zero(content["deepspeed"], where, problems)
    if content.get("fsdp"):
        fields["data_parallel_sharding"] = "optim_grads_params"
    fields |= {key: value for key, value in deep.items() if value is not None}
    if content.get("neat_packing"):
        told = ("neat_packing=True (attention inside each document: counted over the whole sample)", *told)
    return hf_trainer.loaded(
        args,
        content,
        where,
        named="model_name_or_path",
        model=model,
        fields=fields,
        others=_NEUTRAL | _OTHERS,
        unmodelled=_UNMODELLED,
        told=told,
        problems=problems,
    )


def _supported(content: Mapping[str, object], where: str) -> None:
    stage, kind = content.get("stage", "sft"), content.get("finetuning_type", "lora")
    packed = content.get("packing") is True or content.get("neat_packing") is True
    reasons = {
        f"stage={stage}": stage not in ("sft", "pt"),
        f"finetuning_type={kind}": kind not in ("full", "lora"),
        **{f"{key}={content.get(key)}": bool(content.get(key)) for key in sorted(_OTHERS)},
        "packing not true: samples of lengths that nothing states": not packed
        and (stage == "sft" or content.get("packing") is False),
    }
    reason = next((text for text, holds in reasons.items() if holds), None)
    if reason:
        raise Unsupported(f"{where}: a LLaMA-Factory configuration with {reason}")


def _recipe(args: Reader) -> dict[str, object]:
    micro = args.integer("per_device_train_batch_size") or _BATCH
    steps, full = (
        args.integer("gradient_accumulation_steps") or 1,
        args.flag("disable_gradient_checkpointing") is not True,
    )
    pure = args.flag("pure_bf16")
    precision = "bf16" if args.flag("bf16") or pure else "fp16" if args.flag("fp16") else "fp32"
    lora = args.word("finetuning_type") in ("lora", None)
    targets, rank = args.words("lora_target") or ("all",), args.integer("lora_rank") or _RANK
    optimizer = args.word("optim") or "adamw_torch"
    return {
        "micro_batch_size": micro,
        "global_batch_size": micro * steps,
        "seq_length": args.integer("cutoff_len") or _LENGTH,
        "precision": precision,
        "data_parallel_sharding": "no_shard",
        "optimizer": named(optimizer.removeprefix("paged_")),
        "attention_backend": hf_trainer.ATTENTION.get(args.word("flash_attn") or "auto"),
        "cross_entropy_fusion": "liger" if args.flag("enable_liger_kernel") else None,
        "torch_compile": args.flag("torch_compile") or False,
        "recompute_granularity": "full" if full else "none",
        **({"recompute_method": "uniform", "recompute_num_layers": 1} if full else {}),
        **(hf_trainer.IN_BF16 if pure else {}),
        **(hf_trainer.adapters(rank, targets, "all" in targets) if lora else {}),
    }
