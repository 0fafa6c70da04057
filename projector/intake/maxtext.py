"""Reads MaxText's configurations (``base.yml`` and files over it) and those inside Primus' experiments, as far as the
dialect's YAML cannot: mesh axes, batches, rematerialisation policies, architectures by MaxText's names and sizes.

Names, values and sources: ``dialects/maxtext.yaml``.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from projector.errors import InputError, Problem, Unsupported
from projector.intake import aliases
from projector.intake.dialect import dialect
from projector.intake.loaded import Loaded
from projector.intake.named_models import model_named
from projector.intake.primus_experiment import Experiment
from projector.intake.settings import Settings
from projector.intake.values import Reader
from projector.workload import zoo
from projector.workload.model import Model
from projector.workload.model_schema import model_from_mapping
from projector.workload.value_checks import LIMITS

_AXIS = re.compile(r"(ici|dcn)_\w+_parallelism")
_MARKS = ("per_device_batch_size", "max_target_length", "base_emb_dim", "remat_policy", "base_num_decoder_layers")
_REQUIRED = ("per_device_batch_size", "max_target_length")
_GPUS_OF_HOST = 8  # GPUs of a host
_AXES = (
    *("data", "fsdp", "fsdp_transpose", "sequence", "context", "context_usp_ulysses", "tensor", "tensor_sequence"),
    *("pipeline", "expert", "autoregressive", "diloco"),
)
#: Axes over which weights are cut (``logical_axis_rules`` of ``embed``); they are copied over data.
_SHARDED = ("fsdp", "fsdp_transpose", "sequence", "context", "context_usp_ulysses", "expert")


def is_maxtext(mapping: Mapping[str, object]) -> bool:
    """Returns whether ``mapping`` has MaxText's keys: a base file, a mesh axis, or two of its own settings."""
    axes = [key for key in mapping if _AXIS.fullmatch(key)]
    return bool(axes) or "base_config" in mapping or sum(mark in mapping for mark in _MARKS) > 1


def completed(content: Mapping[str, object], said: Mapping[str, object]) -> dict[str, object]:
    """Returns ``content`` with the device's batch and the length of ``said`` where ``content`` leaves them open. A device's
    batch is a rank's micro-batch where no axis cuts samples or layers."""
    cut = re.compile(r"(ici|dcn)_(?!data|fsdp|expert)\w+_parallelism")
    alone = all(value == 1 for key, value in content.items() if cut.fullmatch(key))
    left = {"per_device_batch_size": said["micro_batch_size"]} if alone and "micro_batch_size" in said else {}
    return dialect("maxtext").completed({**left, **content}, said)


def load(
    content: Mapping[str, object], where: str, *, gpus: int | None, model: Model | None,
    words: Mapping[str, object] | None = None, env: Mapping[str, str] | None = None,
) -> Loaded:  # fmt: skip
    """Returns the workload of a file with ``words`` of the command line over it, started in ``env``.

    ``gpus``: None where only the axes say how many.

    A file's sizes mean nothing beside ``model_name``, whose own file is put over them, whatever ``override_model_config``
    says (src/maxtext/configs/pyconfig.py ``_initialize_pydantic``); words count.

    Raises :class:`InputError` with everything that does not fit, :class:`Unsupported` for what nothing lowers.
    """
    base = Path(str(content.get("base_config") or "base.yml")).name
    if base != "base.yml":
        raise InputError([Problem(where, "base_config", base, "base.yml, or that file's settings in this one")])
    content, idle = _sizes({**content, **(words or {})}, words or {})
    job = Settings(dialect("maxtext"), content, where)
    if not set(_REQUIRED) & set(content):
        expected = "it stated: the file is an architecture alone without a batch and a length"
        missing = [Problem(where, key, "nothing", expected) for key in _REQUIRED]
        raise InputError([*job.unread(written=True).problems, *missing])
    each, hosts = (math.prod(_level(job, level, None).values()) for level in ("ici", "dcn"))
    each = each or _GPUS_OF_HOST
    counted = gpus if gpus is not None else each * hosts if hosts else None
    if gpus is not None and hosts and gpus != each * hosts:
        found = f"{gpus}, and axes whose product is {each * hosts}"
        raise InputError([Problem(where, "gpus", found, "the product of the axes, or one of them -1")])
    assumed = [f"gpus={counted} (the product of the axes)"] if gpus is None and counted is not None else []
    assumed += [f"{key} of {content['model_name']}, not {value}" for key, value in idle.items()]
    assumed += [f"{key}={job.dialect.default[key]} (base.yml)" for key in _REQUIRED if key not in content]
    named = model.name if model else Path(where).stem
    loaded = _build(job, model, named, gpus=counted, each=min(each, counted or each), env=env or {})
    return replace(loaded, assumed=(*assumed, *loaded.assumed))


