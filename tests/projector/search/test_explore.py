"""The walk through the switches: what stays, what is refused, and why a change gains."""

from __future__ import annotations

import pytest

from projector.expectation import Knowledge
from projector.hardware import catalogue
from projector.projection import Projection, project
from projector.search.explore import CATEGORIES, changes, gains, walk
from projector.workload.workload import Workload
from tests import workloads

MI355X = catalogue.default_cluster("mi355x")


def workload(model: str = "deepseek_v2_lite", **recipe: object) -> Workload:
    stated = {"micro_batch_size": 4, "global_batch_size": 256, "ep": 8}
    return workloads.workload(model, framework="primus", **stated | recipe)


def priced(work: Workload) -> Projection:
    return project(work, MI355X)


@pytest.fixture(scope="module")
def walked():  # type: ignore[no-untyped-def]
    return walk(workload(), MI355X.gpu, priced)


def test_one_change_at_most_stays_in_each_category(walked) -> None:  # type: ignore[no-untyped-def]
    _, tried = walked
    for category in CATEGORIES:
        kept = [t for t in tried if t.change.category == category and t.kept]
        assert len(kept) <= 1
        assert all(t.gain > 0 and t.projection.memory.fits for t in kept)


def test_what_stays_multiplies_to_the_last_projection(walked) -> None:  # type: ignore[no-untyped-def]
    """Expected ratios of steps telescope, as those of projected steps do."""
    baseline, tried = walked
    together = 1.0
    last = baseline
    for t in tried:
        if t.kept:
            together *= 1.0 + t.gain
            last = t.projection
    assert together == pytest.approx(1.0 + gains(Knowledge().ratio(last, baseline), last, baseline)[0])


def test_every_change_has_a_projection_with_an_interval_or_a_reason(walked) -> None:  # type: ignore[no-untyped-def]
    for t in walked[1]:
        assert (t.projection is None) == bool(t.reason)
        if t.projection is not None:
            assert t.low < t.gain < t.high
            assert t.moved[0] in t.projection.breakdown


def test_the_switches_of_the_expert_ladder_gain_in_the_measured_order(walked) -> None:  # type: ignore[no-untyped-def]
    """AMD-AGI/Primus examples/moe_package: DeepEP gains 13 %, the fused kernels of sync-free stage 1 another 12 %."""
    by_label = {t.change.label: t for t in walked[1]}
    assert 0.05 < by_label["DeepEP"].gain < by_label["sync-free stage 1"].gain


def test_nothing_is_tried_that_changes_nothing() -> None:
    made = priced(workload(cross_entropy_fusion="te", numa_binding=True)).resolved.workload
    labels = {c.label for category in CATEGORIES for c in changes(category, made, MI355X.gpu)}
    assert not labels & {"bf16", "fused cross-entropy", "processes bound to NUMA nodes", "tensor-parallel overlap"}
    dense = priced(workload("llama3_8b", ep=1)).resolved.workload
    assert not list(changes("experts", dense, MI355X.gpu))
    assert not list(changes("pipeline schedule", dense, MI355X.gpu))


def test_weights_apart_are_advised_where_xla_gathers_a_layer_at_once() -> None:
    work = workloads.workload("llama3.1_70b", 64, "maxtext", recompute_granularity="full")
    made, tried = walk(work, MI355X.gpu, priced)
    assert made.resolved.workload.recipe.xla_gpu_all_gather_combine_threshold_bytes == 2**33
    (apart,) = (t for t in tried if t.change.label == "XLA gathers weights apart")
    assert apart.gain > 0.0
    assert apart.moved[0] == "dp_s"


def test_refusals_are_short() -> None:
    _, tried = walk(workload("llama3_8b", ep=1, micro_batch_size=1, global_batch_size=8), MI355X.gpu, priced)
    refused = [t for t in tried if t.projection is None]
    assert refused
    assert all(0 < len(t.reason) <= 60 for t in refused)
