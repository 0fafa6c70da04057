"""What is offered to a configuration that does not fit: it fits, it is allowed, it is as gentle as can be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from projector.hardware import catalogue
from projector.hardware.types import Cluster
from projector.projection import Projection, project
from projector.search.remedies import Remedies, remedies
from projector.search.remedy_kinds import kinds
from projector.settle.workload import settle
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

H100 = catalogue.default_cluster("h100_sxm")
MI355X = catalogue.default_cluster("mi355x")


def workload(model: str, gpus: int, framework: str = "megatron-lm", **stated: Any) -> Workload:
    base: dict[str, Any] = {"micro_batch_size": 1, "seq_length": 8192, "data_parallel_sharding": "optim"}
    return Workload(model=zoo.load(model), recipe=Recipe(**(base | stated)), gpus=gpus, framework=framework)


def offered(work: Workload, cluster: Cluster = H100) -> Remedies:
    return remedies(work, cluster, lambda w: project(w, cluster))


CASES: list[tuple[Workload, Cluster]] = [
    (workload("llama3_70b", 64, tp=4, pp=2, micro_batch_size=2, global_batch_size=256), H100),
    (workload("llama3_8b", 8, micro_batch_size=4, global_batch_size=64), H100),
    (workload("llama3_70b", 64, tp=8, pp=1, sequence_parallel=True, global_batch_size=64), H100),
    (workload("qwen3_30b_a3b", 8, ep=8, micro_batch_size=4, global_batch_size=256), H100),
    (
        workload(
            "deepseek_v3", 128, framework="primus", pp=8, ep=16, micro_batch_size=4, global_batch_size=1024, seq_length=4096,
            pipeline_model_parallel_layout="Ettt|t*8|t*8|t*8|t*8|t*8|t*8|t*10mL",
        ),
        MI355X,
    ),
    (workload("llama3_70b", 16, framework="torchtitan", global_batch_size=64, data_parallel_sharding="optim"), H100),
]  # fmt: skip


@pytest.mark.parametrize(("work", "cluster"), CASES)
def test_what_is_offered_fits_and_is_what_it_says(work: Workload, cluster: Cluster) -> None:
    assert not project(work, cluster).memory.fits
    found = offered(work, cluster)
    assert found.found
    assert len(found.found) <= 3
    assert found.nearest is None
    for remedy in found.found:
        again: Projection = project(remedy.change.on(work), cluster)
        assert again.memory.fits
        assert again.step_seconds == remedy.projection.step_seconds
        settled = settle(remedy.change.on(work), cluster).workload
        assert settled.recipe.global_batch_size == work.recipe.global_batch_size
        assert settled.recipe.seq_length == work.recipe.seq_length
    ranks = [(remedy.projection.memory.order, remedy.cost) for remedy in found.found]
    assert ranks == sorted(ranks)


def test_as_few_layers_are_recomputed_as_fit() -> None:
    work = workload("llama3_70b", 64, tp=8, pp=2, sequence_parallel=True, global_batch_size=64)
    options = next(o for o in kinds(settle(work, H100), H100) if o[0].kind == "recomputed layers")
    fits = [project(change.on(work), H100).memory.fits for change in options]
    assert fits == sorted(fits), "more recompute never needs more memory"
    found = offered(work).found
    chosen = [r.change for r in found if r.change.kind == "recomputed layers"]
    assert all(change == options[fits.index(True)] for change in chosen)


def test_nothing_that_the_framework_refuses_is_offered() -> None:
    """A schedule with postponed weight gradients runs with no full recompute, and a dense model with no experts."""
    work = workload("llama3_70b", 64, tp=4, pp=4, pipeline_schedule="zb-h1", global_batch_size=256)
    for remedy in offered(work).found:
        assert dict(remedy.change.fields).get("recompute_granularity") != "full"
        assert "ep" not in dict(remedy.change.fields)


def test_where_nothing_helps_the_nearest_is_named() -> None:
    work = workload("llama3.1_405b", 1, global_batch_size=1)
    result = offered(work, replace(H100, gpu=replace(H100.gpu, usable_memory_bytes=2.0**31)))
    assert result.found == ()
    assert result.nearest is not None
    assert not result.nearest.projection.memory.fits
    assert result.tried > 5
