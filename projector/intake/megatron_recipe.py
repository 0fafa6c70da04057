"""Turns Megatron-LM arguments, and the switches that Primus adds, into recipe fields: arguments that hold a field's value as
it stands by the names that the field declares; this module derives the other fields.
"""

from __future__ import annotations

from collections.abc import Mapping

from projector.intake.aliases import stated
from projector.intake.megatron_model import layout as hybrid_layout
from projector.intake.tables import table
from projector.intake.values import Reader
from projector.workload.lora import BLOCK_LINEARS
from projector.workload.value_checks import CHOICES

#: Optimizer-state types only count under the precision-aware optimizer: Megatron-LM prints their defaults always.
_PRECISION_AWARE = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
#: What names a data set (Megatron-LM megatron/training/arguments.py, ``_add_data_args``).
_DATA = ("data_path", "train_data_path", "data_args_path", "per_split_data_args_path")
#: Formats of numbers by the switch that names one (Megatron-LM's --fp8-format and --fp4-format).
_FORMATS: Mapping[str, tuple[str, ...]] = {"fp8": ("e4m3", "hybrid"), "fp4": ("e2m1", "nvfp4", "mxfp4")}
#: Memory that a V-shaped schedule of zero bubbles is given (sail-sg/zero-bubble --zero-bubble-v-schedule-mem-setup), and
#: the schedule that it is then; each has two chunks a rank.
_V_MEMORY = {"zb": "zbv", "half": "v-half", "min": "v-min"}
#: What captures graphs (NVIDIA/Megatron-LM megatron/core/transformer/transformer_config.py, ``cuda_graph_impl``).
_CAPTURES = ("none", "local", "transformer_engine", "full_iteration")


def recipe_fields(args: Reader, num_layers: int | None) -> dict[str, object]:
    """Returns the recipe fields that ``args`` states; absent ones stay absent, wrong values go to ``args.problems``."""
    fields = {**stated(args, "megatron", "primus", "own"), "cp_comm_type": _cp_comm_type(args)}
    if args.flag("fine_grained_activation_offloading"):
        fields["offload_modules"] = args.words("offload_modules")
    if args.has("decoder_seq_length"):
        fields["encoder_seq_length"] = args.integer("encoder_seq_length", "seq_length")
        fields["seq_length"] = args.integer("decoder_seq_length")
    layout = args.raw("pipeline_model_parallel_layout") or hybrid_layout(args)
    fields["pipeline_model_parallel_layout"] = None if layout is None else str(layout)
    if not fields["use_precision_aware_optimizer"]:
        fields |= dict.fromkeys(_PRECISION_AWARE)
    fields |= _precision(args)
    summed = args.flag("accumulate_allreduce_grads_in_fp32")
    if fields.get("precision") == "fp16" and summed is False and not args.flag("deepspeed"):
        fields["grad_reduce_in_bf16"] = True  # as wide as the weights (core/distributed/param_and_grad_buffer.py)
    by_layers = _virtual_stages(args, num_layers, fields["pp"])
    fields["vpp"] = by_layers if fields["vpp"] is None else fields["vpp"]
    fields |= _sharding(args, fields["data_parallel_sharding"])
    fields |= _recompute(args)
    fields |= _experts(args)
    fields |= _fusions(args)
    fields |= _schedule(args)
    fields |= _graphs(args)
    fields |= _adapters(args)
    # ``max_seqlen_per_dp_cp_rank`` is read where micro-batches stay what they are without it, and is else a way of
    # cutting a run that nobody knows.
    most, length, ranks = args.integer("max_seqlen_per_dp_cp_rank"), fields["seq_length"], fields["cp"] or 1
    if most is not None and isinstance(ranks, int) and most * ranks != length:
        args.used.discard("max_seqlen_per_dp_cp_rank")
    if fields["etp"] is None and args.has("num_experts"):
        fields["etp"] = fields["tp"]  # Megatron-LM validate_args: the expert tensor size defaults to the dense one
    if args.flag("grad_reduce_in_fp32") is not None:
        fields["grad_reduce_in_bf16"] = not args.flag("grad_reduce_in_fp32")
    return {field: value for field, value in fields.items() if value is not None}


