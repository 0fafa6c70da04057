"""From allocated to required bytes: slack, context, communicators; and the state of the less usual optimizers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from memory_cases import deepseek_v3, gpu, llama, recipe, resolved

from projector.memory.plan import plan
from projector.memory.verdict import communicator_bytes, reserved_bytes, verdict

GPU = gpu()


def communicators(gpus: int, moe: bool = False, **how: Any) -> float:
    model = deepseek_v3(8, 1) if moe else llama()
    return communicator_bytes(resolved(model, recipe(**how), gpus))


def test_every_group_of_more_than_one_rank_has_buffers() -> None:
    assert communicators(1) == 0.0
    data = communicators(8)  # data-parallel, world
    one = data / 2
    assert one == pytest.approx(0.25e9)
    assert communicators(16, tp=2) == pytest.approx(3 * one)
    assert communicators(64, tp=2, pp=2, cp=2) == pytest.approx(5 * one)
    assert communicators(8, moe=True, ep=8) == pytest.approx(3 * one)  # the experts have no replicas
    assert communicators(16, moe=True, ep=8) == pytest.approx(4 * one)


def test_deepep_keeps_buffers_of_its_own() -> None:
    plain = communicators(16, moe=True, ep=8)
    assert communicators(16, moe=True, ep=8, moe_token_dispatcher_type="flex") - plain == pytest.approx(0.5e9)
    assert communicators(16, tp=2, moe_token_dispatcher_type="flex") == communicators(16, tp=2)


def test_slack_is_larger_without_tensor_parallelism() -> None:
    one = reserved_bytes(resolved(llama(), recipe(), 8), 100e9)
    two = reserved_bytes(resolved(llama(), recipe(tp=2), 8), 100e9)
    assert one == pytest.approx(106.8e9)
    assert two == pytest.approx(103.3e9)


def test_part_of_the_slack_is_unavoidable() -> None:
    case = resolved(llama(), recipe(), 1, context_bytes=1e9)
    found = verdict(case, 100e9, 104e9)
    assert found.required == pytest.approx(100e9 * 1.02 + 1e9)
    assert found.device == pytest.approx(106.8e9 + 1e9)
    assert found.status == "tight"
    assert verdict(case, 100e9, 102.9e9).status == "out-of-memory"


@pytest.mark.parametrize(
    ("optimizer", "moments"), [("adam", 2), ("adamw", 2), ("sgd", 1), ("lion", 1), ("muon", 1), ("adafactor", 0)]
)
def test_each_optimizer_keeps_its_moments(optimizer: str, moments: int) -> None:
    how = recipe(optimizer=optimizer, data_parallel_sharding="no_shard")
    rank = plan(resolved(llama(2), how, 1), GPU).ranks[0]
    assert rank.components["moments"] == pytest.approx(4 * moments * rank.parameters)


def test_replicas_hold_the_state_of_the_experts_too() -> None:
    how = recipe(ep=8, data_parallel_sharding="optim")
    one = plan(resolved(deepseek_v3(8, 1), how, 64), GPU).ranks[0]
    many = dataclasses.replace(how, num_distributed_optimizer_instances=8)
    eight = plan(resolved(deepseek_v3(8, 1), many, 64), GPU).ranks[0]
    assert eight.components["moments"] == pytest.approx(8 * one.components["moments"])
