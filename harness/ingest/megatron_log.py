"""Logs of Megatron-LM and of trainers that print its lines: Primus, Megatron-Bridge, Megatron-DeepSpeed."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median

from harness.ingest.context import Context, read_context
from harness.ingest.iterations import Iteration, iterations, plain
from harness.ingest.report import Converted, RowReport
from harness.ingest.steady import Steady, steady
from harness.runs import Measured, MeasuredRun, Source, Stack
from projector.errors import InputError, Problem
from projector.hardware import catalogue
from projector.workload.loaders import megatron_args
from projector.workload.loaders.loaded import Loaded
from projector.workload.model import Model
from projector.workload.recipe import Recipe

__all__ = ["NAME", "detect", "read"]

NAME = "megatron"

_LINE = re.compile(r"\biteration\s+\d+\s*/\s*\d+.*elapsed time per iteration")
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|(?:CUDA|HIP) out of memory", re.IGNORECASE)
_FRAMEWORKS = (
    (re.compile(r"hip mem usage|compute per GPU \(TFLOP|primus", re.IGNORECASE), "primus"),
    (re.compile(r"\| seq_length:\s*\d+|megatron[./-]bridge", re.IGNORECASE), "megatron-bridge"),
    (re.compile(r"\bTFLOPs:|deepspeed_config|using_deepspeed", re.IGNORECASE), "megatron-deepspeed"),
)


def detect(text: str) -> bool:
    """Whether the text holds a Megatron iteration line, or an argument dump and an out-of-memory error."""
    if _LINE.search(plain(text)):
        return True
    return bool(_OUT_OF_MEMORY.search(text)) and bool(megatron_args.parse(text))


def read(text: str, where: str, recipe: str | Path | None = None) -> Converted:
    """The run of one log. ``recipe``: the YAML of :class:`Context` for what the log does not print.

    Raises :class:`InputError` for a log with neither arguments nor a recipe, with all that does not fit.
    """
    context = read_context(recipe)
    steps = iterations(text)
    loaded = _arguments(text, where, context)
    model = context.model or (loaded.model if loaded else None)
    settings = context.recipe or (loaded.recipe if loaded else None)
    missing = [name for name, value in (("model", model), ("recipe", settings)) if value is None]
    if missing:
        expected = "Megatron arguments in the log, or a recipe file that states it"
        raise InputError([Problem(where, name, "nothing", expected) for name in missing])
    assert model is not None
    assert settings is not None
    found = steady([step.seconds for step in steps], [step.skipped for step in steps]) if steps else None
    refused: list[str] = []
    doubts = _batch_doubts(steps, settings)
    gpus = context.gpus or (loaded.gpus if loaded else None) or next((s.world for s in steps if s.world), None)
    if not gpus:
        refused.append("gpus not stated")
    if not context.gpu:
        refused.append("gpu not stated")
    measured = _measured(text, steps, found, settings, gpus, refused)
    run = _run(text, where, context, model, settings, gpus, loaded, measured, refused)
    report = RowReport(
        where=where,
        id=run.id,
        mapped=_mapped(steps, found, loaded),
        assumed=run.assumed,
        refused=tuple(refused),
        doubts=tuple(doubts),
        unused=loaded.ignored if loaded else (),
    )
    return Converted(runs=(run,), rows=(report,))


def _arguments(text: str, where: str, context: Context) -> Loaded | None:
    """The argument dump; None where the log has none, or where it does not suffice but the context does."""
    args = megatron_args.parse(text)
    if not args:
        return None
    try:
        return megatron_args.from_mapping(args, where, name=context.id or Path(where).name.partition(".")[0])
    except InputError:
        if context.model is not None and context.recipe is not None:
            return None
        raise


def _measured(
    text: str,
    steps: list[Iteration],
    found: Steady | None,
    recipe: Recipe,
    gpus: int | None,
    refused: list[str],
) -> Measured:
    if found is None:
        if _OUT_OF_MEMORY.search(text):
            return Measured(status="out-of-memory")
        refused.append("no iteration lines")
        return Measured()
    kept = [steps[i] for i in found.kept]
    peak, kind = _memory(steps)
    batch = kept[-1].global_batch_size or recipe.global_batch_size
    tgs = batch * recipe.seq_length / found.seconds / gpus if gpus else None
    printed = [step.tflops for step in kept if step.tflops is not None]
    return Measured(
        step_seconds=found.seconds,
        tgs=tgs,
        tflops_per_gpu=round(median(printed), 3) if printed else None,
        peak_memory_gib=peak,
        memory_kind=kind,
        samples=len(kept),
        rel_std=found.rel_std,
        derived=("tgs from step_seconds",) if tgs else (),
    )


def _memory(steps: list[Iteration]) -> tuple[float | None, str | None]:
    """Largest printed use in GiB (the lines say GB for 2**30 bytes); a ratio alone has no size."""
    used = [step.memory_gib for step in steps if step.memory_gib is not None]
    if not used:
        return None, None
    return max(used), "device" if any(step.memory_total_gib for step in steps) else "reserved"


def _batch_doubts(steps: list[Iteration], recipe: Recipe) -> list[str]:
    logged = {step.global_batch_size for step in steps if step.global_batch_size}
    if len(logged) > 1:
        return [f"the global batch changes in the log: {min(logged)} to {max(logged)}"]
    if logged and logged != {recipe.global_batch_size}:
        return [f"the log's global batch is {logged.pop()}, the recipe's {recipe.global_batch_size}"]
    return []


def _framework(text: str, context: Context, loaded: Loaded | None) -> str:
    if context.framework:
        return context.framework
    marks = (name for pattern, name in _FRAMEWORKS if pattern.search(text))
    return next(marks, loaded.framework if loaded else "megatron-lm")


def _run(
    text: str,
    where: str,
    context: Context,
    model: Model,
    recipe: Recipe,
    gpus: int | None,
    loaded: Loaded | None,
    measured: Measured,
    refused: list[str],
) -> MeasuredRun:
    stem = "stdin" if where == "-" else Path(where).name.removesuffix(".gz").rpartition(".")[0] or Path(where).name
    return MeasuredRun(
        id=context.id or stem,
        source=Source(title=Path(where).name if where != "-" else "standard input", kind="log"),
        gpu=context.gpu if context.gpu in catalogue.gpu_names() else "",
        gpus=gpus or 0,
        gpus_per_node=context.gpus_per_node,
        cluster=context.cluster or None,
        stack=Stack(framework=_framework(text, context, loaded), version=context.version, date=context.date),
        model=model,
        model_name=model.name,
        recipe=recipe,
        measured=measured,
        group=context.group,
        assumed=loaded.assumed if loaded else (),
        problem="; ".join(refused),
        notes=context.notes,
    )


def _mapped(steps: list[Iteration], found: Steady | None, loaded: Loaded | None) -> tuple[str, ...]:
    texts = [f"{len(steps)} iterations"]
    if found is not None:
        texts += [f"step_seconds={found.seconds:.6g} (median of {len(found.kept)})", *(f"cut: {c}" for c in found.cut)]
    texts.append("model and recipe from the argument dump" if loaded else "model and recipe from the recipe file")
    return tuple(texts)
