"""TPrimat's benchmark files: one JSON document with every step's time, the GPU and the configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.evidence.ingest.logs.events import Arguments, Event, Fact, Failure, Memory, Step
from harness.evidence.ingest.logs.source import Source

__all__ = ["NAME", "read", "recognises"]

NAME = "tprimat"

_MOST = 32 * 2**20  # characters of a document: such a file holds some thousand numbers
_WORDS = {
    "global_batch_size": "global_batch_size",
    "micro_batch_size": "micro_batch_size",
    "sequence_length": "seq_length",
    "num_gpus": "world_size",
    "tensor_model_parallel_size": "tensor_model_parallel_size",
    "pipeline_model_parallel_size": "pipeline_model_parallel_size",
    "context_parallel_size": "context_parallel_size",
}
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
    yield from _facts(document)
    config = {**_section(document, "parallelism_config"), **_section(document, "training_config")}
    values = {_WORDS[name]: value for name, value in config.items() if name in _WORDS}
    if values:
        yield Arguments(values, 1, len(config))
    yield from _memory(_section(document, "memory_metrics"))
    yield from _steps(document)


def _facts(document: Mapping[str, Any]) -> Iterator[Event]:
    gpu = _section(document, "gpu_info")
    if isinstance(gpu.get("device_name"), str):
        yield Fact("gpu", gpu["device_name"], 1)
    stack, source = str(gpu.get("software_stack", "")), str(document.get("source", ""))
    if stack == "nemo" or "primus" in source or stack == "rocm":
        yield Fact("framework", "nemo" if stack == "nemo" else "primus", 1)
    if isinstance(document.get("timestamp"), str):
        yield Fact("date", document["timestamp"][:7], 1)
    config, metrics = _section(document, "training_config"), _section(document, "performance_metrics")
    batch, length = _number(config.get("global_batch_size")), _number(config.get("sequence_length"))
    rate, mean = _number(metrics.get("tokens_per_second")), _number(metrics.get("avg_step_time_seconds"))
    if batch and length and rate and mean and abs(batch * length / mean / rate - 1) > _CLOSE:
        text = f"tokens_per_second {rate:g} contradicts global_batch_size x sequence_length / avg_step_time"
        yield Fact("note", f"{text} = {batch * length / mean:.6g}", 1)


def _memory(metrics: Mapping[str, Any]) -> Iterator[Event]:
    for kind in ("reserved", "allocated"):
        peak = _number(metrics.get(f"peak_memory_{kind}_gb"))
        if peak:
            yield Memory(peak * _GB, kind, 1)


def _steps(document: Mapping[str, Any]) -> Iterator[Event]:
    times = document.get("step_times", document.get("raw_step_times"))
    if not isinstance(times, Sequence) or isinstance(times, str):
        return
    losses = document.get("loss_values", document.get("raw_loss_values"))
    known = losses if isinstance(losses, Sequence) and not isinstance(losses, str) else ()
    for index, value in enumerate(times, start=1):
        seconds = _number(value)
        if seconds:
            loss = _number(known[index - 1]) if index <= len(known) else None
            yield Step(iteration=index, seconds=seconds, line=1, loss=loss, mean=True)


def _section(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name)
    return value if isinstance(value, Mapping) else {}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e18:
        return None
    return float(value)
