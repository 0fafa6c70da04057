"""Reads torchtitan's job configurations (TOML, YAML, Primus' experiments) as far as the dialect's YAML cannot.

Names, values and sources: ``dialects/torchtitan.yaml``.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace

from projector.errors import InputError, Problem, Unsupported, raise_all
from projector.intake.dialect import dialect
from projector.intake.loaded import Loaded
from projector.intake.named_models import flat, model_named
from projector.intake.primus_experiment import Experiment
from projector.intake.settings import Settings
from projector.intake.values import Reader
from projector.workload import zoo
from projector.workload.model import Model

_DEGREES = ("tensor_parallel", "pipeline_parallel", "data_parallel_replicate", "context_parallel")
_CUTS = ("parallelism.pipeline_parallel_split_points", "parallelism.module_fqns_per_model_part")
#: A flavor that is a size: 8b, 0.6b, 30b-a3b, 17bx16e.
_SIZE = re.compile(r"(?:\d+x)?\d+(?:\.\d+)?[bm](?:x\d+e)?(?:[-_]?a\d+(?:\.\d+)?b)?")
#: Layers that embedding and loss count as where stages are cut, and the rule for what is left.
_REMAINDERS = {(1, 1): "weighted", (0, 0): "first"}


def parse(text: str, where: str, named: str = "") -> dict[str, object]:
    """Parses the sections of a TOML file. Raises :class:`InputError` for invalid TOML, with key ``named``."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise InputError([Problem(where, named, str(error)[:120], "valid TOML")]) from None


def load(content: Mapping[str, object], where: str, *, gpus: int | None, model: Model | None) -> Loaded:
    """Returns the workload of a job configuration (nested or dotted keys). ``gpus``: None where only the degrees say it.

    Raises :class:`InputError` with everything that does not fit, :class:`Unsupported` for what nothing lowers.
    """
    job = Settings(dialect("torchtitan"), _in_samples(content, where), where)
    settings = job.stated
    name = str(settings.get("model.name", ""))
    if name in job.dialect.tables["not_language"]:
        raise Unsupported(f"{where}: model.name {name}: not a language model")
    if "training.seq_len" not in settings:
        missing = Problem(where, "training.seq_len", "nothing", "the length of the sequences")
        raise InputError([*job.unread(written=True).problems, missing])
    each = _micro_batch(job)
    degrees = _gpus_of_degrees(job.args)
    stated, gpus = gpus, degrees if gpus is None else gpus
    if gpus is None and (job.args.integer("parallelism.data_parallel_replicate_degree") or 1) > 1:
        open_ = "replicas of shards over all ranks that are left"
        job.args.problems.append(("gpus", open_, "--gpus N, or a data_parallel_shard_degree above 0"))
    if stated is not None and degrees is not None and stated != degrees:
        found = f"{stated}, and degrees whose product is {degrees}"
        job.args.problems.append(("gpus", found, "the product of the degrees, or data_parallel_shard_degree = -1"))
    loaded = _build(job, model, gpus, named=model.name if model else "", each=each)
    counted: tuple[str, ...] = (
        (f"gpus={gpus} (the product of the degrees)",) if stated is None and gpus is not None else ()
    )
    if "activation_checkpoint.mode" not in settings:
        counted += ("activation_checkpoint=every second layer (torchtitan's default)",)
    return replace(loaded, assumed=(*counted, *loaded.assumed))


