"""The search beside the same configurations one by one: what bounds and groups save, as ratios."""

from __future__ import annotations

import time
from typing import Any

import pytest

from projector import project_many
from projector.hardware import catalogue
from projector.search.hunt import Hunt
from projector.search.objective import Objective
from projector.search.space import space, with_fields
from projector.search.tree import Tree
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

H100 = catalogue.default_cluster("h100_sxm")
JOBS = {"llama3_70b": (512, 1024, 8192), "deepseek_v3": (2048, 15360, 4096)}


@pytest.mark.parametrize("model", ["llama3_70b", pytest.param("deepseek_v3", marks=pytest.mark.night)])
def test_bounds_are_cheaper_than_projections(benchmark: Any, model: str) -> None:
    gpus, batch, length = JOBS[model]
    recipe = Recipe(micro_batch_size=1, global_batch_size=batch, seq_length=length)
    made = space(Workload(model=zoo.load(model), gpus=gpus, recipe=recipe), H100)
    hunt = Hunt(Tree(made), H100, Objective())
    began = time.process_time()
    benchmark.pedantic(hunt.run, rounds=1)
    searched = time.process_time() - began
    loads = [with_fields(made.base, hit.fields) for hit in hunt.hits]
    began = time.process_time()
    project_many(loads, H100, best=None)
    one = (time.process_time() - began) / len(loads)
    rate = hunt.counts.enumerated / searched
    benchmark.extra_info |= {"candidates": hunt.counts.enumerated, "per_s": rate, "seconds": searched}
    assert hunt.gap == 0
    assert rate * one > 10