def of_experiment(experiment: Experiment) -> Loaded:
    """Returns the workload of a Primus experiment. Raises :class:`InputError` with everything that does not fit."""
    maxtext = dialect("maxtext")
    stated = Settings(
        maxtext, experiment.overrides, experiment.where, below=experiment.settings, preset=maxtext.tables["primus"]
    )
    each, env = experiment.gpus_per_node, experiment.env
    return _build(stated, None, experiment.model_name, gpus=experiment.gpus, each=each, env=env)


def _build(
    job: Settings, model: Model | None, named: str, *, gpus: int | None, each: int, env: Mapping[str, str]
) -> Loaded:
    """Builds the workload. ``model``: an architecture in place of the named one; ``named``: what names the model where the
    settings do not; ``each``: GPUs of a host; ``env``: environment of the launch."""
    args, fields = job.args, job.fields
    model = model or _model(job, named)
    # Sizes of the axes over both networks. -1 inside a host: what its GPUs leave; between hosts: what the hosts
    # leave, 0 where nobody says how many there are.
    inside = _level(job, "ici", each)
    between = _level(job, "dcn", None if gpus is None else max(1, gpus // each))
    axes = {axis: inside[axis] * between[axis] for axis in _AXES}
    batch, steps = _samples(args), args.integer("gradient_accumulation_steps") or 1
    tp, pp = axes["tensor"] * axes["tensor_sequence"], axes["pipeline"]
    cp = axes["context"] * axes["context_usp_ulysses"]
    flags, wrong = of_xla(env)
    started = Reader(env)
    fields |= {**flags, "device_memory_fraction": started.number("XLA_PYTHON_CLIENT_MEM_FRACTION")}
    args.problems += [*wrong, *started.problems]
    fields |= {
        "micro_batch_size": _micro_batch(args, batch * tp * cp * pp, pp),
        "global_batch_size": max(1, round(batch * steps * (gpus or 1))),
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "ep": axes["expert"],
    }
    if cp > 1:
        fields["cp_comm_type"] = job.one_of("context_parallel_strategy", "context")
    fields |= _sharding(axes)
    if pp > 1:
        fields |= _pipeline(args, model, pp)
    fields |= {**_recompute(job), **_precision(job)}
    if model.moe is not None:
        fields |= _experts(args, axes["expert"])
    return job.loaded(model, framework="maxtext", gpus=gpus, samples_per_gpu=batch * steps, written=job.below is None)


def _sizes(content: Mapping[str, object], words: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Returns (settings, ignored ones): a model without a name gets base.yml's sizes; for a named model the architecture of
    the file does not count, and what differs from base.yml in it is returned as ignored."""
    sizes, repeated = dialect("maxtext").tables["sizes"], _repeated()
    if content.get("model_name", "default") == "default":
        return {**sizes, **content}, {}
    idle = {key: value for key, value in content.items() if key in repeated and key not in words}
    return {key: value for key, value in content.items() if key not in idle}, {
        key: value for key, value in idle.items() if value not in repeated[key]
    }


def _repeated() -> Mapping[str, list[object]]:
    tables = dialect("maxtext").tables
    return {**{key: [value] for key, value in tables["sizes"].items()}, **tables["repeated"]}


def _level(job: Settings, level: str, devices: int | None) -> dict[str, int]:
    sizes = {axis: job.args.integer(f"{level}_{axis}_parallelism") or 1 for axis in _AXES}
    open_axes = [axis for axis, size in sizes.items() if size == -1]
    known = math.prod(size for size in sizes.values() if size > 0)
    wrong = [axis for axis, size in sizes.items() if size < -1]
    if wrong or len(open_axes) > 1:
        named = ", ".join(f"{level}_{axis}_parallelism={sizes[axis]}" for axis in (*wrong, *open_axes))
        raise InputError([Problem(job.where, level, named, "positive sizes, and -1 once")])
    if devices is not None and (devices % known or (not open_axes and devices != known and level == "ici")):
        found = " · ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1) or "1"
        key, of = f"{level}_…_parallelism", "GPUs of a host" if level == "ici" else "hosts"
        raise InputError([Problem(job.where, key, found, f"a product that makes {devices} {of}")])
    for axis in open_axes:
        sizes[axis] = 0 if devices is None else devices // known
    return sizes


def _samples(args: Reader) -> float:
    """Returns the samples of a device in a micro-batch; below 1 where several devices share a sample."""
    each = args.number("per_device_batch_size")
    if each is not None and 0 < each <= LIMITS["micro_batch_size"]:
        return each
    args.problems.append(("per_device_batch_size", each, "a number above 0"))
    return 1.0


def _micro_batch(args: Reader, batch: float, pp: int) -> int | None:
    """Returns one rank's samples in a micro-batch; a pipeline cuts a batch into one for each stage by default."""
    cut = args.integer("num_pipeline_microbatches") or -1
    size = batch / (1 if pp == 1 else cut if cut > 0 else pp)
    if size < 1 or not float(size).is_integer():
        args.problems.append(("per_device_batch_size", size, "whole samples for every data-parallel rank"))
        return None
    return int(size)


def _sharding(axes: Mapping[str, int]) -> dict[str, object]:
    shards = math.prod(axes[axis] for axis in _SHARDED)
    if shards == 1:
        return {"data_parallel_sharding": "no_shard"}
    size = shards if shards and axes["data"] != 1 else None
    return {"data_parallel_sharding": "optim_grads_params", "data_parallel_shard_size": size}


def _pipeline(args: Reader, model: Model, pp: int) -> dict[str, object]:
    repeats, each = args.integer("num_pipeline_repeats") or -1, args.integer("num_layers_per_pipeline_stage") or 1
    if repeats < 1:
        repeats = max(1, model.num_layers // (pp * each))
    return {"pipeline_schedule": "looped-bfs", "vpp": repeats}


def _recompute(job: Settings) -> dict[str, object]:
    policy = (job.args.word("remat_policy") or "full").lower()
    if policy in job.dialect.tables["offloaded"]:
        raise Unsupported(f"remat_policy {policy}: saved outputs that go to the host's memory")
    if policy in ("full", "none"):
        return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return {"recompute_granularity": "full", "recompute_saved": job.one_of("remat_policy", "policies") or []}


def _precision(job: Settings) -> Mapping[str, object]:
    word = job.args.text("quantization").strip('"').lower()
    if not word:
        kind = job.args.word("dtype")
        if kind not in ("bf16", "fp16", "fp32"):
            job.args.problems.append(("dtype", kind, "bfloat16, float16 or float32"))
        return {"precision": kind}
    if "int" in word:
        raise Unsupported(f"quantization {word}: products of whole numbers")
    fields: Mapping[str, object] = job.one_of("quantization", "quantised") or {}
    return fields


def _experts(args: Reader, ep: int) -> dict[str, object]:
    """Reads how experts compute: with a capacity and einsums, or dropless with grouped products (megablox, ragged dot)."""
    fields: dict[str, object] = {"moe_token_dispatcher_type": "alltoall" if ep > 1 else None}
    if args.flag("sparse_matmul"):
        args.flag("megablox")
        return fields | {"moe_grouped_gemm": "fused"}
    factor = args.number("capacity_factor") or -1.0
    if factor <= 0:
        raise Unsupported("dense products without a capacity: every token through every expert")
    return fields | {"moe_expert_capacity_factor": factor, "moe_pad_expert_input_to_capacity": True}


#: What JAX_OPTIMIZATION_LEVEL sets of XLA (NVIDIA/JAX-Toolbox@bcbbfa57 docs/GPU_performance.md, "Effect details (O1)").
_FLAGS_OF_LEVELS = ("xla_gpu_enable_pipelined_all_gather", "xla_gpu_enable_while_loop_double_buffering")
_LEVELS = ("O1", "O2", "O3")


def of_xla(env: Mapping[str, str]) -> tuple[dict[str, object], list[tuple[str, object, str]]]:
    """Returns the recipe fields that ``XLA_FLAGS`` and ``JAX_OPTIMIZATION_LEVEL`` state, and bad values as
    ``(key, found, expected)``. The last of a repeated flag counts; a flag without a value is on."""
    text = env.get("XLA_FLAGS", "")
    try:
        words = shlex.split(text)
    except ValueError:
        return {}, [("XLA_FLAGS", text, "flags whose quotes are closed")]
    parts = (word.lstrip("-").partition("=") for word in words)
    told = dict.fromkeys(_FLAGS_OF_LEVELS, "true") if env.get("JAX_OPTIMIZATION_LEVEL") in _LEVELS else {}
    args = Reader({**told, **{name: value if is_told else "true" for name, is_told, value in parts}})
    return aliases.stated(args, "xla"), args.problems


def _model(job: Settings, named: str) -> Model:
    """Returns the model that ``model_name`` means, with the stated sizes over it. Raises :class:`InputError`."""
    tables, args = job.dialect.tables, job.args
    name = args.text("model_name").replace("-Instruct", "") or "default"  # as MaxText finds that model's file
    says = job.stated
    if job.below is not None or name != "default":  # where a preset repeats a default it says nothing of a named model
        idle = {} if name == "default" else _repeated()
        under = {
            key: value for key, value in (job.below or {}).items() if key not in says and value not in idle.get(key, ())
        }
        args = Reader({key: value for key, value in {**under, **says}.items() if value is not None})
    changes: dict[str, object] = {}
    changes |= {field: value for word, field in tables["fields"].items() if (value := args.integer(word)) is not None}
    experts = {field: args.integer(word) for word, field in tables["experts"].items()}
    routed = {field: value for field, value in experts.items() if value is not None and value > 0}
    shared, tied = args.integer("shared_experts") or 0, args.flag("logits_via_embedding")
    if tied is not None:
        changes["untie_embeddings_and_output_weights"] = not tied
    if activations := args.words("mlp_activations"):
        changes["gated_linear_unit"] = len(activations) > 1
    layers = {key: args.raw(key) for key in ("decoder_block", "use_qk_norm", "shared_experts")}
    scale = job.args.integer("global_parameter_scale") or 1
    job.args.used |= args.used
    job.args.problems += args.problems if args is not job.args else []
    if name != "default":
        if scale > 1:
            raise Unsupported(f"global_parameter_scale {scale} of {name}: a published model made larger")
        if routed.get("num_experts", 0) > 1:
            changes["moe"] = routed
        changes.setdefault("mtp_num_layers", 0)  # of base.yml: no model's own file states them
        job.doubts += [f"{key}={value} of {name}" for key, value in layers.items() if value is not None]
        found = zoo.named(tables["models"].get(name, name))
        return model_named((found or "",), job.where, "model_name", changes, written=name)
    if not changes and scale == 1:  # nothing but the file's name says what it is
        return model_named((named,), job.where, "model_name", {})
    usual = {tables["fields"][word]: value for word, value in tables["sizes"].items()}
    sizes = _scaled({**usual, **changes}, scale, job.where)
    return _custom(job, args, named, sizes, _scaled(routed, scale, job.where), shared)


def _scaled(sizes: Mapping[str, object], scale: int, where: str) -> dict[str, object]:
    """Returns ``sizes`` for about ``scale`` times the parameters: heads and MLP, then width, then layers double in turn
    (pyconfig.py ``get_individual_scales``)."""
    if scale < 1 or scale & (scale - 1):
        raise InputError([Problem(where, "global_parameter_scale", scale, "a power of two")])
    turns, rest = divmod(scale.bit_length() - 1, 3)
    wide = dict.fromkeys(
        ("num_attention_heads", "num_query_groups", "ffn_hidden_size", "moe_ffn_hidden_size"), turns + (rest > 0)
    )
    doublings = {**wide, "hidden_size": turns + (rest > 1), "num_layers": turns}
    return {
        key: value << doublings.get(key, 0) if type(value) is int and value > 0 else value
        for key, value in sizes.items()
    }


def _custom(
    job: Settings, args: Reader, named: str, changes: Mapping[str, object], routed: Mapping[str, object], shared: int
) -> Model:
    style = args.word("decoder_block") or "llama2"
    if style not in job.dialect.tables["plain"]:
        raise Unsupported(f"decoder_block {style} of a model that no published name gives")
    zoo_name = zoo.find(named)
    mapping: dict[str, object] = {
        "gated_linear_unit": True,
        "qk_layernorm": bool(args.flag("use_qk_norm")),
        "normalization": "LayerNorm" if style == "gpt3" else "RMSNorm",
        **changes,
        "name": named,
        "family": zoo.load(zoo_name).family if zoo_name else named,
    }
    count, width = routed.get("num_experts"), routed.get("moe_ffn_hidden_size", mapping["ffn_hidden_size"])
    if isinstance(count, int) and count > 1:
        experts: dict[str, object] = {"moe_router_topk": 1, **routed, "moe_ffn_hidden_size": width}
        if shared and isinstance(width, int):
            experts["moe_shared_expert_intermediate_size"] = shared * width
        mapping["moe"] = experts
    model, problems = model_from_mapping(mapping, job.where, "")
    job.args.used |= args.used
    if model is None:
        raise InputError(problems)
    return model