def _cp_comm_type(args: Reader) -> str | None:
    """Returns ``cp_comm_type``, one word or a list with one for every layer; reports layers that differ."""
    several = args.words("cp_comm_type") or ()
    if len(set(several)) > 1:
        args.problems.append(("cp_comm_type", ", ".join(several), "one word for all layers"))
    return several[0] if several and several[0] != "none" else None


def _precision(args: Reader) -> dict[str, object]:
    """Returns the precision: ``fp8``/``fp4`` name a format when on, ``fp16``/``bf16`` are flags, neither means fp32."""
    on8, on4 = (_format(args, width) for width in _FORMATS)
    recipe8 = args.word("fp8_recipe")
    if on4 not in (None, False):
        return {"precision": "mxfp4" if "mxfp4" in (args.choice("fp4_recipe", ("nvfp4", "mxfp4")), on4) else "nvfp4"}
    if on8 not in (None, False):
        return {"precision": "mxfp8" if recipe8 == "mxfp8" else "fp8", "fp8_recipe": recipe8}
    if args.flag("bf16") and args.flag("fp16"):
        args.problems.append(("fp16", True, "one precision: bf16 is given, too"))
    for name in ("bf16", "fp16"):
        if args.flag(name):
            return {"precision": name}
    return {"precision": "fp32"} if args.has("bf16", "fp16") else {}


def _format(args: Reader, width: str) -> object:
    on = args.raw(width) or args.raw(f"{width}_format")
    if on == "none":
        return None
    if on not in (*_FORMATS[width], None, False, True):
        args.problems.append((width, on, f"one of {', '.join(_FORMATS[width])}"))
    return on


def _virtual_stages(args: Reader, num_layers: int | None, pp: object) -> int | None:
    each = args.integer("num_layers_per_virtual_pipeline_stage")
    return max(1, num_layers // (pp * each)) if each and num_layers and isinstance(pp, int) and pp > 0 else None


def _sharding(args: Reader, stated: object) -> dict[str, object]:
    fsdp = [args.flag(name) for name in ("use_torch_fsdp2", "use_megatron_fsdp", "use_custom_fsdp")]
    strategy = args.word("data_parallel_sharding_strategy")
    distributed = args.flag("use_distributed_optimizer")
    if any(fsdp):
        megatron = strategy if fsdp[1] or fsdp[2] else None  # no_shard, its default where printed, cuts nothing
        return {"data_parallel_sharding": megatron or "optim_grads_params"}
    if stated is None and distributed is not None:
        return {"data_parallel_sharding": "optim" if distributed else "no_shard"}
    return {}


def _recompute(args: Reader) -> dict[str, object]:
    granularity = args.word("recompute_granularity")
    old = args.flag("checkpoint_activations", "recompute_activations")
    if granularity is None and old is not None:
        how = "selective" if args.flag("recompute_activations") else "full"
        granularity = how if old else "none"
    modules = args.words("recompute_modules") if granularity == "selective" else None
    fields: dict[str, object] = {"recompute_granularity": granularity, "recompute_modules": modules}
    if granularity is None and args.stated("recompute_granularity"):
        fields["recompute_granularity"] = granularity = "none"  # Megatron-LM prints its default, which is no word
    if granularity in (None, "none") and args.has("recompute_num_layers", "checkpoint_num_layers"):
        fields["recompute_num_layers"] = None  # printed with its default, without effect
    if granularity == "full" and _recomputes_no_layer(args):
        return {"recompute_granularity": "none", "recompute_num_layers": None, "recompute_method": None}
    return fields


def _recomputes_no_layer(args: Reader) -> bool:
    """Returns whether full recomputation by method block covers 0 layers of every stage, and no layer by name."""
    if args.has("recompute_layer_ids") or args.word("recompute_method") != "block":
        return False
    return args.integer("recompute_num_layers", "checkpoint_num_layers") == 0


def _experts(args: Reader) -> dict[str, object]:
    fields: dict[str, object] = {
        "moe_token_dispatcher_type": args.word("moe_token_dispatcher_type"),
        "moe_flex_dispatcher_backend": args.word("moe_flex_dispatcher_backend"),
    }
    if args.has("num_experts") and args.flag("mock_data") is None and args.has(*_DATA):
        fields["mock_data"] = False  # a router spreads real text less evenly
    turbo = args.flag("enable_primus_turbo") is not False
    if (turbo and args.flag("use_turbo_deepep")) or args.flag("moe_enable_deepep"):
        fields |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
    if fields["moe_flex_dispatcher_backend"] == "hybridep":  # Megatron-LM prints DeepEP's number beside its own
        fields["moe_deepep_num_sms"] = args.integer("moe_flex_dispatcher_num_sms", "moe_hybridep_num_sms")
    if mega := turbo and args.flag(
        "use_turbo_mega_moe"
    ):  # its layer takes the place of Megatron-LM's, whatever else is set
        fields |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "mega_moe"}
    if mega or (turbo and any([args.flag("use_turbo_grouped_gemm"), args.flag("use_turbo_grouped_mlp")])):
        fields["moe_grouped_gemm"] = "fused"  # one persistent kernel, sizes on the device
    elif args.flag("moe_use_legacy_grouped_gemm"):
        fields["moe_grouped_gemm"] = "legacy"  # the grouped_gemm package: a product an expert on a few streams, 16 bits
    elif args.raw("moe_grouped_gemm") in CHOICES["moe_grouped_gemm"]:
        fields["moe_grouped_gemm"] = args.word("moe_grouped_gemm")  # a word where Megatron-LM has a flag
    elif args.flag("moe_grouped_gemm") is not None:
        fields["moe_grouped_gemm"] = "te" if args.flag("moe_grouped_gemm") else "loop"
    return fields


