"""Writes runs as benchmark files of TPrimat: one JSON document each, which its tools and ``harness compare`` read. A
benchmark file's GB are decimal; memory is that of the fullest kind stated. Lists hold one entry a step, all steps as the
log has them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.compare.side import Side
from projector.hardware import catalogue

_GB = 2**30 / 1e9
_SIZES = {"tensor_model_parallel_size": "tp", "pipeline_model_parallel_size": "pp", "context_parallel_size": "cp"}


def files(sides: Sequence[Side]) -> dict[str, str | bytes]:
    """Returns the text of every side's benchmark file by file name, ``benchmark_NAME.json``."""
    return {
        f"benchmark_{_plain(side.name)}.json": json.dumps(document(side), indent=2, allow_nan=False) for side in sides
    }


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name.removesuffix(".json").removeprefix("benchmark_"))


def document(side: Side) -> dict[str, Any]:
    """Returns the benchmark document of one side; what is not known of a run is left out."""
    known = catalogue.knows_gpu(side.gpu)
    vendor = catalogue.gpu(side.gpu).vendor if known else ""
    differs, series = side.differs, side.series
    sizes = {name: _whole(differs.get(field)) for name, field in _SIZES.items()}
    content: dict[str, Any] = {
        "platform": {"nvidia": "nvd", "amd": "amd"}.get(vendor),
        "model_name": differs.get("model"),
        "gpu_info": {
            "device_name": catalogue.gpu(side.gpu).title if known else side.gpu or None,
            "device_count": side.gpus,
            "total_memory_gb": side.capacity_gib * _GB if side.capacity_gib else None,
            "software_stack": {"nvidia": "cuda", "amd": "rocm"}.get(vendor),
        },
        "parallelism_config": {**sizes, "strategy_name": differs.get("strategy")},
        "training_config": {
            "max_steps": None if series is None else len(series.seconds),
            "global_batch_size": _whole(differs.get("global_batch_size")),
            "micro_batch_size": _whole(differs.get("micro_batch_size")),
            "sequence_length": _whole(differs.get("seq_length")),
            "num_gpus": side.gpus,
        },
        "performance_metrics": {
            "avg_step_time_seconds": side.step_seconds,
            "steps_per_second": 1.0 / side.step_seconds if side.step_seconds else None,
            "tokens_per_second": side.tgs * side.gpus if side.tgs and side.gpus else None,
            "tokens_per_second_per_gpu": side.tgs,
        },
        "memory_metrics": {f"peak_memory_{kind}_gb": gib * _GB for kind, gib in side.memory.items()},
    }
    if series is not None:
        content["raw_step_times"] = [float(value) for value in series.seconds]
        content["raw_loss_values"] = _finite(series.loss)
        content["raw_learning_rates"] = _finite(series.curves.get("learning rate", ()))
        content["raw_memory_values"] = _finite(_GB * value for value in series.curves.get("memory", ()))
    return _stated(content)


def _stated(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that are known, of mappings among them, too."""
    known = {key: _stated(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    return {key: value for key, value in known.items() if value not in (None, [], {})}


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _finite(values: Iterable[float]) -> list[float]:
    """Returns all values, or none where one is missing: lists of another length than the steps mean nothing."""
    numbers = [float(value) for value in values]
    return numbers if all(map(math.isfinite, numbers)) else []
