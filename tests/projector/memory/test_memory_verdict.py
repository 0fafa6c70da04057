"""From allocated to required bytes: slack, context, communicators; and the state of the less usual optimizers."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from memory_cases import GIB, deepseek_v3, gpu, llama, recipe, resolved

from projector.frameworks import resolve
from projector.memory.plan import plan
from projector.memory.tolerance import TOLERANCE, tolerance
from projector.memory.verdict import communicator_bytes, device_bytes, reserved_bytes, verdict
from projector.workload.validate import problems

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


@pytest.mark.parametrize(
    ("model", "how", "gib", "near"),
    [
        (llama(), {}, 10.15, 0.02),
        (deepseek_v3(8, 1), {"ep": 4, "pp": 2}, 13.2, 0.02),
        (deepseek_v3(8, 1), {"ep": 8}, 16.6, 0.02),
        (deepseek_v3(8, 1), {"ep": 8, "moe_token_dispatcher_type": "flex"}, 16.4, 0.1),
    ],
)
def test_outside_the_allocator_as_logs_show(model: Any, how: dict[str, Any], gib: float, near: float) -> None:
    """Eight MI355X: used memory less what torch reserved (AMD-AGI/Primus@7e45b589 pilot/pilot/state/runs, @26bd1cc7
    deepseek-v4/develop/progress/p20); with DeepEP 15.0 and 17.8."""
    stated = resolved(model, recipe(**how), 8).workload
    case = resolve(dataclasses.replace(stated, framework="primus"), "amd", "gfx950")
    found = device_bytes(case, GPU, 50e9) - reserved_bytes(case, 50e9)
    assert found / GIB == pytest.approx(gib, rel=near)
    other = resolve(dataclasses.replace(stated, framework="primus"), "amd", "gfx942")
    assert found > device_bytes(other, GPU, 50e9) - reserved_bytes(other, 50e9)


def test_deepep_keeps_buffers_of_its_own() -> None:
    plain = communicators(16, moe=True, ep=8)
    assert communicators(16, moe=True, ep=8, moe_token_dispatcher_type="flex") - plain == pytest.approx(0.5e9)
    assert communicators(16, tp=2, moe_token_dispatcher_type="flex") == communicators(16, tp=2)


def test_slack_is_larger_without_tensor_parallelism() -> None:
    one = reserved_bytes(resolved(llama(), recipe(), 8), 100e9)
    two = reserved_bytes(resolved(llama(), recipe(tp=2), 8), 100e9)
    assert one == pytest.approx(106.8e9)
    assert two == pytest.approx(103.3e9)


def test_collectives_hold_their_tensors_where_torch_records_streams() -> None:
    """Only with tensor parallelism by collectives, only before torch 2.8, not where the launcher forbids it."""

    def slack(framework: str, date: str, **how: Any) -> float:
        stated = resolved(llama(), recipe(**how), 8).workload
        case = resolve(dataclasses.replace(stated, framework=framework, framework_date=date), "nvidia", "hopper")
        return reserved_bytes(case, 1.0)

    for framework in ("megatron-lm", "torchtitan"):
        late, early = slack(framework, "2025-09", tp=2), slack(framework, "2024-04", tp=2)
        assert early > late == slack(framework, "", tp=2)
        assert early == slack(framework, "2024-04", tp=8) == slack("megatron-deepspeed", "2022-02", tp=4)
        assert slack(framework, "2024-04") == slack(framework, "2025-09")
        assert slack(framework, "2024-04", tp=2, tp_comm_overlap=True) == late
    assert slack("nemo", "2024-04", tp=2, tp_comm_overlap=False) == slack("mlperf", "2025-09", tp=2)
    assert slack("paddlenlp", "2023-07", tp=2) == late


def test_part_of_the_slack_is_unavoidable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("projector.memory.verdict.tolerance", lambda _: 0.0)
    case = resolved(llama(), recipe(), 1, allocator={"context_bytes": 1e9})
    found = verdict(case, 100e9, gpu(usable_gib=104e9 / GIB))
    assert found.required == pytest.approx(100e9 * 1.02 + 1e9)
    assert found.device == pytest.approx(106.8e9 + 1e9)
    assert found.status == "tight"
    assert found.margin == pytest.approx(104e9 - found.required)
    assert verdict(case, 100e9, gpu(usable_gib=102.9e9 / GIB)).status == "out-of-memory"


@pytest.mark.parametrize(
    ("beyond", "status"), [(1.05, "fits"), (0.95, "too-close"), (-0.95, "too-close"), (-1.05, "out-of-memory")]
)
@pytest.mark.parametrize("planned", [True, False])
def test_within_its_own_error_the_model_does_not_decide(planned: bool, beyond: float, status: str) -> None:
    """Room of ``beyond`` tolerances, where a compiler places buffers and under DDP; the margin keeps its sign."""
    pool = {"strategy": "planned_pool", "pool_fraction": 1.0}
    how: dict[str, Any] = {"allocator": pool if planned else {}}
    case = resolved(llama(), recipe(tp=2), 2, **how)
    near = TOLERANCE["planned" if planned else "ddp"]
    required = verdict(case, 100e9, GPU).required
    found = verdict(case, 100e9, gpu(usable_gib=math.exp(beyond * near) * required / GIB))
    assert found.status == status
    assert (found.margin > 0) == (beyond > 0)
    assert found.tolerance == tolerance(case) == near


_SHARDED = recipe(data_parallel_sharding="optim_grads_params")


def test_what_has_too_few_peaks_has_the_tolerance_of_all() -> None:
    assert tolerance(resolved(llama(), _SHARDED, 8, data_parallel={"strategy": "zero3"})) == TOLERANCE["other"]
    assert (
        tolerance(
            resolved(llama(), recipe(), 8, data_parallel={"strategy": "fsdp2"}, allocator={"strategy": "planned_pool"})
        )
        == TOLERANCE["planned"]
    )


def test_words_of_a_verdict() -> None:
    case = resolved(llama(), recipe(), 8)
    needed = plan(case, GPU).required / GIB
    assert plan(case, gpu(usable_gib=1.2 * needed)).words == "fits"
    words = plan(case, gpu(usable_gib=needed + 0.5)).words
    near = 100 * TOLERANCE["ddp"]
    assert words == f"too close to tell: {needed:.1f} of {needed + 0.5:.1f} GiB ± {near:.0f} %"
    assert plan(case, gpu(usable_gib=needed / 1.2)).words == f"out of memory by {needed - needed / 1.2:.2f} GiB"


def test_a_pool_taken_at_start_is_the_limit_and_has_no_slack() -> None:
    """JAX: the arena of a compiled step must fit the pool; context and communicators live outside it."""
    case = resolved(llama(), recipe(tp=2), 8, allocator={"strategy": "planned_pool", "pool_fraction": 0.9})
    device = gpu(usable_gib=178.0)
    pool = 0.9 * device.memory_bytes
    below, above = verdict(case, pool - 1, device), verdict(case, pool + 1, device)
    assert (below.status, above.status) == ("too-close", "too-close")
    assert below.usable == pool
    assert below.reserved == pool - 1
    assert below.margin == pytest.approx(1)
    outside = case.execution.allocator.context_bytes + communicator_bytes(case)
    assert device_bytes(case, device, 1e9) == pytest.approx(pool + outside)


def test_the_pool_never_passes_what_the_driver_leaves() -> None:
    case = resolved(llama(), recipe(), 8, allocator={"strategy": "planned_pool", "pool_fraction": 1.0})
    assert verdict(case, 1e9, gpu(usable_gib=170.0)).usable == 170.0 * GIB


def test_the_cache_keeps_what_the_update_and_the_backward_cannot_share() -> None:
    """Live bytes are the larger of the two moments; the cache has both, but where states were made before activations or a
    compiler placed every buffer."""
    narrow = {"use_precision_aware_optimizer": True, "exp_avg_dtype": "fp16", "exp_avg_sq_dtype": "fp16"}
    how = recipe(data_parallel_sharding="no_shard", **narrow)
    found = plan(resolved(llama(2), how, 1), GPU)
    (rank,) = found.ranks
    step = 8.0 * rank.parameters  # both moments in fp32
    backward = rank.allocated - rank.static if rank.event != "optimizer_step" else rank.cached
    assert rank.held == pytest.approx(rank.static + step + backward)
    assert found.reserved == pytest.approx(reserved_bytes(resolved(llama(2), how, 1), rank.held))
    for tidy in ({"states_first": True}, {"strategy": "planned_pool"}):
        made = plan(resolved(llama(2), how, 1, allocator=tidy), GPU)
        assert (made.ranks[0].cached, made.allocated) == (0.0, found.allocated)
    plain = plan(resolved(llama(2), recipe(data_parallel_sharding="no_shard"), 1), GPU).ranks[0]
    assert plain.held == plain.allocated, "an update that makes nothing leaves nothing"


@pytest.mark.parametrize(("optimizer", "moments"), [("adam", 2), ("adamw", 2), ("sgd", 1), ("lion", 1)])
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


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_a_pool_larger_than_the_device_is_refused(share: float) -> None:
    case = resolved(llama(), recipe(device_memory_fraction=share), 8)
    (problem,) = problems(case.workload)
    assert problem.key == "recipe.device_memory_fraction"


def test_the_recipe_states_the_pool() -> None:
    workload = dataclasses.replace(
        resolved(llama(), recipe(device_memory_fraction=0.96), 8).workload, framework="maxtext"
    )
    assert resolve(workload, "amd").execution.allocator.pool_fraction == 0.96
    plain = dataclasses.replace(workload, recipe=dataclasses.replace(workload.recipe, device_memory_fraction=None))
    assert resolve(plain, "amd").execution.allocator.pool_fraction == 0.93
    other = dataclasses.replace(workload, framework="megatron-lm")
    assert resolve(other, "amd").execution.allocator.usable(100.0, 95.0) == 95.0, "no pool"


@pytest.mark.parametrize(
    ("changes", "slack"),
    [
        ({}, 0.0),
        ({"ep": 8}, 0.2),
        ({"ep": 8, "moe_token_dispatcher_type": "flex"}, 0.0),
        ({"ep": 8, "moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True}, 0.0),
    ],
)
def test_only_buffers_that_change_size_fragment(changes: dict[str, Any], slack: float) -> None:
    case = resolved(deepseek_v3(8, 1), recipe(**changes), 64, allocator={"ragged_slack": 0.2})
    usual = dataclasses.replace(case, execution=case.execution.but(allocator={"ragged_slack": 0.0}))
    assert reserved_bytes(case, 1e9) == pytest.approx(reserved_bytes(usual, 1e9) + slack * 1e9)
    found, base = (verdict(each, 50e9, GPU) for each in (case, usual))
    assert found.required - base.required == pytest.approx(slack * 50e9)
