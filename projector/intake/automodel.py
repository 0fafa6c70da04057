"""Reads NeMo AutoModel's configurations, as far as ``dialects/automodel.yaml`` cannot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase

from projector.intake import adapters
from projector.intake.dialect import dialect, loose
from projector.intake.loaded import Loaded
from projector.intake.settings import Settings
from projector.workload.model import Model
from projector.workload.optimizers import named

_RANK = 8  # of PeftConfig (NVIDIA-NeMo/Automodel nemo_automodel/components/_peft/lora.py)


def load(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """Returns the workload, whose number of GPUs comes from elsewhere. Raises :class:`InputError` with everything
    that does not fit, :class:`Unsupported` for other trainings."""
    job = Settings(dialect("automodel"), content, where)
    args, fields = job.args, job.fields
    name = args.text("model.pretrained_model_name_or_path")
    model = model or job.published("model.pretrained_model_name_or_path")
    tokens, kind = args.integer("packed_sequence.packed_sequence_size"), job.class_name("dataset._target_")
    fields["seq_length"] = tokens or fields["seq_length"]
    if not fields["seq_length"]:
        expected = "tokens of a sample, a packed_sequence.packed_sequence_size, or --seq N"
        args.problems.append(("dataset.seq_length", "nothing", expected))
    elif not tokens and not kind.startswith("Mock"):
        job.doubts.append(f"dataset._target_={kind or None}: {loose(fields['seq_length'])}")
    elif tokens:
        job.doubts.append("packed_sequence_size (attention inside each document: counted over the whole sample)")
    fields["optimizer"] = named(job.class_name("optimizer._target_").removeprefix("Fused"))
    loss = job.class_name("loss_fn._target_")
    fields["cross_entropy_fusion"] = job.dialect.tables["losses"].get(loss)
    if loss and loss not in job.dialect.tables["losses"]:
        job.doubts.append(f"loss_fn={loss}")
    if args.flag("fp8.enabled"):
        scaled = (args.word("fp8.recipe_name") or "tensorwise").removesuffix("_with_gw_hp")
        fields |= {"precision": "fp8", "fp8_recipe": scaled}
    if content.get("peft"):
        _adapters(job)
    adapters.unpaired(job, "quantization.")
    if (fields["pp"] or 1) != 1:
        _pipeline(job, model)
    gpus = _ranks(job)
    counted = (f"gpus={gpus} (the product of the sizes)",) if gpus else ()
    known = f"model={model.name if model else name} ({name})"
    nodes = None if gpus else args.integer("benchmark.num_nodes")
    return job.loaded(model, gpus=gpus, nodes=nodes, framework="automodel", assumed=(*counted, known))


def _adapters(job: Settings) -> None:
    marks = job.args.words("peft.target_modules") or ()
    named = [each for each in adapters.LINEARS if any(fnmatchcase(f"model.layers.0.{each}", mark) for mark in marks)]
    named += ["all-linear"] if job.args.flag("peft.match_all_linear") else []
    adapters.put(job, job.args.integer("peft.dim") or _RANK, named, "quantization.")


def _pipeline(job: Settings, model: Model | None) -> None:
    """Puts the pipeline into the job's fields: each local batch is cut into micro-batches and runs through it alone."""
    args, fields = job.args, job.fields
    local, cut = fields["micro_batch_size"], args.integer("distributed.pipeline.pp_microbatch_size") or 1
    schedule = job.one_of("distributed.pipeline.pp_schedule", "schedules")
    each = args.integer("distributed.pipeline.layers_per_stage")
    fields |= {"micro_batch_size": cut, "pipeline_schedule": schedule, "pipeline_remainder": "first"}
    stages, pp = 1 if schedule == "1f1b" else 2, args.integer("distributed.pp_size") or 1
    if each and model:
        up = args.word("distributed.pipeline.round_virtual_stages_to_pp_multiple") != "down"
        stages = (math.ceil if up else math.floor)(math.ceil(model.num_layers / each) / pp)
    fields["vpp"] = max(1, stages)
    job.doubts.append(f"local_batch_size={local} (the pipeline drains after so many samples: counted as once a step)")


def _ranks(job: Settings) -> int | None:
    """Returns the product of the sizes in GPUs; None where data parallelism takes all ranks that are left."""
    sizes = [job.fields[name] or 1 for name in ("tp", "pp", "cp")]
    ranks, copies = (_size(job, f"distributed.dp_{name}") for name in ("size", "replicate_size"))
    if copies and copies > 1 and ranks:
        job.fields["data_parallel_shard_size"] = ranks // copies * sizes[2]  # type: ignore[operator]
    elif copies and copies > 1:
        job.doubts.append(f"dp_replicate_size={copies} (sharded over all ranks without --data-parallel-shard-size)")
    return ranks * math.prod(sizes) if ranks else None  # type: ignore[arg-type]


def _size(job: Settings, setting: str) -> int | None:
    job.args.used.add(setting)
    return None if job.args.raw(setting) in (None, "none") else job.args.integer(setting)
