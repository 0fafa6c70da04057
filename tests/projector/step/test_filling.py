"""A pipeline that is one program: stages without input route everything to one rank."""

from dataclasses import replace

import numpy as np
import pytest

from projector import project
from projector.frameworks import resolve
from projector.hardware import catalogue
from projector.step import unfed_stages
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

MI355X = catalogue.default_cluster("mi355x")


def workload(**changes: object) -> Workload:
    recipe = Recipe(
        micro_batch_size=2, global_batch_size=1024, seq_length=4096, pp=8, vpp=7, ep=8, pipeline_schedule="looped-bfs",
        recompute_granularity="full", moe_token_dispatcher_type="flex", moe_flex_dispatcher_backend="deepep",
    )  # fmt: skip
    model = zoo.load("deepseek_v3", num_layers=56, moe={"moe_layer_freq": "([0]*0+[1]*56)"}, mtp_num_layers=0)
    return Workload(model=model, recipe=replace(recipe, **changes), gpus=64, framework="maxtext")


def test_dropless_experts_make_the_fill_longer_and_a_capacity_factor_does_not() -> None:
    made = project(workload(), MI355X)
    capped = workload(moe_expert_capacity_factor=1.25, moe_pad_expert_input_to_capacity=True)
    assert unfed_stages.fed_with_zeros(made.resolved) is not None
    assert unfed_stages.fed_with_zeros(resolve(capped, "amd", "gfx950")) is None
    assert sum(made.breakdown.values()) == pytest.approx(made.step_seconds)
    elsewhere = project(replace(workload(), framework="megatron-lm"), MI355X)
    assert unfed_stages.fed_with_zeros(elsewhere.resolved) is None


def test_the_fill_waits_for_each_iteration_before_the_last_stage_has_input() -> None:
    full = np.array([[1.0, 1.0], [1.5, 2.0], [0.5, 1.0]])  # forward, backward in two parts; of two stages
    empty = np.array([[4.0, 1.5], [6.0, 2.0], [2.0, 0.5]])
    assert unfed_stages.seconds(full, empty, pp=4) == pytest.approx(3 * (3.0 + 6.0))
    assert unfed_stages.seconds(full, full, pp=4) == 0.0


def test_all_tokens_of_a_group_arrive_at_one_rank() -> None:
    from projector.mechanisms.dispatch.routing import fullest_rank

    empty = unfed_stages.fed_with_zeros(resolve(workload(), "amd", "gfx950"))
    assert empty is not None
    assert fullest_rank(empty.execution.dispatch.dispersion, 32, 8, 4096.0) == 8.0
