"""Primus experiments that train with MaxText: axes of the mesh, batch per device, rematerialisation, quantisation.

Words and defaults: AI-Hypercomputer/maxtext@e591f30cb src/maxtext/configs/base.yml and configs/models,
layers/decoders.py ``get_remat_policy``; AMD-AGI/Primus@fd1eeabb primus/configs/modules/maxtext/pre_trainer.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from projector.errors import InputError, Problem, Unsupported
from projector.intake import aliases, known_settings, xla_flags
from projector.intake.loaded import Loaded
from projector.intake.primus_built import built, flat
from projector.intake.primus_experiment import Experiment
from projector.intake.primus_maxtext_model import MODEL_WORDS, model_of
from projector.intake.values import Reader
from projector.workload.checks import LIMITS
from projector.workload.model import Model

#: Settings that may change seconds or bytes and that nothing reads.
UNMODELLED = (
    *("enable_dropout", "dropout_rate", "optimizer_memory_offload", "parameter_memory_host_offload"),
    *("shard_optimizer_over_data", "num_vocab_tiling", "use_ring_of_experts", "use_sft"),
)
DEFAULTS: Mapping[str, object] = {
    "per_device_batch_size": 12.0,
    "max_target_length": 2048,
    "gradient_accumulation_steps": 1,
    "dtype": "bfloat16",
    "weight_dtype": "bfloat16",
    "quantization": "",
    "remat_policy": "full",
    "attention": "cudnn_flash_te",
    "opt_type": "adamw",
    "sparse_matmul": True,
    "megablox": True,
    "capacity_factor": -1.0,
    "dataset_type": "hf",
    "optimizer_memory_host_offload": False,
    "context_parallel_strategy": "all_gather",
    "num_layers_per_pipeline_stage": 1,
    "num_pipeline_repeats": -1,
    "num_pipeline_microbatches": -1,
    "dcn_data_parallelism": -1,
    "ici_fsdp_parallelism": -1,
}
_AXES = (
    *("data", "fsdp", "fsdp_transpose", "sequence", "context", "context_usp_ulysses", "tensor", "tensor_sequence"),
    *("pipeline", "expert", "autoregressive", "diloco"),
)
_PROJECTIONS = ("qkv_proj", "out_proj")
_ALL_PRODUCTS = (*_PROJECTIONS, "mlpwi", "mlpwo")
#: Policies by the named outputs that they keep; ``full`` (and no policy at all) keeps none.
POLICIES: Mapping[str, tuple[str, ...]] = {
    "minimal": _ALL_PRODUCTS,
    "minimal_with_quantization": _ALL_PRODUCTS,
    "minimal_with_context": (*_ALL_PRODUCTS, "context"),
    "minimal_with_context_and_quantization": (*_ALL_PRODUCTS, "context"),
    "minimal_flash": (*_ALL_PRODUCTS, "context"),
    "save_dot_except_mlp": _PROJECTIONS,
    "save_dot_except_mlpwi": (*_PROJECTIONS, "mlpwo"),
    "save_dot_with_context_except_mlp": (*_PROJECTIONS, "context"),
    "save_qkv_proj": ("qkv_proj",),
    "save_out_proj": ("out_proj",),
}
_OFFLOADED = ("qkv_proj_offloaded", "minimal_offloaded", "custom")
_QUANTISED: Mapping[str, tuple[str, str | None]] = {
    "fp8": ("fp8", "delayed"),
    "nanoo_fp8": ("fp8", "delayed"),
    "fp8_nanoo": ("fp8", "delayed"),
    "fp8_gpu": ("fp8", "tensorwise"),
    "fp8_full": ("fp8", "tensorwise"),
    "te_fp8_delayedscaling": ("fp8", "delayed"),
    "te_fp8_currentscaling": ("fp8", "tensorwise"),
    "te_mxfp8": ("mxfp8", None),
    "te_nvfp4": ("nvfp4", None),
}
_OPTIMIZERS = {"adamw": "adamw", "adam_pax": "adam", "sgd": "sgd_no_momentum", "muon": "muon"}
_CONTEXT = {"all_gather": "allgather", "ring": "p2p", "ulysses": "a2a", "usp": "a2a+p2p"}


#: Every name that is read.
WORDS = (
    *DEFAULTS,
    *(f"{level}_{axis}_parallelism" for level in ("ici", "dcn") for axis in _AXES),
    *MODEL_WORDS,
)


def load(experiment: Experiment, base: Model | None = None) -> Loaded:
    """The workload. ``base``: an architecture in place of the one that is named. Raises :class:`InputError` with what
    does not fit, :class:`Unsupported` for what nothing lowers."""
    args = Reader({**DEFAULTS, **{key: v for key, v in flat(experiment.settings).items() if v is not None}})
    model = base or model_of(args, experiment)
    axes = _mesh(args, experiment)
    each, steps = _samples(args), args.integer("gradient_accumulation_steps") or 1
    tp, cp, pp = (
        axes["tensor"] * axes["tensor_sequence"],
        axes["context"] * axes["context_usp_ulysses"],
        axes["pipeline"],
    )
    of_xla, wrong = xla_flags.stated(experiment.env)
    args.problems += wrong
    fields = {
        **aliases.stated(args, "maxtext"),
        **of_xla,
        "micro_batch_size": _micro_batch(args, each * tp * cp * pp, pp),
        "global_batch_size": max(1, round(each * steps * (experiment.gpus or 1))),
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "ep": axes["expert"],
        "optimizer": _one(args, "opt_type", _OPTIMIZERS),
        "mock_data": args.word("dataset_type") == "synthetic",
        "attention_backend": "unfused" if args.word("attention") == "dot_product" else "fused",
        "device_memory_fraction": _pool(args, experiment),
    }
    if cp > 1:
        fields["cp_comm_type"] = _one(args, "context_parallel_strategy", _CONTEXT)
    if args.word("weight_dtype") == "bf16":
        types = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
        fields |= {"use_precision_aware_optimizer": True, **dict.fromkeys(types, "bf16")}
    fields |= _sharding(axes)
    fields |= _pipeline(args, model, pp)
    fields |= _recompute(args)
    fields |= _precision(args)
    fields |= _experts(args, model, axes["expert"])
    made = built(experiment, model, fields, args, "maxtext", samples_per_gpu=each * steps)
    left = {key: experiment.overrides[key] for key in made.ignored if key in UNMODELLED}
    told = known_settings.sort(left, frozenset(), experiment.where, written=False)
    ignored = tuple(key for key in made.ignored if key not in left or key in told.neutral)
    return replace(made, ignored=ignored, unmodelled=told.unmodelled)


def _one(args: Reader, key: str, words: Mapping[str, str]) -> str | None:
    word = (args.word(key) or "").lower()
    if word not in words:
        args.problems.append((key, word, f"one of {', '.join(words)}"))
    return words.get(word)


def _mesh(args: Reader, experiment: Experiment) -> dict[str, int]:
    """Sizes of the axes over both networks. -1 inside a host: what its GPUs leave; between hosts: what the hosts leave,
    0 where nobody says how many there are.
    """
    inside = _level(args, "ici", experiment.gpus_per_node, experiment)
    hosts = None if experiment.gpus is None else max(1, experiment.gpus // experiment.gpus_per_node)
    between = _level(args, "dcn", hosts, experiment)
    return {axis: inside[axis] * between[axis] for axis in _AXES}


def _level(args: Reader, level: str, devices: int | None, experiment: Experiment) -> dict[str, int]:
    sizes = {axis: args.integer(f"{level}_{axis}_parallelism") or 1 for axis in _AXES}
    open_axes = [axis for axis, size in sizes.items() if size == -1]
    known = math.prod(size for size in sizes.values() if size > 0)
    wrong = [axis for axis, size in sizes.items() if size < -1]
    if wrong or len(open_axes) > 1:
        named = ", ".join(f"{level}_{axis}_parallelism={sizes[axis]}" for axis in (*wrong, *open_axes))
        raise InputError([Problem(experiment.where, level, named, "positive sizes, and -1 once")])
    if devices is not None and (devices % known or (not open_axes and devices != known and level == "ici")):
        found = " · ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1) or "1"
        key, of = f"{level}_…_parallelism", "GPUs of a host" if level == "ici" else "hosts"
        raise InputError([Problem(experiment.where, key, found, f"a product that makes {devices} {of}")])
    for axis in open_axes:
        sizes[axis] = 0 if devices is None else devices // known
    return sizes


def _samples(args: Reader) -> float:
    """Samples a device and micro-batch; a share of one where several devices work on a sample."""
    each = args.number("per_device_batch_size")
    if each is not None and 0 < each <= LIMITS["micro_batch_size"]:
        return each
    args.problems.append(("per_device_batch_size", each, "a number above 0"))
    return 1.0


def _micro_batch(args: Reader, batch: float, pp: int) -> int | None:
    """Samples of one data-parallel rank in a micro-batch: a pipeline cuts its batch into as many as it has stages."""
    cut = args.integer("num_pipeline_microbatches") or -1
    size = batch / (1 if pp == 1 else cut if cut > 0 else pp)
    if size < 1 or not float(size).is_integer():
        args.problems.append(("per_device_batch_size", size, "whole samples for every data-parallel rank"))
        return None
    return int(size)


def _sharding(axes: Mapping[str, int]) -> dict[str, object]:
    """Weights are cut over the axes fsdp, context and expert (``logical_axis_rules`` of ``embed``), copied over data."""
    over = ("fsdp", "fsdp_transpose", "sequence", "context", "context_usp_ulysses", "expert")
    shards = math.prod(axes[axis] for axis in over)
    if shards == 1:
        return {"data_parallel_sharding": "no_shard"}
    copied = axes["data"] != 1
    return {
        "data_parallel_sharding": "optim_grads_params",
        "data_parallel_shard_size": shards if shards and copied else None,
    }


def _pipeline(args: Reader, model: Model, pp: int) -> dict[str, object]:
    if pp == 1:
        return {}
    repeats, each = args.integer("num_pipeline_repeats") or -1, args.integer("num_layers_per_pipeline_stage") or 1
    if repeats < 1:
        repeats = max(1, model.num_layers // (pp * each))
    return {"pipeline_schedule": "looped-bfs", "vpp": repeats}


def _recompute(args: Reader) -> dict[str, object]:
    policy = (args.word("remat_policy") or "full").lower()
    if policy in _OFFLOADED:
        raise Unsupported(f"remat_policy {policy}: saved outputs that go to the host's memory")
    if policy in ("full", "none"):
        return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    if policy not in POLICIES:
        args.problems.append(("remat_policy", policy, f"one of full, {', '.join(POLICIES)}"))
    return {"recompute_granularity": "full", "recompute_saved": list(POLICIES.get(policy, ()))}


def _precision(args: Reader) -> dict[str, object]:
    word = str(args.raw("quantization") or "").strip('"').lower()
    if not word:
        kind = args.word("dtype")
        if kind not in ("bf16", "fp16", "fp32"):
            args.problems.append(("dtype", kind, "bfloat16, float16 or float32"))
        return {"precision": kind}
    if "int" in word:
        raise Unsupported(f"quantization {word}: products of whole numbers")
    if word not in _QUANTISED:
        args.problems.append(("quantization", word, f"empty or one of {', '.join(_QUANTISED)}"))
        return {}
    precision, recipe = _QUANTISED[word]
    return {"precision": precision, "fp8_recipe": recipe}


def _experts(args: Reader, model: Model, ep: int) -> dict[str, object]:
    """Capacity with einsums, or dropless with grouped products (megablox, ragged dot)."""
    if model.moe is None:
        return {}
    fields: dict[str, object] = {"moe_token_dispatcher_type": "alltoall" if ep > 1 else None}
    if args.flag("sparse_matmul"):
        args.flag("megablox")
        return fields | {"moe_grouped_gemm": "fused"}
    factor = args.number("capacity_factor") or -1.0
    if factor <= 0:
        raise Unsupported("dense products without a capacity: every token through every expert")
    return fields | {"moe_expert_capacity_factor": factor, "moe_pad_expert_input_to_capacity": True}


def _pool(args: Reader, experiment: Experiment) -> float | None:
    text = experiment.env.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "")
    try:
        return float(text) if text else None
    except ValueError:
        args.problems.append(("XLA_PYTHON_CLIENT_MEM_FRACTION", text, "a share of the device's memory"))
        return None
