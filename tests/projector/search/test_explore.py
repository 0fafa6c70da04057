"""The walk through the switches: what stays, what is refused, and why a change gains."""

import math
from dataclasses import replace
from typing import Any

import pytest

from projector.expectation import Knowledge
from projector.hardware import catalogue
from projector.hardware.catalogue import cluster
from projector.hardware.types import Cluster
from projector.kernels.settings import DEFAULT
from projector.posterior import Run
from projector.projection import Projection, project
from projector.search.explore import CATEGORIES, changes, gains, walk
from projector.search.first_run import first_run
from projector.search.found import Best
from projector.search.remedies import Remedies, remedies
from projector.search.remedy_kinds import kinds
from projector.settle.workload import settle
from projector.workload import zoo
from projector.workload.recipe import Recipe
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
        kept = [t for t in tried if t.change.kind == category and t.kept]
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
    assert 0.03 < by_label["DeepEP"].gain < by_label["sync-free stage 1"].gain


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


# What is offered to a configuration that does not fit: it fits, it is allowed, it is as gentle as can be.

H100 = catalogue.default_cluster("h100_sxm")


def tight(model: str, gpus: int, framework: str = "megatron-lm", **stated: Any) -> Workload:
    base: dict[str, Any] = {"micro_batch_size": 1, "seq_length": 8192, "data_parallel_sharding": "optim"}
    return Workload(model=zoo.load(model), recipe=Recipe(**(base | stated)), gpus=gpus, framework=framework)


def offered(work: Workload, cluster: Cluster = H100) -> Remedies:
    return remedies(work, cluster, lambda w: project(w, cluster))


CASES: list[tuple[Workload, Cluster]] = [
    (tight("llama3_70b", 64, tp=4, pp=2, micro_batch_size=2, global_batch_size=256), H100),
    (tight("llama3_8b", 8, micro_batch_size=4, global_batch_size=64), H100),
    (tight("llama3_70b", 64, tp=8, pp=1, sequence_parallel=True, global_batch_size=64), H100),
    (tight("qwen3_30b_a3b", 8, ep=8, micro_batch_size=4, global_batch_size=256), H100),
    (
        tight(
            "deepseek_v3", 128, framework="primus", pp=8, ep=16, micro_batch_size=4, global_batch_size=1024, seq_length=4096,
            pipeline_model_parallel_layout="Ettt|t*8|t*8|t*8|t*8|t*8|t*8|t*10mL",
        ),
        MI355X,
    ),
    (tight("llama3_70b", 16, framework="torchtitan", global_batch_size=64, data_parallel_sharding="optim"), H100),
]  # fmt: skip


@pytest.mark.parametrize(
    ("work", "cluster"),
    [pytest.param(*case, marks=() if number % 2 else pytest.mark.night) for number, case in enumerate(CASES)],
)
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
    work = tight("llama3_70b", 64, tp=8, pp=2, sequence_parallel=True, global_batch_size=64)
    options = next(o for o in kinds(settle(work, H100), H100) if o[0].kind == "recomputed layers")
    fits = [project(change.on(work), H100).memory.fits for change in options]
    assert fits == sorted(fits), "more recompute never needs more memory"
    found = offered(work).found
    chosen = [r.change for r in found if r.change.kind == "recomputed layers"]
    assert all(change == options[fits.index(True)] for change in chosen)


def test_nothing_that_the_framework_refuses_is_offered() -> None:
    """A schedule with postponed weight gradients runs with no full recompute, and a dense model with no experts."""
    work = tight("llama3_70b", 64, tp=4, pp=4, pipeline_schedule="zb-h1", global_batch_size=256)
    for remedy in offered(work).found:
        assert dict(remedy.change.fields).get("recompute_granularity") != "full"
        assert "ep" not in dict(remedy.change.fields)


def test_where_nothing_helps_the_nearest_is_named() -> None:
    work = tight("llama3.1_405b", 1, global_batch_size=1)
    result = offered(work, replace(H100, gpu=replace(H100.gpu, usable_memory_bytes=2.0**31)))
    assert result.found == ()
    assert not result.nearest.projection.memory.fits
    assert result.tried > 5


# Which measurement to make first: never one that widens, never a large one where a small one tells nearly as much.


@pytest.fixture(scope="module")
def best() -> list[Best]:
    recipe = Recipe(micro_batch_size=1, global_batch_size=128, seq_length=4096, data_parallel_sharding="optim")
    made = []
    for tp in (2, 4):
        workload = Workload(
            model=zoo.load("llama3.1_8b"), recipe=replace(recipe, tp=tp), gpus=64, framework="megatron-lm"
        )
        projection = project(workload, cluster("h100_sxm"))
        made.append(Best(fields={"tp": tp}, workload=workload, projection=projection, value=projection.step_seconds))
    return made


def test_a_run_narrows_and_the_smallest_that_does_is_named(best: list[Best]) -> None:
    found = first_run(best, cluster("h100_sxm"), Knowledge(), (), DEFAULT)
    assert found.whole < found.before
    assert found.after <= found.before
    assert 0.9 * (found.before - found.whole) <= found.before - found.after
    assert found.gpus in (8, 16, 32, 64)


def test_what_it_promises_is_what_a_measurement_gives_that_is_as_far_off_as_usual(best: list[Best]) -> None:
    """One that comes as expected gives more."""
    known = Knowledge()
    promised = first_run(best, cluster("h100_sxm"), known, (), DEFAULT)
    facts = [known.facts(each.projection) for each in best]
    usual, widths = math.sqrt(known.posterior.log_ratio(facts[0])[1]), []
    for off in (-usual, 0.0, usual):
        run = Run(facts=facts[0], measured_seconds=known.of(facts[0]).middle * math.exp(off))
        widths.append(sum(replace(known, runs=(run,)).of(each).half_width for each in facts) / len(facts))
    assert widths[0] == pytest.approx(promised.whole, rel=0.02)
    assert widths[2] == pytest.approx(promised.whole, rel=0.02)
    assert widths[1] < promised.whole


def test_one_that_was_measured_is_worth_little_more(best: list[Best]) -> None:
    facts = Knowledge().facts(best[0].projection)
    mine = Knowledge(runs=(Run(facts=facts, measured_seconds=best[0].projection.step_seconds),))
    again = first_run(best, cluster("h100_sxm"), mine, (), DEFAULT)
    assert again.before - again.after < 0.1 * (Knowledge().of(facts).half_width - again.before)
