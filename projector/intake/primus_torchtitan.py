"""Primus experiments that train with torchtitan, in the words of its job configuration.

Words and defaults: pytorch/torchtitan@73a0e6979 (the revision that Primus pins) torchtitan/config/job_config.py,
distributed/pipeline_parallel.py, distributed/activation_checkpoint.py; AMD-AGI/Primus@fd1eeabb
primus/configs/modules/torchtitan/pre_trainer.yaml.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

from projector.errors import InputError, Problem, Unsupported
from projector.intake import aliases
from projector.intake.loaded import Loaded
from projector.intake.primus_built import built, flat, model_named
from projector.intake.primus_experiment import Experiment
from projector.intake.torchtitan_words import left
from projector.intake.values import Reader
from projector.workload import zoo
from projector.workload.model import Model

#: Of Primus' preset, for what neither it nor the experiment states.
_DEFAULTS: Mapping[str, object] = {
    "training.local_batch_size": 8,
    "training.global_batch_size": -1,
    "training.seq_len": 2048,
    "training.mock_data": True,
    "training.mixed_precision_param": "bfloat16",
    "training.mixed_precision_reduce": "float32",
    "training.enable_cpu_offload": False,
    "optimizer.name": "AdamW",
    "parallelism.tensor_parallel_degree": 1,
    "parallelism.pipeline_parallel_degree": 1,
    "parallelism.context_parallel_degree": 1,
    "parallelism.expert_parallel_degree": 1,
    "parallelism.expert_tensor_parallel_degree": 1,
    "parallelism.data_parallel_replicate_degree": 1,
    "parallelism.data_parallel_shard_degree": -1,
    "parallelism.fsdp_reshard_after_forward": "default",
    "parallelism.pipeline_parallel_schedule": "1F1B",
    "parallelism.pipeline_parallel_microbatch_size": 1,
    "parallelism.enable_async_tensor_parallel": False,
    "activation_checkpoint.mode": "none",
    "activation_checkpoint.selective_ac_option": "2",
    "compile.enable": True,
    "debug.moe_force_load_balance": False,
    "primus_turbo.enable_primus_turbo": False,
}
#: (model, flavor) of torchtitan/models and the published shape it has; others by their texts.
FLAVORS: Mapping[tuple[str, str], str] = {
    ("llama3", "8b"): "llama3.1_8b",
    ("llama3", "70b"): "llama3.1_70b",
    ("llama3", "405b"): "llama3.1_405b",
    ("llama3", "1b"): "llama3.2_1b",
    ("llama3", "3b"): "llama3.2_3b",
    ("llama4", "17bx16e"): "llama4_scout",
    ("llama4", "17bx128e"): "llama4_maverick",
    ("deepseek_v3", "16b"): "deepseek_v3_16b",
    ("deepseek_v3", "236b"): "deepseek_v2",
    ("deepseek_v3", "671b"): "deepseek_v3",
}
#: A flavor that is a size: 8b, 0.6b, 30b-a3b, 17bx16e.
_SIZE = re.compile(r"(?:\d+x)?\d+(?:\.\d+)?[bm](?:x\d+e)?(?:[-_]?a\d+(?:\.\d+)?b)?")
#: Overrides of a flavor that Primus passes on (patches/model_override_patches.py) and the field of a model they mean.
_OVERRIDES = {
    "n_layers": "num_layers",
    "dim": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_query_groups",
    "vocab_size": "vocab_size",
    "head_dim": "kv_channels",
    "hidden_dim": "ffn_hidden_size",
    "inter_dim": "ffn_hidden_size",
}
#: Schedules of torch.distributed.pipelining and the chunks a rank holds where nothing says (2 for looped ones).
SCHEDULES: Mapping[str, tuple[str, int]] = {
    "1f1b": ("1f1b", 1),
    "gpipe": ("gpipe", 1),
    "interleaved1f1b": ("interleaved", 2),
    "loopedbfs": ("looped-bfs", 2),
    "interleavedzerobubble": ("interleaved-zb", 2),
    "zbvzerobubble": ("zbv", 2),
    "dualpipev": ("dualpipe-v", 2),
}
#: Layers that embedding and loss count as where stages are cut, and the rule for what is left.
_REMAINDERS = {(1, 1): "weighted", (0, 0): "first"}
_OPTIMIZERS = {"adamw": "adamw", "adam": "adam", "muon": "muon"}


def load(experiment: Experiment, base: Model | None = None) -> Loaded:
    """The workload. ``base``: an architecture in place of that of the flavor.

    Raises :class:`InputError` with everything that does not fit.
    """
    presets = dict(_DEFAULTS)
    if not experiment.whole and experiment.model_name.endswith("-fp8"):  # what such a preset adds to the other
        presets["model.converters"] = ["quantize.linear.float8"]
    args = Reader({**presets, **{key: v for key, v in flat(experiment.settings).items() if v is not None}})
    model = base or _model(args, experiment)
    precision, assumed = _precision(args, model)
    local, total = args.integer("training.local_batch_size") or 1, args.integer("training.global_batch_size")
    pp = args.integer("parallelism.pipeline_parallel_degree") or 1
    each = (args.integer("parallelism.pipeline_parallel_microbatch_size") or 1) if pp > 1 else local
    stated = total is not None and total > 0
    fields = {
        **aliases.stated(args, "torchtitan"),
        "micro_batch_size": each,
        "global_batch_size": total if stated else local,
        "pp": pp,
        "torch_compile": args.flag("compile.enable") and "model" in (args.words("compile.components") or ("model",)),
        **precision,
    }
    if (fields.get("ep") or 1) == 1:  # without it torchtitan cuts experts as it cuts the rest (apply_moe_ep_tp)
        fields["etp"] = fields.get("tp")
    fields |= _optimizer(args)
    fields |= _pipeline(args, model, pp)
    fields |= _data_parallel(args, experiment)
    fields |= _recompute(args, model)
    fields |= _turbo(args, model)
    rank = None if stated else local
    made = built(experiment, model, fields, args, "torchtitan", assumed=assumed, samples_per_rank=rank)
    told = left(flat(experiment.overrides), experiment.where)
    return replace(made, ignored=told.neutral, unmodelled=told.unmodelled)


def _model(args: Reader, experiment: Experiment) -> Model:
    name, flavor = args.word("model.name") or "", str(args.raw("model.flavor") or "").lower()
    bare = flavor.removesuffix("_irope").removesuffix("_flex").removesuffix("_varlen").removesuffix("_flex_attn")
    changes: dict[str, object] = {}
    for word, field in _OVERRIDES.items():
        value = args.integer(f"model.{word}")
        if value is not None:
            changes[field] = value
    known = FLAVORS.get((name, bare), "")
    if known == "deepseek_v3":
        changes["mtp_num_layers"] = 0  # this revision of torchtitan has no multi-token prediction
    alike = f"{name} {bare}" if bare else ""
    if bare and not known and (not _SIZE.fullmatch(bare) or zoo.find(alike) in (None, zoo.find(name))):
        # a text that names a family and no size of it would mean its best-known member
        expected = "a published size (8B, 30B-A3B, …), or the architecture with --model"
        raise InputError([Problem(experiment.where, "model.flavor", alike, expected)])
    assets = str(args.raw("model.hf_assets_path") or args.raw("model.tokenizer_path") or "").rpartition("/")[2]
    return model_named((known, alike, "" if bare else assets, "" if bare else experiment.model_name), experiment,
                       "model.flavor", changes)  # fmt: skip


def _precision(args: Reader, model: Model) -> tuple[dict[str, object], tuple[str, ...]]:
    """Converters quantise the linear layers; the experts only where their names are listed."""
    words = " ".join(args.words("model.converters") or ())
    experts = args.raw("quantize.grouped_mm.float8.fqns") or args.raw("quantize.grouped_mm.mx.fqns")
    if "mx" in words:
        fields: dict[str, object] = {"precision": "mxfp8"}
    elif "float8" in words:
        recipe = args.word("quantize.linear.float8.recipe_name", "float8.recipe_name") or "tensorwise"
        fields = {"precision": "fp8", "fp8_recipe": recipe.removesuffix("_with_gw_hp")}
        fields["fp8_param_gather"] = args.flag(
            "quantize.linear.float8.enable_fsdp_float8_all_gather", "float8.enable_fsdp_float8_all_gather"
        )
    else:
        word = args.word("training.mixed_precision_param")
        return {"precision": word if word in ("bf16", "fp16", "fp32") else "bf16"}, ()
    turbo = args.flag("primus_turbo.enable_primus_turbo") and args.flag("primus_turbo.use_moe_fp8")
    if model.moe is None or experts or turbo:
        return fields, ()
    return fields, (f"precision={fields['precision']} of the experts, too (there bf16)",)


def _optimizer(args: Reader) -> dict[str, object]:
    name = (args.word("optimizer.name") or "").lower()
    if name not in _OPTIMIZERS:
        args.problems.append(("optimizer.name", name, f"one of {', '.join(_OPTIMIZERS)}"))
    reduce = args.word("training.mixed_precision_reduce")
    fields: dict[str, object] = {"optimizer": _OPTIMIZERS.get(name), "grad_reduce_in_bf16": reduce == "bf16"}
    if args.word("training.dtype") == "bf16":  # weights, gradients and moments are made in that type
        types = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
        fields |= {"use_precision_aware_optimizer": True, **dict.fromkeys(types, "bf16")}
    return fields


def _pipeline(args: Reader, model: Model, pp: int) -> dict[str, object]:
    if pp == 1:
        return {}
    name = args.word("parallelism.pipeline_parallel_schedule") or ""
    found = SCHEDULES.get(name.lower().replace("_", "").removeprefix("flexible"))
    if found is None:
        key = "parallelism.pipeline_parallel_schedule"
        args.problems.append((key, name, "1F1B, GPipe, Interleaved1F1B, LoopedBFS, ZBVZeroBubble, DualPipeV, …"))
        return {}
    schedule, chunks = found
    each = args.integer("parallelism.pipeline_parallel_layers_per_stage")
    ends = tuple(args.integer(f"parallelism.pipeline_parallel_{end}_stage_less_layers") for end in ("first", "last"))
    weights = tuple(1 if end is None else end for end in ends)
    if each and each > 0:
        chunks = max(1, math.ceil((model.num_layers + sum(weights)) / each) // pp)
    if weights not in _REMAINDERS:
        raise Unsupported(f"embedding and loss counted as {weights[0]} and {weights[1]} layers of a pipeline")
    return {"pipeline_schedule": schedule, "vpp": chunks, "pipeline_remainder": _REMAINDERS[weights]}


def _data_parallel(args: Reader, experiment: Experiment) -> dict[str, object]:
    """FSDP2 over the shard degree (-1: all ranks left), replicated as often as is asked (HSDP)."""
    copies = args.integer("parallelism.data_parallel_replicate_degree") or 1
    shards = args.integer("parallelism.data_parallel_shard_degree") or -1
    reshard = args.word("parallelism.fsdp_reshard_after_forward")
    fields: dict[str, object] = {"fsdp_reshard_after_forward": {"always": True, "never": False}.get(reshard or "")}
    sizes = [args.integer(f"parallelism.{name}_parallel_degree") or 1 for name in ("tensor", "pipeline", "context")]
    if shards == 1 and copies > 1:
        return fields | {"data_parallel_sharding": "no_shard"}
    if shards > 1:
        fields["data_parallel_shard_size"] = shards * sizes[2]
    elif copies > 1 and experiment.gpus and experiment.gpus % (math.prod(sizes) * copies) == 0:
        fields["data_parallel_shard_size"] = experiment.gpus // (sizes[0] * sizes[1] * copies)
    return fields | {"data_parallel_sharding": "optim_grads_params"}


def _recompute(args: Reader, model: Model) -> dict[str, object]:
    """``selective``: every n-th layer by a number, or all but listed operators by ``op``."""
    mode = args.word("activation_checkpoint.mode")
    option = str(args.raw("activation_checkpoint.selective_ac_option"))
    if mode == "none":
        return {"recompute_granularity": "none"}
    if mode == "full":
        return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    if mode != "selective":
        args.problems.append(("activation_checkpoint.mode", mode, "none, selective or full"))
        return {}
    if option == "op":
        return {"recompute_granularity": "selective", "recompute_modules": ["op_sac"]}
    if not option.isdigit():
        args.problems.append(("activation_checkpoint.selective_ac_option", option, "op or a whole number"))
        return {}
    every = int(option) or 1
    layers = [layer for layer in range(model.num_layers) if (layer + 1) % every == 0]
    return {"recompute_granularity": "full", "recompute_layer_ids": layers}


def _turbo(args: Reader, model: Model) -> dict[str, object]:
    fields: dict[str, object] = {}
    if args.flag("primus_turbo.enable_primus_turbo"):
        fields["use_turbo_attention"] = args.flag("primus_turbo.use_turbo_attention")
        fields["fp8_dot_product_attention"] = args.flag("primus_turbo.enable_attention_float8")
        if args.flag("primus_turbo.use_turbo_grouped_mm") and model.moe is not None:
            fields["moe_grouped_gemm"] = "fused"
    backend = args.word("parallelism.expert_parallel_comm_backend")
    if backend in ("deepep", "hybridep"):
        fields |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": backend}
    return fields
