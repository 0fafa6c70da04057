"""Output folders of TPrimat as its README documents them."""

import json
from pathlib import Path

from asked import put

from harness.measure import spec

STRATEGIES = [(name, *sizes) for name, (sizes, _) in spec.STRATEGIES.items()]


def document(name: str, tp: int, pp: int, **training: object) -> str:
    """As its README documents it."""
    dp, seconds = 8 // (tp * pp), 5.0 + tp + pp
    said = {
        "platform": "nvd",
        "gpu_info": {"device_name": "NVIDIA H100 80GB HBM3", "device_count": 8, "software_stack": "cuda"},
        "parallelism_config": {
            "tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp, "data_parallel_size": dp,
            "gradient_accumulation_steps": 64 // dp, "strategy_name": name,
        },
        "training_config": {"global_batch_size": 128, "sequence_length": 2048, "num_gpus": 8, **training},
        "performance_metrics": {"tokens_per_second": 128 * 2048 / seconds, "avg_step_time_seconds": seconds},
        "raw_step_times": [2 * seconds] + 9 * [seconds],
    }  # fmt: skip
    return json.dumps(said)


def folders(place: Path) -> Path:
    """``output-00`` to ``output-04``, a strategy each, with a benchmark file and a log that says nothing."""
    for number, (name, tp, pp) in enumerate(STRATEGIES):
        inside = place / f"output-0{number}"
        put(inside / "benchmark_cuda_llama.json", document(name, tp, pp))
        (inside / "training_llama.log").write_text("nothing\n")
    return place
