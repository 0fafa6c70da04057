"""One record → one measured run: the order in which its fields are read."""

from __future__ import annotations

import re
from dataclasses import fields

from harness.ingest.architecture import architecture
from harness.ingest.arguments import arguments
from harness.ingest.evidence import settle
from harness.ingest.fields import precision
from harness.ingest.importmap import ImportMap
from harness.ingest.moe_words import moe_words
from harness.ingest.parallel import Sizes, sizes
from harness.ingest.provenance import gpu_of, gpus_per_node, source_of, stack_of
from harness.ingest.recipe_words import Words, recompute, schedule, sharding
from harness.ingest.record import Record, boolean, integer
from harness.ingest.throughput import measured
from harness.runs import Measured, MeasuredRun, Stack
from projector.errors import Unsupported
from projector.frameworks import flops
from projector.hardware import catalogue
from projector.workload.model import Model
from projector.workload.recipe import LoRA, Recipe
from projector.workload.schema import parse_recipe, recipe_to_mapping
from projector.workload.workload import Workload

__all__ = ["convert_row"]

_RECIPE_FIELDS = frozenset(field.name for field in fields(Recipe))


def convert_row(record: Record, index: int, known: ImportMap) -> MeasuredRun:
    """Read every field; what stops a projection is refused on the record and becomes the run's ``problem``."""
    run_id = record.text("id") or f"row-{index}"
    for key, value in known.assigned(run_id).items():
        record.values[key] = value
    doubtful = known.doubt(run_id)
    if doubtful:
        record.refuse(f"figure not usable: {doubtful}")
    gpu, stack, source = gpu_of(record), stack_of(record), source_of(record, known.strip)
    model, name = architecture(record)
    words = _words(record, stack)
    size = _sizes(record, model, stack, words)
    recipe = _recipe(record, gpu, stack, model, size, words)
    workload = None
    if model is not None and recipe is not None and size.gpus:
        workload = Workload(
            model=model, recipe=recipe, gpus=size.gpus, framework=stack.framework, framework_date=stack.date
        )
    figures = _figures(record, stack, workload, size)
    if workload is not None:
        workload = settle(record, workload, figures, _mtp_stated(record))
        model, recipe = workload.model, workload.recipe
    partial = {} if recipe else _partial(size, words)
    if doubtful:
        figures, partial = _set_aside(figures, partial)
    note = _note(record, known)
    return MeasuredRun(
        id=run_id,
        source=source,
        gpu=gpu,
        gpus=size.gpus or 0,
        stack=stack,
        model=model,
        recipe=recipe,
        measured=figures,
        model_name=name,
        gpus_per_node=gpus_per_node(record, size.gpus) if gpu and not _rack(gpu) else None,
        cluster=record.text("cluster") or None,
        group=record.text("group"),
        switches=partial,
        assumed=tuple(record.assumed),
        problem="; ".join(record.refused),
        notes=note,
    )


def _set_aside(figures: Measured, switches: dict[str, object]) -> tuple[Measured, dict[str, object]]:
    """Figures that must not be compared with: kept as they were printed, out of the measured fields."""
    printed = {f"printed_{name}": getattr(figures, name) for name in ("step_seconds", "tgs", "tflops_per_gpu")}
    return Measured(), switches | {name: value for name, value in printed.items() if value is not None}


def _rack(gpu: str) -> bool:
    """A fast domain wider than a host (NVL72): nodes of a table are hosts, not domains."""
    if gpu not in catalogue.gpu_names():
        return False
    cluster = catalogue.default_cluster(gpu)
    return cluster.gpus_per_node > cluster.gpus_per_host


def _note(record: Record, known: ImportMap) -> str:
    note = record.text("note")
    for pattern in known.strip:
        note = re.sub(pattern, "", note)
    return re.sub(r"\s+", " ", note).strip()