def _fusions(args: Reader) -> dict[str, object]:
    fields: dict[str, object] = {}
    fused = args.flag("cross_entropy_loss_fusion")
    if fused is not None:
        fields["cross_entropy_fusion"] = (args.word("cross_entropy_fusion_impl") or "native") if fused else "none"
    swiglu, gelu = args.flag("bias_swiglu_fusion"), args.flag("bias_gelu_fusion")
    either = args.flag("bias_activation_fusion")  # one name for both, of Megatron core's configuration
    said = gelu if args.flag("swiglu") is False or swiglu is None else swiglu
    fields["bias_activation_fusion"] = either if said is None else said
    if args.flag("use_flash_attn") and not args.has("attention_backend"):  # its name until 2024-12
        fields["attention_backend"] = "flash"
    return fields


def _schedule(args: Reader) -> dict[str, object]:
    if args.flag("patch_primus_pipeline"):
        schedules = table("primus", "schedules")
        name = schedules.get(args.choice("pp_algorithm", schedules) or "", "")
        return {"pipeline_schedule": name or None, **({"vpp": 2} if name in _V_MEMORY.values() else {})}
    if args.flag("patch_zero_bubble") and args.flag("enable_1f1b_v"):
        return {"pipeline_schedule": "v-1f1b", "vpp": 2}
    if args.flag("patch_zero_bubble") and args.flag("enable_zero_bubble"):
        if not args.flag("zero_bubble_v_schedule"):
            return {"pipeline_schedule": "zb-h1"}
        memory = args.choice("zero_bubble_v_schedule_mem_setup", _V_MEMORY) or "half"
        return {"pipeline_schedule": _V_MEMORY[memory], "vpp": 2}
    return {}


def _graphs(args: Reader) -> dict[str, object]:
    how = args.choice("cuda_graph_impl", _CAPTURES)
    old = args.flag("enable_cuda_graph", "external_cuda_graph")
    if how == "none" or (how is None and old is False):
        return {"cuda_graph_scope": ()}
    if how is None and not old:
        return {}
    if how == "full_iteration":
        return {"cuda_graph_scope": (how,)}
    scope = args.words("cuda_graph_scope", "cuda_graph_modules")
    return {"cuda_graph_scope": scope or ("full",)}  # an empty list means whole layers


def _adapters(args: Reader) -> dict[str, object]:
    """Reads adapters of Primus' SFT trainer (primus/configs/modules/megatron/sft_trainer.yaml)."""
    given = args.within("lora")
    if given.flag("enabled") is False or not args.raw("lora"):
        given.used |= given.unread.keys()
        return {}
    # where nothing says (AMD-AGI/Primus@fd1eeabb primus/backends/megatron/peft/lora.py; Megatron-Bridge alike)
    rank, targets = given.raw("dim"), given.words("target_modules") or BLOCK_LINEARS
    switches = {key: given.raw(key) for key in ("share_expert_adapters", "normalize_moe_lora") if given.has(key)}
    return {"lora": {"dim": 32 if rank is None else rank, "targets": [*targets], **switches}}
