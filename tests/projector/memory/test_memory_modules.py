"""Activations by module, and what the symptoms of a run ask for."""

import pytest
import workloads

from projector.hardware import catalogue
from projector.memory.modules import by_module
from projector.projection import Projection, project
from projector.search.explore import singly
from projector.search.symptoms import MEMORY, symptoms
from projector.workload.workload import Workload

MI300X = catalogue.cluster("mi300x")
RUNS = {
    "dense": workloads.sharded("llama3_8b", 16, pp=2),
    "experts": workloads.sharded("mixtral_8x7b", 32, ep=8, pp=2),
    "selective": workloads.sharded("llama3_8b", recompute_granularity="selective", recompute_modules=("core_attn",)),
    "full": workloads.sharded("mixtral_8x7b", 32, ep=8, recompute_granularity="full", recompute_num_layers=4),
    "prediction": workloads.sharded("deepseek_v3", 256, ep=64, global_batch_size=512),
}


def made(workload: Workload) -> Projection:
    return project(workload, MI300X)


@pytest.mark.parametrize("name", RUNS)
def test_the_modules_of_a_rank_are_all_that_it_keeps(name: str) -> None:
    found = made(RUNS[name])
    by_rank = by_module(found.resolved, "gfx942")
    assert len(by_rank) == RUNS[name].recipe.pp
    for rank, sizes in zip(found.memory.ranks, by_rank, strict=True):
        whole = sum(sizes.values())
        assert min(sizes.values()) > 0
        assert sizes.get("between", 0.0) <= (0.4 if name == "full" else 0.1) * whole  # what no module is named for
        assert rank.components["activations"] <= RUNS[name].num_microbatches * whole * (1 + 1e-9)
        assert ("experts" in sizes) == (RUNS[name].model.moe is not None and name != "full")
        assert ("attention" in sizes) == (name != "full")


def test_recompute_of_attention_takes_from_attention_alone() -> None:
    (plain,), (again,) = (
        by_module(made(workloads.sharded("llama3_8b", 8, **said)).resolved, "gfx942")
        for said in ({}, {"recompute_granularity": "selective", "recompute_modules": ("core_attn",)})
    )
    assert again["attention"] < plain["attention"]
    assert (again["mlp"], again["head"]) == (plain["mlp"], plain["head"])


def test_a_symptom_is_answered_by_what_shortens_it() -> None:
    run = workloads.sharded("mixtral_8x7b", 32, ep=8, pp=4, framework="primus")
    base = made(run)
    found = {each.part: each for each in symptoms(base, singly(run, MI300X.gpu, made))}
    assert "bubble_s" in found
    for part, symptom in found.items():
        for tried, less in symptom.answers:
            assert tried.projection is not None
            now = tried.projection
            if part != MEMORY:
                tokens = now.tgs * now.step_seconds / (base.tgs * base.step_seconds)
                assert now.breakdown[part] == pytest.approx((1 - less) * tokens * base.breakdown[part])
                assert tried.gain > 0
            assert less >= 0.1
    assert any("chunks a rank" in tried.change.label for tried, _ in found["bubble_s"].answers)
    assert any("fp8" in tried.change.label for tried, _ in found["compute_s"].answers)  # it shortens the bubble, too