def _words(record: Record, stack: Stack) -> dict[str, object]:
    """Recipe fields from arguments first, then from texts that fill what is left open."""
    found = arguments(record)
    per_op = "mlp" if stack.framework == "torchtitan" else ""
    zero = record.text("zero")
    texts: list[Words] = []
    if text := record.text("recompute"):
        texts.append(recompute(text, per_op))
    if zero:
        texts.append(sharding(zero))
    if text := record.text("schedule"):
        texts.append(schedule(text))
    texts.append((_data_parallel(record), "", ""))
    texts.append((moe_words(record), "", ""))
    for fields_of, assumed, refused in texts:
        found = {**fields_of, **found} if "recompute_granularity" not in fields_of else {**found, **fields_of}
        if assumed:
            record.assume(assumed)
        if refused:
            record.refuse(refused)
    return found


def _data_parallel(record: Record) -> dict[str, object]:
    """Sharding from switches: Megatron's distributed optimizer or FSDP, MaxText and torchtitan shard counts."""
    if boolean(record.setting("use_megatron_fsdp")) or record.setting("data_parallel_sharding_strategy"):
        strategy = str(record.setting("data_parallel_sharding_strategy") or "optim_grads_params")
        return {"data_parallel_sharding": strategy}
    group = integer(record.get("other.fsdp_shard_group", "other.dp_shard")) or 0
    shards = record.get("fsdp", "other.fsdp")
    if group > 1:
        return {"data_parallel_sharding": "optim_grads_params", "data_parallel_shard_size": group}
    if boolean(shards) is True and not isinstance(shards, int) or shards is True or (integer(shards) or 0) > 1:
        return {"data_parallel_sharding": "optim_grads_params"}
    optimizer = record.get("dist_opt", "other.use_distributed_optimizer", "other.args.use_distributed_optimizer")
    optimizer = optimizer if optimizer is not None else record.get("other.config_exports.USE_DIST_OPTIMIZER")
    if boolean(optimizer):
        return {"data_parallel_sharding": "optim"}
    return {}


def _sizes(record: Record, model: Model | None, stack: Stack, words: dict[str, object]) -> Sizes:
    hint = words.pop("vpp", None)
    layout = words.get("pipeline_model_parallel_layout")
    pp = integer(record.values.get("pp"))
    if hint is None and isinstance(layout, str) and pp and "|" in layout:
        chunks = _chunks(layout)
        hint = chunks // pp if chunks % pp == 0 else None
        stated = integer(record.values.get("vpp"))
        if hint and stated and stated != hint:
            record.doubts.append(f"vpp={stated}, but the layout has {chunks} chunks: {hint} a stage; layout dropped")
            words.pop("pipeline_model_parallel_layout")
    moe = model is not None and model.moe is not None
    return sizes(record, moe, model.num_layers if model else None, stack.framework, hint if isinstance(hint, int) else None)


def _chunks(layout: str) -> int:
    """Chunks of a Megatron layout string, repetitions ``(…|)*14`` written out."""
    text = layout
    while found := re.search(r"\(([^()]*)\)\*(\d+)", text):
        text = text[: found.start()] + found[1] * int(found[2]) + text[found.end() :]
    return text.rstrip("|").count("|") + 1


def _recipe(
    record: Record, gpu: str, stack: Stack, model: Model | None, size: Sizes, words: dict[str, object]
) -> Recipe | None:
    kind = _precision(record, gpu, words)
    lora = _lora(record)
    if kind is None or not size.complete:
        return None
    stated = {name: value for name, value in words.items() if name in _RECIPE_FIELDS}
    assert size.micro_batch_size and size.global_batch_size and size.seq_length
    if model is None or model.moe is None:
        stated = {name: value for name, value in stated.items() if "moe" not in name and name != "sync_free_stage"}
    if size.pp == 1:
        for name in ("pipeline_schedule", "pipeline_model_parallel_layout"):
            stated.pop(name, None)
    stated.update(
        micro_batch_size=size.micro_batch_size,
        global_batch_size=size.global_batch_size,
        seq_length=size.seq_length,
        tp=size.tp,
        pp=size.pp,
        vpp=size.vpp,
        cp=size.cp,
        ep=size.ep,
        etp=size.etp,
        precision=kind,
        lora=lora,
    )
    recipe, wrong = parse_recipe(recipe_to_mapping(Recipe(**stated)), record.where, "")  # type: ignore[arg-type]
    for problem in wrong:
        record.refuse(f"{problem.key}: {problem.found!r} is not modelled")
    return recipe


