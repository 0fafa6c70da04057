"""TPrimat's benchmark files: one JSON document with every step's time, the GPU and the configuration.

Seven shapes were published (DmitriiNikolaevAtAmd/tprimat @627dfac, @516b342, README and utils.py of January 2026): per-step
lists with or without ``raw_``; memory as a peak, a list, or a list by GPU; parallel sizes under ``parallelism_config`` (full
names, ``strategy_name``), ``parallel_config`` (short ones) or nowhere; ``num_gpus`` with the GPU or the training; made by a
trainer or from a Primus log; the model in the document or in the file's name (``benchmark_cuda_llama.json``,
``train_amd_prim_qwen.json``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from harness.evidence.ingest.logs.dialect import WORDS
from harness.evidence.ingest.logs.events import Arguments, Curve, Event, Fact, Failure, Memory, Step
from harness.evidence.ingest.logs.numbers import positive
from harness.evidence.ingest.logs.source import Source
from projector.intake.values import section

NAME = "tprimat"

_MOST = 32 * 2**20  # characters of a document: such a file holds some thousand numbers
_MODELS = {"llama": "llama3.1_8b", "qwen": "qwen2.5_7b"}  # of its two command lines, "Supported Models"
#: What trains by its words for a stack or a platform ("Specifications": NVIDIA and CUDA by NeMo, AMD and ROCm by Primus).
_TRAINERS = {"nemo": "nemo", "cuda": "nemo", "rocm": "primus", "nvd": "nemo", "amd": "primus"}
_NAMELESS = ("", "unknown", "none")
_GB = 1e9 / 2**30  # its GB are decimal: total_memory_gb of an 80 GiB card reads 85.0
_CLOSE = 0.02  # relative difference between its own figures that is rounding


def recognises(head: str) -> bool:
    opens = head.lstrip()[:1] == "{"
    return opens and '"performance_metrics"' in head and ('"training_config"' in head or '"step_times"' in head)


def read(source: Source) -> Iterator[Event]:
    with source.text() as text:
        try:
            document = json.loads(text.read(_MOST))
        except (ValueError, RecursionError) as error:
            yield Failure("unreadable", str(error), getattr(error, "lineno", 1))
            return
    if not isinstance(document, Mapping):
        return
    yield from _read_facts(document, source.name)
    parts = ("gpu_info", "parallel_config", "parallelism_config", "training_config")
    config = {name: value for part in parts for name, value in section(document, part).items()}
    values = {WORDS[NAME][name]: value for name, value in config.items() if name in WORDS[NAME]}
    if "micro_batch_size" not in values and (micro := _micro_batch(config)):
        values["micro_batch_size"] = micro
    if values:
        yield Arguments(values, 1, len(config))
    yield from _peak_memory(document)
    yield from _curves(document)
    yield from _steps(document)


def _micro_batch(config: Mapping[str, Any]) -> int | None:
    """Computes the micro-batch that its README's documents leave out: batch / data-parallel ranks / accumulation steps."""
    sizes = ("global_batch_size", "data_parallel_size", "gradient_accumulation_steps")
    batch, ranks, steps = (positive(config.get(name)) for name in sizes)
    micro = batch / (ranks * steps) if batch and ranks and steps else 0.0
    return int(micro) if micro >= 1 and micro == int(micro) else None


def _read_facts(document: Mapping[str, Any], name: str) -> Iterator[Event]:
    called = document.get("model_name")
    model = _MODELS.get(str(called or PurePath(name).stem.rpartition("_")[2]).lower(), called)
    if isinstance(model, str) and model:
        yield Fact("model", model)
    strategies = (
        section(document, "parallelism_config").get("strategy_name"),
        section(document, "training_config").get("parallel_strategy"),
    )
    strategy = next((str(word) for word in strategies if str(word or "").lower() not in _NAMELESS), None)
    if strategy is not None:
        yield Fact("strategy", strategy)
    gpu = section(document, "gpu_info")
    if isinstance(gpu.get("device_name"), str):
        yield Fact("gpu", gpu["device_name"])
    stated = (gpu.get("software_stack"), document.get("platform"))
    trainer = next((_TRAINERS[str(word)] for word in stated if str(word) in _TRAINERS), None)
    if "primus" in str(document.get("source", "")):
        trainer = "primus"
    if trainer is not None:
        yield Fact("framework", trainer)
    if isinstance(document.get("timestamp"), str):
        yield Fact("date", document["timestamp"][:7])
    config, metrics = section(document, "training_config"), section(document, "performance_metrics")
    batch, length = positive(config.get("global_batch_size")), positive(config.get("sequence_length"))
    rate, mean = positive(metrics.get("tokens_per_second")), positive(metrics.get("avg_step_time_seconds"))
    if batch and length and rate and mean and abs(batch * length / mean / rate - 1) > _CLOSE:
        text = f"tokens_per_second {rate:g} contradicts global_batch_size x sequence_length / avg_step_time"
        yield Fact("note", f"{text} = {batch * length / mean:.6g}")


def _peak_memory(document: Mapping[str, Any]) -> Iterator[Event]:
    metrics, used = section(document, "memory_metrics"), _step_memory(document)
    peaks = {kind: positive(metrics.get(f"peak_memory_{kind}_gb")) for kind in ("reserved", "allocated")}
    if not any(peaks.values()) and used:
        peaks = {"allocated": max(used)}
    yield from (Memory(peak * _GB, kind) for kind, peak in peaks.items() if peak is not None)


def _step_memory(document: Mapping[str, Any]) -> list[float]:
    """Returns the GB of each step: of the fullest GPU where GPUs are told apart."""
    by_gpu = _step_list(document, "memory_per_gpu")
    if by_gpu and all(isinstance(step, Sequence) and not isinstance(step, str) and step for step in by_gpu):
        return [max((positive(used) or 0.0) for used in step) for step in by_gpu]
    return [positive(used) or 0.0 for used in _step_list(document, "memory_values")]


def _curves(document: Mapping[str, Any]) -> Iterator[Event]:
    rates = [positive(value) or 0.0 for value in _step_list(document, "learning_rates")]
    for name, values in (("learning rate", rates), ("memory", [value * _GB for value in _step_memory(document)])):
        if any(values):
            yield Curve(name, tuple(values))


def _steps(document: Mapping[str, Any]) -> Iterator[Event]:
    times, known = _step_list(document, "step_times"), _step_list(document, "loss_values")
    for index, value in enumerate(times, start=1):
        seconds = positive(value)
        if seconds:
            loss = positive(known[index - 1]) if index <= len(known) else None
            yield Step(iteration=index, seconds=seconds, line=1, loss=loss, mean=True)


def _step_list(document: Mapping[str, Any], name: str) -> Sequence[Any]:
    """Returns a list with one entry a step, under ``name`` with or without ``raw_``; empty where there is none."""
    value = document.get(name, document.get(f"raw_{name}"))
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()
