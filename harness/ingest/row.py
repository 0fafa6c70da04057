"""One record → one measured run: the order in which its fields are read."""

from __future__ import annotations

import re

from harness.ingest.architecture import architecture
from harness.ingest.evidence import settle
from harness.ingest.importmap import ImportMap
from harness.ingest.parallel import Sizes
from harness.ingest.provenance import gpu_of, gpus_per_node, source_of, stack_of
from harness.ingest.recipe import group_sizes, partial_recipe, recipe_of, recipe_words
from harness.ingest.record import Record
from harness.ingest.throughput import measured
from harness.runs import Measured, MeasuredRun, Stack
from projector.errors import Unsupported
from projector.frameworks import flops
from projector.hardware import catalogue
from projector.workload import validate
from projector.workload.workload import Workload

__all__ = ["convert_row"]

# Share of the matrix products left where weights are frozen: forward and data gradient, no weight gradient.
_FROZEN = 2.0 / 3.0


def convert_row(record: Record, index: int, known: ImportMap) -> MeasuredRun:
    """Read every field; what stops a projection is refused on the record and becomes the run's ``problem``."""
    run_id = record.text("id") or f"row-{index}"
    assigned = known.assigned(run_id)
    if assumption := assigned.pop("assumed", None):
        record.assume(str(assumption))
    record.values.update(assigned)
    doubtful = known.doubt(run_id)
    if doubtful:
        record.refuse(f"figure not usable: {doubtful}")
    gpu, stack, source = gpu_of(record), stack_of(record), source_of(record, known.strip)
    model, name = architecture(record)
    words = recipe_words(record, stack)
    size = group_sizes(record, model, stack, words)
    recipe = recipe_of(record, gpu, model, size, words)
    workload = None
    if model is not None and recipe is not None and size.gpus:
        workload = Workload(
            model=model, recipe=recipe, gpus=size.gpus, framework=stack.framework, framework_date=stack.date
        )
    figures = _figures(record, stack, workload, size)
    if workload is not None:
        workload = settle(record, workload, figures, _mtp_stated(record))
        model, recipe = workload.model, workload.recipe
        _possible(record, workload, gpu, figures)
    partial = {} if recipe else partial_recipe(size, words)
    if path := record.text("other.moe_path"):
        partial["moe_path"] = path
    if (phase := record.text("other.phase").lower()) in ("sft", "lora"):
        partial["phase"] = phase
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


def _possible(record: Record, workload: Workload, gpu: str, figures: Measured) -> None:
    """Refuses a throughput above the device's peak: a figure, a size or a unit of the row is not what it says."""
    counted = not workload.model.unsupported and not validate.problems(workload)
    if not figures.tgs or gpu not in catalogue.gpu_names() or not counted:
        return
    try:
        peak = catalogue.gpu(gpu).peak_of(workload.recipe.precision)
    except Unsupported:
        return
    done = flops.flops_per_token(workload, "megatron-2025-04") * (_FROZEN if workload.recipe.lora else 1.0)
    share = done * figures.tgs / peak
    if share > 1.0:
        record.refuse(f"measured throughput is {share:.3g} times the {workload.recipe.precision} peak of {gpu}")


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