def _precision(record: Record, gpu: str, words: dict[str, object]) -> str | None:
    text = record.text("precision")
    found = precision(text, gpu) if text else None
    if text and found is None:
        record.refuse(f"precision not understood: {text!r}")
    if found is not None:
        if found.assumed:
            record.assume(found.assumed)
        if found.recipe and found.name == "fp8":
            words.setdefault("fp8_recipe", found.recipe)
        if found.dpa is not None:
            words.setdefault("fp8_dot_product_attention", found.dpa)
        record.map("precision", found.name, text)
        return _scaled(found.name, words)
    if not text:
        return _assumed_precision(record, gpu)
    return None


def _scaled(name: str, words: dict[str, object]) -> str:
    """``fp8`` with the MX recipe is ``mxfp8``; 16-bit runs have no scaling recipe."""
    if name == "fp8" and words.get("fp8_recipe") == "mxfp8":
        name = "mxfp8"
    if name in ("bf16", "fp16", "fp32", "nvfp4", "mxfp4") or (name == "mxfp8" and words.get("fp8_recipe") == "mxfp8"):
        words.pop("fp8_recipe", None)
    return name


def _assumed_precision(record: Record, gpu: str) -> str | None:
    """Mixed precision on a device without 8-bit matrix units can only be 16-bit: bf16, or fp16 where there is no bf16."""
    candidates = record.get("other.precision_candidates")
    if candidates:
        record.refuse("precision not stated (" + " or ".join(str(item) for item in candidates) + ")")  # type: ignore[attr-defined]
        return None
    peaks = catalogue.gpu(gpu).peak if gpu in catalogue.gpu_names() else {}
    if peaks and not any("fp8" in name for name in peaks):
        kind = "bf16" if "bf16" in peaks else "fp16"
        record.assume(f"precision={kind} (not stated; the GPU has no 8-bit matrix rate and 16-bit types run at one rate)")
        return kind
    record.refuse("precision not stated")
    return None


def _lora(record: Record) -> LoRA | None:
    text = record.text("model").lower()
    flag = boolean(record.get("other.lora"))
    phase = record.text("other.phase").lower()
    if not (flag or "lora" in text or phase == "lora"):
        return None
    rank = integer(record.get("other.lora_dim", "other.lora_rank"))
    if rank is None and (found := re.search(r"rank (\d+)", text)):
        rank = int(found[1])
    targets = record.get("other.lora_target_modules")
    if rank is None:
        rank = 16
        record.assume("lora rank=16 (not stated)")
    if isinstance(targets, list):
        return LoRA(dim=rank, targets=tuple(str(item) for item in targets))
    record.assume("lora targets=linear_qkv, linear_proj (not stated)")
    return LoRA(dim=rank)


def _partial(size: Sizes, words: dict[str, object]) -> dict[str, object]:
    """What an incomplete row does state of its recipe, so that nothing of it is lost."""
    names = ("micro_batch_size", "global_batch_size", "seq_length", "tp", "pp", "vpp", "cp", "ep")
    stated = {name: getattr(size, name) for name in names if getattr(size, name) is not None}
    return stated | {name: _plain(value) for name, value in words.items()}


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _mtp_stated(record: Record) -> bool:
    keys = ("other.mtp_num_layers", "other.args.mtp_num_layers", "arch.mtp_layers", "other.mtp_layers")
    return any(key in record.values for key in keys) or "mtp" in record.text("model").lower()


def _figures(record: Record, stack: Stack, workload: Workload | None, size: Sizes) -> Measured:
    tokens = size.global_batch_size * size.seq_length if size.global_batch_size and size.seq_length else None

    def invert(tflops: float) -> tuple[float, str] | None:
        if workload is None:
            return None
        try:
            formula = flops.formula_for(workload.framework, workload.framework_date)
        except Unsupported as why:
            record.refuse(str(why))
            return None
        return flops.step_seconds(workload, tflops, formula), formula

    return measured(record, size.gpus, tokens, stack.framework, invert)
