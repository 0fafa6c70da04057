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
    gpu = {
        "device_name": catalogue.gpu(side.gpu).title if known else side.gpu or None,
        "device_count": side.gpus,
        "total_memory_gb": side.capacity_gib * _GB if side.capacity_gib else None,
        "software_stack": {"nvidia": "cuda", "amd": "rocm"}.get(vendor),
    }
    content: dict[str, Any] = {
        "platform": {"nvidia": "nvd", "amd": "amd"}.get(vendor),
        "model_name": side.differs.get("model"),
        "gpu_info": _stated(gpu),
        "parallelism_config": _parallelism(side),
        "training_config": _training(side),
        "performance_metrics": _metrics(side),
        "memory_metrics": {f"peak_memory_{kind}_gb": gib * _GB for kind, gib in side.memory.items()},
    }
    if side.series is not None:
        series = side.series
        content["raw_step_times"] = [float(value) for value in series.seconds]
        content["raw_loss_values"] = _finite(series.loss)
        content["raw_learning_rates"] = _finite(series.curves.get("learning rate", ()))
        content["raw_memory_values"] = _finite(_GB * value for value in series.curves.get("memory", ()))
    return {key: value for key, value in content.items() if value not in (None, [], {})}


def _parallelism(side: Side) -> dict[str, Any]:
    sizes = {name: _whole(side.differs.get(field)) for name, field in _SIZES.items()}
    return _stated({**sizes, "strategy_name": side.differs.get("strategy")})


def _training(side: Side) -> dict[str, Any]:
    return _stated(
        {
            "max_steps": len(side.series.seconds) if side.series is not None else None,
            "global_batch_size": _whole(side.differs.get("global_batch_size")),
            "micro_batch_size": _whole(side.differs.get("micro_batch_size")),
            "sequence_length": _whole(side.differs.get("seq_length")),
            "num_gpus": side.gpus,
        }
    )


def _metrics(side: Side) -> dict[str, Any]:
    tokens_per_second = side.tgs * side.gpus if side.tgs and side.gpus else None
    return _stated(
        {
            "avg_step_time_seconds": side.step_seconds,
            "steps_per_second": 1.0 / side.step_seconds if side.step_seconds else None,
            "tokens_per_second": tokens_per_second,
            "tokens_per_second_per_gpu": side.tgs,
        }
    )


def _stated(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _finite(values: Iterable[float]) -> list[float]:
    """Returns all values, or none where one is missing: lists of another length than the steps mean nothing."""
    numbers = [float(value) for value in values]
    return numbers if all(map(math.isfinite, numbers)) else []
