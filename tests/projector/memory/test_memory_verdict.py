"""From allocated to required bytes: slack, context, communicators; and the state of the less usual optimizers."""

import dataclasses
import math
from dataclasses import replace
from typing import Any

import pytest
from asked import refusal
from hypothesis import given
from hypothesis import strategies as st
from memory_cases import GIB, deepseek_v3, gpu, llama, recipe, resolved
from tabled import tabled

from projector.frameworks import Resolved, resolve
from projector.hardware import catalogue
from projector.hardware.types import Cluster
from projector.layers.mask import mask_bytes
from projector.memory.plan import plan
from projector.memory.tolerance import TOLERANCE, tolerance
from projector.memory.verdict import communicator_bytes, device_bytes, reserved_bytes, verdict
from projector.projection import project
from projector.search.remedies import remedies
from projector.settle.capable import OFFLOADS, host_bytes
from projector.settle.workload import settle
from projector.workload.validate import problems
from projector.workload.workload import Workload
from tests import workloads

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
    assert found.margin_bytes == pytest.approx(104e9 - found.required)
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
    assert (found.margin_bytes > 0) == (beyond > 0)
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


def test_a_pool_taken_at_start_is_the_limit_and_has_no_slack() -> None:
    """JAX: the arena of a compiled step must fit the pool; context and communicators live outside it."""
    case = resolved(llama(), recipe(tp=2), 8, allocator={"strategy": "planned_pool", "pool_fraction": 0.9})
    device = gpu(usable_gib=178.0)
    pool = 0.9 * device.memory_bytes
    below, above = verdict(case, pool - 1, device), verdict(case, pool + 1, device)
    assert (below.status, above.status) == ("too-close", "too-close")
    assert below.usable == pool
    assert below.reserved == pool - 1
    assert below.margin_bytes == pytest.approx(1)
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


@pytest.mark.parametrize(("changes", "slack"), tabled("workloads", "fragmenting_buffers"))
def test_only_buffers_that_change_size_fragment(changes: dict[str, Any], slack: float) -> None:
    case = resolved(deepseek_v3(8, 1), recipe(**changes), 64, allocator={"ragged_slack": 0.2})
    usual = dataclasses.replace(case, execution=case.execution.evolve(allocator={"ragged_slack": 0.0}))
    assert reserved_bytes(case, 1e9) == pytest.approx(reserved_bytes(usual, 1e9) + slack * 1e9)
    found, base = (verdict(each, 50e9, GPU) for each in (case, usual))
    assert found.required - base.required == pytest.approx(slack * 50e9)


# Offload is paid in the memory of hosts, which ends.

_H100 = catalogue.default_cluster("h100_sxm")
_ON_HOST = {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True, "overlap_cpu_optimizer_d2h_h2d": True}


def _with(capacity: float, base: Cluster = _H100) -> Cluster:
    return replace(base, host_capacity=capacity)


def test_an_optimizer_on_the_host_puts_its_state_there() -> None:
    """fp32 copies and both moments of all parameters, shared out over the eight ranks of one host: 12 bytes each."""
    load = workloads.sharded("llama3.1_8b", 8, tp=4, sequence_parallel=True, **_ON_HOST)
    resolved = settle(load, _with(1e15))
    (rank,) = plan(resolved, _H100.gpu).ranks
    assert host_bytes(resolved, _H100) == pytest.approx(12 * load.recipe.tp * rank.parameters, rel=0.02)


@pytest.mark.parametrize(("gpus", "hosts"), [(8, 1), (16, 2), (64, 8)])
def test_more_hosts_share_one_optimizer(gpus: int, hosts: int) -> None:
    one, many = (
        host_bytes(
            settle(workloads.sharded("llama3.1_8b", n, tp=4, sequence_parallel=True, **_ON_HOST), _with(1e15)), _H100
        )
        for n in (8, gpus)
    )
    assert many == pytest.approx(one / hosts, rel=0.01)


def test_a_host_holds_what_layers_leave_there() -> None:
    said = {"tp": 8, "sequence_parallel": True}
    found = [
        host_bytes(settle(workloads.sharded("llama3.1_8b", 8, cpu_offloading_num_layers=n, **said), _with(1e15)), _H100)
        for n in (4, 8, 16)
    ]
    assert 0 < found[0] < found[1] < found[2]
    assert (found[2] - found[1]) == pytest.approx(2 * (found[1] - found[0]), rel=0.05)


def test_a_plan_beyond_its_hosts_is_refused_and_a_run_is_a_doubt() -> None:
    load = workloads.sharded("llama3.1_70b", 16, tp=8, sequence_parallel=True, **_ON_HOST)
    needed = host_bytes(settle(load, _with(1e15)), _H100)
    assert settle(load, _with(1.01 * needed))
    raised = refusal(settle, load, _with(0.99 * needed))
    (problem,) = raised.problems
    assert problem.key == "recipe.optimizer_cpu_offload"
    assert "host_memory_gib" in problem.expected
    assert any("as the run says" in text for text in settle(load, _with(0.99 * needed), published=True).assumed)