def _in_samples(content: Mapping[str, object], where: str) -> dict[str, object]:
    """Converts lengths and batches given in tokens into those in samples that torchtitan had before August 2026."""
    names = dialect("torchtitan").tables["tokens"]
    stated = flat(content)
    told = {word: stated[name] for word, name in names.items() if stated.get(name) not in (None, -1)}
    if not told:
        return dict(content)
    wrong = [Problem(where, names[word], value, "a whole number above 0") for word, value in told.items()
             if type(value) is not int or value < 1]  # fmt: skip
    length, pieces = told.get("length", 2048), told.get("pieces", 1)
    each, total = told.get("each", 16384), told.get("total", 0)
    if not wrong and (each % length or total % length):  # type: ignore[operator]
        wrong = [Problem(where, names["each"], each, f"a multiple of {names['length']} = {length}")]
    raise_all(wrong)
    samples = {"training.seq_len": length, "training.local_batch_size": each // length * pieces}  # type: ignore[operator]
    samples |= {"training.global_batch_size": total // length} if total else {}  # type: ignore[operator]
    samples |= {"parallelism.pipeline_parallel_microbatches": pieces} if "pieces" in told else {}
    twice = [
        Problem(where, name, stated[name], f"its size in tokens alone ({', '.join(names.values())})")
        for name in samples
        if name in stated
    ]
    raise_all(twice)
    return {**{name: value for name, value in stated.items() if name not in names.values()}, **samples}


def of_experiment(experiment: Experiment) -> Loaded:
    """Returns the workload of a Primus experiment. Raises :class:`InputError` with everything that does not fit."""
    titan = dialect("torchtitan")
    presets = dict(titan.tables["primus"])
    if not experiment.whole and experiment.model_name.endswith("-fp8"):  # what such a preset adds to the other
        presets["model.converters"] = ["quantize.linear.float8"]
    stated = Settings(titan, experiment.overrides, experiment.where, below=experiment.settings, preset=presets)
    return _build(stated, None, experiment.gpus, named=experiment.model_name)


def _build(job: Settings, model: Model | None, gpus: int | None, *, named: str, each: int | None = None) -> Loaded:
    """Builds the workload. ``named``: the model's name where no flavor states it; ``each``: the derived micro-batch size."""
    args, fields = job.args, job.fields
    model = model or _model(job, named)
    assumed = _precision(job, model)
    local, total = args.integer("training.local_batch_size") or 1, args.integer("training.global_batch_size")
    pp = args.integer("parallelism.pipeline_parallel_degree") or 1
    cut = each or args.integer("parallelism.pipeline_parallel_microbatch_size") or 1
    stated = total is not None and total > 0
    parts = args.words("compile.components") or ("model",)
    job.doubts += [f"compile.components={part}" for part in parts if part not in ("model", "loss")]
    compiled = args.flag("compile.enable") and "model" in parts
    fields |= {
        "micro_batch_size": cut if pp > 1 else local,
        "global_batch_size": total if stated else local,
        "pp": pp,
        "torch_compile": compiled,
    }
    if (fields.get("ep") or 1) == 1:  # without it torchtitan cuts experts as it cuts the rest (apply_moe_ep_tp)
        fields["etp"] = fields.get("tp")
    if pp > 1:
        fields |= _pipeline(job, model, pp)
    fields |= _data_parallel(args, gpus)
    if args.word("activation_checkpoint.mode") == "selective":
        fields |= _selective(args, model)
    if args.flag("primus_turbo.enable_primus_turbo"):
        grouped = args.flag("primus_turbo.use_turbo_grouped_mm") and model.moe is not None
        fields |= {
            "use_turbo_attention": args.flag("primus_turbo.use_turbo_attention"),
            "fp8_dot_product_attention": args.flag("primus_turbo.enable_attention_float8"),
            **({"moe_grouped_gemm": "fused"} if grouped else {}),
        }
    rank = None if stated else local
    return job.loaded(
        model, framework="torchtitan", gpus=gpus, assumed=assumed, samples_per_rank=rank, written=job.below is None
    )


def _micro_batch(job: Settings) -> int | None:
    """Returns the micro-batch size where the number of micro-batches is stated (until 2025); before the section
    ``parallelism`` existed, that number was the number of stages. Refuses stages cut by hand."""
    args, count = job.args, "parallelism.pipeline_parallel_microbatches"
    pp = args.integer("parallelism.pipeline_parallel_degree") or 1
    if pp <= 1:
        return None
    cut = next((key for key in _CUTS if args.raw(key)), None)
    if cut is not None:
        raise Unsupported(f"{job.where}: {cut}: pipeline stages cut by hand")
    given = args.integer(count)
    if given is None and job.was("parallelism.pipeline_parallel_degree"):
        given = pp
    if given is None:
        return None
    local = args.integer("training.local_batch_size") or 1
    if given < 1 or local % given:
        expected = f"a number that divides the {local} samples of training.local_batch_size"
        raise InputError([Problem(job.where, count, given, expected)])
    return local // given


def _gpus_of_degrees(args: Reader) -> int | None:
    """Returns the product of the degrees in GPUs, None where the shards take all ranks that are left."""
    names = (*(f"parallelism.{name}_degree" for name in _DEGREES), "parallelism.data_parallel_shard_degree")
    degrees = [args.integer(name) or 0 for name in names]
    return math.prod(degrees) if min(degrees) > 0 else None


def _model(job: Settings, named: str) -> Model:
    args, tables = job.args, job.dialect.tables
    name, flavor = args.word("model.name") or "", args.text("model.flavor").lower()
    bare = flavor.removesuffix("_irope").removesuffix("_flex").removesuffix("_varlen").removesuffix("_flex_attn")
    stated = {field: args.integer(f"model.{word}") for word, field in tables["sizes"].items()}
    changes: dict[str, object] = {field: value for field, value in stated.items() if value is not None}
    known = tables["flavors"].get(name, {}).get(bare, "")
    if known == "deepseek_v3":
        changes["mtp_num_layers"] = 0  # this revision of torchtitan has no multi-token prediction
    zoo_name = f"{name} {bare}" if bare else ""
    if bare and not known and (not _SIZE.fullmatch(bare) or zoo.find(zoo_name) in (None, zoo.find(name))):
        # a text that names a family and no size of it would mean its best-known member
        expected = "a published size (8B, 30B-A3B, …), or the architecture with --model"
        raise InputError([Problem(job.where, "model.flavor", zoo_name, expected)])
    assets = str(args.raw("model.hf_assets_path") or args.raw("model.tokenizer_path") or "").rpartition("/")[2]
    return model_named(
        (known, zoo_name, "" if bare else assets, "" if bare else named), job.where, "model.flavor", changes
    )


def _precision(job: Settings, model: Model) -> tuple[str, ...]:
    """Puts the precision into the job's fields; returns what is assumed: converters quantise experts only if listed."""
    args, fields = job.args, job.fields
    old = args.flag("float8.enable_float8_linear")
    words = "float8" if old else " ".join(args.words("model.converters") or ())
    experts = args.raw("quantize.grouped_mm.float8.fqns") or args.raw("quantize.grouped_mm.mx.fqns")
    if "mx" in words:
        fields["precision"] = "mxfp8"
    elif "float8" in words:
        recipe = args.word("quantize.linear.float8.recipe_name", "float8.recipe_name") or "tensorwise"
        fields |= {"precision": "fp8", "fp8_recipe": recipe.removesuffix("_with_gw_hp")}
        gathered = ("quantize.linear.float8", "float8")
        fields["fp8_param_gather"] = args.flag(*(f"{section}.enable_fsdp_float8_all_gather" for section in gathered))
    else:
        fields["precision"] = args.word("training.mixed_precision_param")
        return ()
    turbo = args.flag("primus_turbo.enable_primus_turbo") and args.flag("primus_turbo.use_moe_fp8")
    if model.moe is None or experts or turbo:
        return ()
    return (f"precision={fields['precision']} of the experts, too (there bf16)",)


def _pipeline(job: Settings, model: Model, pp: int) -> dict[str, object]:
    args, key = job.args, "parallelism.pipeline_parallel_schedule"
    schedules = {word.lower(): means for word, means in job.dialect.tables["schedules"].items()}
    name = args.word(key) or ""
    found = schedules.get(name.lower().replace("_", "").removeprefix("flexible"))
    if found is None:
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


def _data_parallel(args: Reader, gpus: int | None) -> dict[str, object]:
    """Returns FSDP2 over the shard degree (-1: all ranks left), replicated by the replicate degree (HSDP)."""
    copies = args.integer("parallelism.data_parallel_replicate_degree") or 1
    if copies < 1:
        args.problems.append(("parallelism.data_parallel_replicate_degree", copies, "a whole number of at least 1"))
    shards = args.integer("parallelism.data_parallel_shard_degree") or -1
    sizes = [args.integer(f"parallelism.{name}_parallel_degree") or 1 for name in ("tensor", "pipeline", "context")]
    fields: dict[str, object] = {"data_parallel_sharding": "optim_grads_params"}
    if shards == 1 and copies > 1:
        return {"data_parallel_sharding": "no_shard"}
    if shards > 1:
        fields["data_parallel_shard_size"] = shards * sizes[2]
    elif copies > 1 and gpus and gpus % (math.prod(sizes) * copies) == 0:
        fields["data_parallel_shard_size"] = gpus // (sizes[0] * sizes[1] * copies)
    return fields


def _selective(args: Reader, model: Model) -> dict[str, object]:
    """Returns what selective checkpointing recomputes: every n-th layer for a number n, listed operators for ``op``."""
    option = str(args.raw("activation_checkpoint.selective_ac_option"))
    if option == "op":
        return {"recompute_granularity": "selective", "recompute_modules": ["op_sac"]}
    if not option.isdigit():
        args.problems.append(("activation_checkpoint.selective_ac_option", option, "op or a whole number"))
        return {}
    every = int(option) or 1
    layers = [layer for layer in range(model.num_layers) if (layer + 1) % every == 0]
    return {"recompute_granularity": "full", "recompute_layer_ids": layers}
