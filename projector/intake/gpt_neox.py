"""GPT-NeoX's configurations (one mapping without sections, of its own names and DeepSpeed's) of decoders without experts.

Words and defaults: EleutherAI/gpt-neox@ea7aefd8 megatron/neox_arguments/{neox_args,deepspeed_args,arguments}.py; widths of
the MLP: megatron/model/transformer.py ``ParallelMLP``. Its engine is DeepSpeed's over an early Megatron-LM, which is
Megatron-DeepSpeed's, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from projector.errors import InputError, Problem, Unsupported
from projector.intake import deepspeed_config, known_settings
from projector.intake.asked import names_read
from projector.intake.loaded import Loaded
from projector.intake.shell.lists import word_set
from projector.intake.values import Reader, section
from projector.workload import tokenizers
from projector.workload.model import Model
from projector.workload.model_schema import model_from_mapping
from projector.workload.optimizers import named
from projector.workload.schema import parse_recipe

#: One of these is in every configuration; megatron/neox_arguments has them alone.
_MARKS = ("pipe_parallel_size", "gpt_j_residual", "checkpoint_factor", "no_weight_tying")
_LLAMA_MULTIPLE = 256
_GATED = ("geglu", "reglu", "bilinear", "swiglu", "glu")
_POSITIONS = {"learned": "learned_absolute", "rotary": "rope", "alibi": "alibi", "none": "none", "sinusoidal": "none"}
_NORMS = {"layernorm": "LayerNorm", "te_layernorm": "LayerNorm", "rmsnorm": "RMSNorm", "te_rmsnorm": "RMSNorm",
          "non_parametric_layernorm": "NonParametricLayerNorm"}  # fmt: skip
_ATTENTION = {"global": "materialised", "flash": "fa2"}
_SHARDING = {0: "no_shard", 1: "optim", 2: "optim_grads", 3: "optim_grads_params"}
_PRECISIONS = {"bfloat16": "bf16", "bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}
#: Trainings and layers of another kind, with the value that is none; ``mlp_type`` and ``attention_type`` of older releases.
_OTHERS: Mapping[str, object] = {
    "train_impl": "normal", "dataset_impl": "gpt2", "pack_impl": "packed", "moe_num_experts": 1,
    "num_unique_layers": None, "soft_prompt_tuning": None, "mlp_type": "regular", "attention_type": "multihead",
    "te_fp8_mha": False, "checkpoint_in_cpu": False, "sparsity_config": None,
}  # fmt: skip
#: What may change seconds or bytes and is not modelled, with the value that does not.
_UNMODELLED: Mapping[str, object] = {
    "gpt_j_residual": False, "use_bnb_optimizer": False, "wall_clock_breakdown": False, "synchronize_each_layer": False,
    "te_layernorm_mlp": False, "te_mha": False, "te_columnparallel": False, "te_rowparallel": False, "hidden_dropout": 0,
    "attention_dropout": 0, "char_level_ppl": False, "pipe_partition_method": "type:transformer|mlp",
}  # fmt: skip
#: What changes neither, beside what trainers of this kind have in common.
_NEUTRAL = word_set(
    """
    checkpoint_factor checkpoint_scale extra_save_iters keep_last_n_checkpoints lr_decay_fraction warmup train_epochs
    use_wandb wandb_group wandb_run_name wandb_team wandb_host wandb_init_all_ranks git_hash log_dir use_comet
    comet_workspace comet_project comet_experiment_name comet_tags comet_others peak_theoretical_tflops log_grad_norm
    log_grad_pct_zeros log_optimizer_states log_gradient_noise_scale gradient_noise_scale_n_batches scheduler
    gradient_noise_scale_cpu_offload memory_profiling memory_profiling_path profile profile_step_start
    profile_step_stop deepspeed_mpi deepspeed_slurm use_shared_fs train_data_paths test_data_paths valid_data_paths
    train_data_weights test_data_weights valid_data_weights train_label_data_paths test_label_data_paths
    valid_label_data_paths weight_by_num_documents weighted_sampler_alpha allow_chopped z_loss s3_path s3_chunk_size
    load checkpoint_validation_with_forward_pass use_mup coord_check save_base_shapes base_shapes_file mup_init_scale
    mup_attn_temp mup_output_temp mup_embedding_mult mup_rp_embedding_mult mup_width_scale text_gen_type temperature
    top_p top_k maximum_tokens sample_input_file sample_output_file num_samples recompute eval_results_prefix
    eval_tasks prompt_end hostfile include exclude launcher master_port master_addr force_multi no_ssh_check comment
    account steps_per_print dump_state tensorboard csv_monitor comms_logger flops_profiler autotuning autotuning_run
    gradient_clipping min_lr rotary_pct rotary_emb_base rotary_save_freqs_buffer rms_norm_epsilon scalenorm_epsilon
    opt_pos_emb_offset output_layer_parallelism init_method output_layer_init_method rpe_num_buckets
    rpe_max_distance use_bias_in_norms gmlp_attn_dim scaled_upper_triang_masked_softmax_fusion
    scaled_masked_softmax_fusion fused_kernels_build_path deepspeed_activation_checkpointing
    contiguous_checkpointing profile_backward deepspeed bf16 fp16 data_types moe_expert_interval moe_top_k
    moe_router_type moe_lbl_in_fp32 moe_jitter_eps global_num_gpus config_files padded_vocab_size num_gpus num_nodes
    """
)


def is_gpt_neox(content: Mapping[str, object]) -> bool:
    """Whether ``content`` holds a name that GPT-NeoX alone has, and no section of another tool."""
    names = {str(key).replace("-", "_") for key in content}
    return bool(names & set(_MARKS)) and not names & {"trainer", "training"}


def load(content: Mapping[str, object], where: str, *, model: Model | None, written: bool = True) -> Loaded:
    """The workload of a whole configuration, whose number of GPUs comes from elsewhere. Raises :class:`InputError` with
    everything that does not fit, :class:`Unsupported` for other trainings and layers. ``written``: by a person, and not
    printed by the trainer."""
    settings = {str(key).replace("-", "_"): value for key, value in content.items()}
    _supported(settings, where)
    args = Reader(settings)
    fields, shape = _recipe(args), _architecture(args)
    words = tokenizers.vocabulary(
        str(settings.get("tokenizer_type") or "GPT2BPETokenizer"),
        vocab_file=str(settings.get("vocab_file") or "") or None,
        names=(Path(where).stem,),
    ) or tokenizers.Vocabulary(int(tokenizers.DEFAULT_SIZE), tokenizers.UNNAMED, sure=False)
    known = names_read((_recipe, _architecture)) | args.used | set(_OTHERS) | set(_UNMODELLED) | _NEUTRAL
    unread = {key: value for key, value in settings.items() if key not in known}
    left = known_settings.sort(unread, known, where, written=written)
    problems = [Problem(where, key, value, expected) for key, value, expected in args.problems] + list(left.problems)
    recipe, wrong = parse_recipe({key: value for key, value in fields.items() if value is not None}, where, "")
    assumed: tuple[str, ...] = ()
    if model is None:
        named_ = {"name": Path(where).stem, "family": "gpt_neox", "source": where, "vocab_size": words.size, **shape}
        model, more = model_from_mapping({key: value for key, value in named_.items() if value is not None}, where, "")
        problems += more
        assumed = (str(words), *_gate_told(shape))
    if model is None or recipe is None or problems:
        raise InputError([*problems, *wrong])
    return Loaded(
        model=model,
        recipe=recipe,
        framework="megatron-deepspeed",
        samples_per_rank=_samples(args),
        assumed=("framework=megatron-deepspeed (GPT-NeoX has its engine)", *assumed),
        ignored=left.neutral,
        unmodelled=(*_told(settings), *left.unmodelled),
    )


def _supported(settings: Mapping[str, object], where: str) -> None:
    other = next((key for key, plain in _OTHERS.items() if settings.get(key, plain) not in (plain, {}, None)), None)
    kinds = _attention_kinds(settings)
    if kinds - set(_ATTENTION) or len(kinds) > 1:
        other, settings = "attention_config", {"attention_config": ", ".join(sorted(kinds))}
    for key in ("curriculum_learning", "sparse_attention", "compression_training", "amp"):
        if section(settings, key).get("enabled"):
            other = key
    if other == "mlp_type" and settings["mlp_type"] == "llama" and settings.get("intermediate_size") is None:
        other = None
    if other:
        raise Unsupported(f"{where}: a GPT-NeoX configuration with {other}={settings[other]}")


def _attention_kinds(settings: Mapping[str, object]) -> set[str]:
    """The kinds of attention of ``attention_config``, such as ``[[["global", "flash"], 6]]``."""
    return set(re.findall(r"[a-z_]+", str(settings.get("attention_config") or "global"))) - {"all"}


def _told(settings: Mapping[str, object]) -> tuple[str, ...]:
    told = [f"{key}={settings[key]}" for key, off in _UNMODELLED.items() if settings.get(key, off) not in (off, None)]
    if settings.get("gpt_j_residual"):
        told[0] += " (attention and MLP one after the other, each with an all-reduce of its own)"
    told += [f"{key}={value}" for key, value in deepspeed_config.inside(settings).items()]
    if settings.get("partition_activations") and settings.get("model_parallel_size", 1) != 1:
        told.append("partition_activations=True")
    if settings.get("use_bias_in_attn_linear", True) != settings.get("use_bias_in_mlp", True):
        told.append(f"use_bias_in_attn_linear={settings.get('use_bias_in_attn_linear', True)} (as in the MLP)")
    return tuple(told)


def _architecture(args: Reader) -> dict[str, object]:
    position, norm = args.word("pos_emb") or "learned", args.word("norm") or "layernorm"
    for key, word, words in (("pos_emb", position, _POSITIONS), ("norm", norm, _NORMS)):
        if word not in words:
            args.problems.append((key, word, f"one of {', '.join(words)}"))
    llama = args.word("mlp_type") == "llama"
    gated = llama or args.word("activation") in _GATED
    biased = args.flag("use_bias_in_mlp")
    args.flag("use_bias_in_attn_linear")
    return {
        **{name: args.integer(name) for name in ("num_layers", "hidden_size", "num_attention_heads")},
        "max_position_embeddings": args.integer("max_position_embeddings"),
        "num_query_groups": args.integer("num_kv_heads") or None,
        "ffn_hidden_size": _llama_width(args) if llama else _width(args, gated),
        "gated_linear_unit": gated,
        "normalization": _NORMS.get(norm),
        "add_bias_linear": biased is not False and not llama,
        "qk_layernorm": args.flag("use_qk_layernorm") or False,
        "position_embedding_type": _POSITIONS.get(position),
        "untie_embeddings_and_output_weights": args.flag("no_weight_tying") or False,
        "window_size": args.integer("sliding_window_width"),
    }


def _width(args: Reader, gated: bool) -> int | None:
    """Of the MLP: with a gate two thirds of what is stated are both of its halves."""
    hidden, factor = args.integer("hidden_size"), args.number("expansion_factor")
    width, multiple = args.integer("intermediate_size"), args.integer("mlp_multiple_of") or 1
    if width is None and hidden is not None:
        width = int((factor or 4) * hidden)
    if width is None:
        return None
    half = int(width * 2 / 3) // 2 if gated else width
    return -(-half // multiple) * multiple


def _llama_width(args: Reader) -> int | None:
    """Of 2023's ``LLaMAParallelMLP``: two thirds of four times the hidden size, rounded up to a multiple of 256."""
    hidden = args.integer("hidden_size")
    return None if hidden is None else -(-int(2 * hidden * 4 / 3) // _LLAMA_MULTIPLE) * _LLAMA_MULTIPLE


def _gate_told(shape: Mapping[str, object]) -> tuple[str, ...]:
    """What a reader of other trainers' files takes for another width."""
    width = shape["ffn_hidden_size"]
    return (
        (f"ffn_hidden_size={width} (a third of intermediate_size, rounded up)",) if shape["gated_linear_unit"] else ()
    )


def _recipe(args: Reader) -> dict[str, object]:
    precision = args.word("precision")
    for word, name in (("fp16", "fp16"), ("bf16", "bfloat16")):
        if precision is None and section({word: args.raw(word)}, word).get("enabled"):
            precision = name
    if precision not in (*_PRECISIONS, None):
        args.problems.append(("precision", precision, f"one of {', '.join(_PRECISIONS)}"))
    zero, optimizer = args.raw("zero_optimization"), args.raw("optimizer")
    zero = zero if isinstance(zero, Mapping) else {}
    stage = zero.get("stage", 0)
    if stage not in _SHARDING:
        args.problems.append(("zero_optimization.stage", stage, "0, 1, 2 or 3"))
    offloaded = zero.get("cpu_offload") is True or section(zero, "offload_optimizer").get("device") == "cpu"
    full = args.flag("checkpoint_activations") is True
    layers = args.integer("checkpoint_num_layers") or 1
    args.flag("partition_activations")
    kind = next(iter(_attention_kinds({"attention_config": args.raw("attention_config")})), "global")
    return {
        "micro_batch_size": args.integer("train_micro_batch_size_per_gpu", "batch_size"),
        "global_batch_size": args.integer("train_batch_size") or _samples(args),
        "seq_length": args.integer("seq_length"),
        "tp": args.integer("model_parallel_size") or 1,
        "pp": max(1, args.integer("pipe_parallel_size") or 1),
        "sequence_parallel": args.flag("sequence_parallel") or False,
        "precision": _PRECISIONS.get(precision or "fp32"),
        "data_parallel_sharding": _SHARDING.get(stage) if type(stage) is int else None,
        "optimizer": named(str(section({"of": optimizer}, "of").get("type") or "adam")),
        "optimizer_cpu_offload": offloaded,
        "recompute_granularity": "full" if full else "none",
        **({"recompute_method": "uniform", "recompute_num_layers": layers} if full else {}),
        "attention_backend": _ATTENTION.get(kind),
        "bias_activation_fusion": args.flag("bias_gelu_fusion") or False,
        "apply_rope_fusion": args.flag("rope_fusion") or False,
        "make_vocab_size_divisible_by": args.integer("make_vocab_size_divisible_by") or 128,
    }


def _samples(args: Reader) -> int | None:
    """Samples of one data-parallel rank each step, where the global batch is not stated."""
    micro = args.integer("train_micro_batch_size_per_gpu", "batch_size")
    if args.has("train_batch_size") or micro is None:
        return None
    return micro * (args.integer("gradient_accumulation_steps", "gas") or 1)