@pytest.mark.parametrize("capacity", [1e9, 0.5e12, 2e12])
def test_no_remedy_puts_more_on_a_host_than_it_has(capacity: float) -> None:
    cluster = _with(capacity)
    load = workloads.workload("llama3.1_70b", 8, tp=8, sequence_parallel=True, data_parallel_sharding="optim")
    found = remedies(load, cluster, lambda each: project(each, cluster)).found
    assert found
    for remedy in found:
        assert host_bytes(remedy.projection.resolved, cluster) <= capacity
        assert capacity > 1e9 or not any(dict(remedy.change.fields).get(name) for name in OFFLOADS)


def _scores(load: Workload) -> float:
    """Bytes of activations that unfused attention adds to those of a flash kernel, a layer and score."""
    plain, unfused = (
        project(workloads.workload(load.model, 8, load.framework, **said), _A100).memory.components["activations"]
        for said in ({**_said(load), "attention_backend": "flash"}, _said(load))
    )
    recipe, model = load.recipe, load.model
    heads = recipe.micro_batch_size * model.num_attention_heads / recipe.tp
    lse = 4.0 * heads * recipe.seq_length * model.num_layers
    return (unfused - plain + lse) / (heads * recipe.seq_length**2 * model.num_layers)


def _said(load: Workload) -> dict[str, object]:
    names = ("tp", "seq_length", "micro_batch_size", "attention_backend", "attention_dropout")
    fixed = {"recompute_granularity": "none", "precision": "bf16"}
    return {name: getattr(load.recipe, name) for name in names} | fixed


@pytest.mark.parametrize(("framework", "dropout", "bytes_"), tabled("workloads", "score_matrices"))
def test_unfused_attention_keeps_one_score_matrix_a_layer(framework: str, dropout: float | None, bytes_: float) -> None:
    said = {"attention_backend": "unfused", "attention_dropout": dropout, "tp": 2, "seq_length": 4096}
    assert _scores(workloads.workload("llama3.1_8b", 8, framework, **said)) == pytest.approx(bytes_, rel=0.01)


# Attention without a flash kernel keeps what autograd keeps; a mask that nobody meant is not made.

_A100, _V100 = (catalogue.default_cluster(name) for name in ("a100_sxm_80gb", "v100_sxm_32gb"))


def test_dropout_costs_time_where_scores_lie_in_memory_alone() -> None:
    def step(**said: object) -> float:
        return project(workloads.workload("llama3.1_8b", 8, tp=4, **said), _A100).step_seconds

    assert step(attention_backend="unfused", attention_dropout=0.1) > step(attention_backend="unfused")
    assert step(attention_backend="flash", attention_dropout=0.1) == step(attention_backend="flash")


def test_a_gpu_without_flash_kernels_writes_its_scores() -> None:
    for cluster, materialised in ((_A100, False), (_V100, True)):
        resolved = settle(workloads.workload("llama3.1_8b", 8, tp=4, precision="fp16"), cluster)
        assert resolved.execution.fusion.attention_materialised is materialised


def _resolved(seq: int, cp: int, **said: object) -> Resolved:
    return settle(workloads.workload("llama3.1_8b", 8, cp=cp, global_batch_size=8, seq_length=seq, **said), _A100)


@given(seq=st.sampled_from([2**n for n in range(13, 21)]), cp=st.sampled_from((1, 2, 4, 8)))
def test_a_mask_is_made_where_somebody_may_have_meant_it(seq: int, cp: int) -> None:
    resolved = _resolved(seq, cp)
    inputs = 2.0 * seq / cp * resolved.workload.model.hidden_size * resolved.workload.model.num_layers
    made = mask_bytes(resolved)
    assert made in (0.0, float(seq) ** 2)
    assert (made == 0.0) == (seq >= 2**15 and float(seq) ** 2 > inputs)
    said = [text for text in resolved.assumed if text.startswith("create_attention_mask_in_dataloader=")]
    assert len(said) == (seq >= 2**15)
    asked = _resolved(seq, cp, create_attention_mask_in_dataloader=True)
    assert mask_bytes(asked) == float(seq) ** 2
    assert not [text for text in asked.assumed if text.startswith("create_attention_mask_in_dataloader=")]


def test_a_mask_that_is_asked_for_is_the_first_thing_to_leave() -> None:
    load = workloads.workload(
        "llama3.1_8b", 64, tp=8, cp=8, sequence_parallel=True, global_batch_size=8, seq_length=2**19,
        recompute_granularity="full", data_parallel_sharding="optim", create_attention_mask_in_dataloader=True,
    )  # fmt: skip
    assert project(load, _A100).memory.order == 2
    found = remedies(load, _A100, lambda each: project(each, _A100)).found
    assert "no attention mask from the data loader" in found[0].change.label
