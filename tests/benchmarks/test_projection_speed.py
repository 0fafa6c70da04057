"""One warm projection of DeepSeek-V3 over sixteen stages, against evaluating its schedule alone in a plain event loop."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from measured_table import cpu

from projector.hardware import catalogue
from projector.projection import project
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "projector" / "pipeline"))


@pytest.fixture
def load() -> Workload:
    recipe = Recipe(
        micro_batch_size=1, global_batch_size=64 * 64, seq_length=4096, pp=16, ep=64, moe_token_dispatcher_type="flex",
        recompute_granularity="none", allow_uneven_pipeline_split=True,
    )  # fmt: skip
    return Workload(model=zoo.load("deepseek_v3"), recipe=recipe, gpus=1024)


def test_a_warm_projection_costs_less_than_a_naive_schedule(benchmark: Any, load: Workload) -> None:
    from naive_pipeline import simulate

    from projector import pipeline

    cluster = catalogue.default_cluster("h100_sxm")
    project(load, cluster)
    benchmark(project, load, cluster)
    began = cpu()
    for _ in range(3):
        project(load, cluster)
    ours = (cpu() - began) / 3
    plan = pipeline.build("1f1b", 16, 1, 64)
    began = cpu()
    simulate(plan, [1.0] * 16, [1.0] * 16, [1.0] * 16)
    naive = cpu() - began
    benchmark.extra_info["projection_over_naive_schedule"] = ours / naive
    assert ours < 20 * naive
