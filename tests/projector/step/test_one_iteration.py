"""What XLA's FSDP hides inside one iteration of the loop over layers, and what its flags change in that."""

from dataclasses import replace
from itertools import pairwise

import pytest

from projector.frameworks import resolve
from projector.frameworks.types import Resolved
from projector.hardware import catalogue
from projector.hardware.efficiency import of
from projector.kernels import settings
from projector.layers.lower import layer
from projector.mechanisms import Execution
from projector.operators.types import Collective, Gemm, GroupedGemm, Operator, Stream
from projector.projection import project
from projector.step.cycle import rank_figures
from projector.step.loop_gathers import limit
from projector.step.priced import priced
from projector.step.stages import _hidden_share, parts
from projector.step.timing import Clock
from projector.workload.composition import compositions
from tests.workloads import workload

B200 = catalogue.default_cluster("b200_sxm")
PIPELINED = {"xla_gpu_enable_pipelined_all_gather": True}
UNROLLED = {"xla_gpu_enable_while_loop_double_buffering": True}
CASES = ("llama3.1_8b", {}), ("deepseek_v2_lite", {"ep": 8, "moe_expert_capacity_factor": 1.25}), ("gpt3_175b", {})


def products(number: int) -> list[Operator]:
    return [Gemm(name=f"linear{i}", m=64, n=64, k=64) for i in range(number)]


def of_experts(number: int) -> list[Operator]:
    return [GroupedGemm(name=f"experts{i}", groups=4, rows=64, n=64, k=64) for i in range(number)]


def clock(operators: list[Operator]) -> Clock:
    """Every kernel lasts a second, a gather one for each byte."""
    return Clock(dict.fromkeys(operators, 1.0), set(), lambda op: op.bytes, Execution.of())


def gather(group: str, nbytes: float) -> Collective:
    return Collective(name=f"{group}_all_gather", kind="all_gather", group=group, bytes=nbytes)


@pytest.mark.parametrize("weights", [1, 2, 4, 8])
@pytest.mark.parametrize("backward", [False, True])
def test_all_but_the_first_bucket_hides_behind_all_but_the_last(weights: int, backward: bool) -> None:
    """n equal buckets: (n − 1) / n of both, each weight one of its own at least."""
    ops = products(weights)
    for combined in (0.0, 1.0, 12.0, 100.0):
        found = limit(ops, [gather("dp", 24.0)], clock(ops), combined, backward=backward)
        buckets = min(weights, 24.0 / max(combined, 1e-9)) if combined < 24.0 else 1.0
        assert found.traffic == pytest.approx(24.0 * (1.0 - 1.0 / buckets))
        assert found.compute == pytest.approx(weights * (1.0 - 1.0 / buckets))


def test_one_gather_of_experts_hides_behind_attention_and_attentions_behind_nothing() -> None:
    ops = [*products(3), *of_experts(2), Stream(name="add", kind="add", read=1.0, write=1.0)]
    gathers = [gather("dp", 5.0), gather("edp", 40.0)]
    found = limit(ops, gathers, clock(ops), 1e9, backward=False)
    assert (found.traffic, found.compute) == (40.0, 3.0)
    turned = limit(ops[::-1], gathers, clock(ops), 1e9, backward=True)
    assert (turned.traffic, turned.compute) == (5.0, 3.0)
    alone = limit(ops, gathers[:1], clock(ops), 1e9, backward=False)
    assert (alone.traffic, alone.compute) == (0.0, 0.0)
    assert limit(ops, [], clock(ops), 1.0, backward=False).traffic == 0.0


def exposed(model: str, **recipe: object) -> float:
    stated = {"global_batch_size": 512, "recompute_granularity": "full", "moe_pad_expert_input_to_capacity": True}
    return project(workload(model, 64, "maxtext", **stated | recipe), B200).breakdown["dp_s"]


@pytest.mark.parametrize(("model", "sizes"), CASES)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_larger_buckets_expose_no_less(model: str, sizes: dict[str, object], recompute: str) -> None:
    each = [
        exposed(model, **sizes, recompute_granularity=recompute, xla_gpu_all_gather_combine_threshold_bytes=size)
        for size in (0, 2**24, 2**28, 2**30, 2**33, 2**40)
    ]
    assert all(after >= before * (1 - 1e-9) for before, after in pairwise(each))
    assert each[-1] > each[0]


@pytest.mark.parametrize(("model", "sizes"), CASES)
@pytest.mark.parametrize("size", [0, 2**28, 2**40])
def test_a_gather_leaves_its_iteration_only_with_both_flags(model: str, sizes: dict[str, object], size: int) -> None:
    case = sizes | {"xla_gpu_all_gather_combine_threshold_bytes": size}
    plain = exposed(model, **case)
    assert exposed(model, **case, **PIPELINED) == exposed(model, **case, **UNROLLED) == plain
    assert exposed(model, **case, **PIPELINED, **UNROLLED) < plain


def test_one_gather_a_layer_costs_what_was_measured_on_b200() -> None:
    """9.3 % of the tokens of DeepSeek-V3 (amd-agi/maxtext-slurm@64a75df docs/b200-benchmark-report.md, jobs 1200, 1588)."""
    job = workload(
        "deepseek_v3", 64, "maxtext", micro_batch_size=7, global_batch_size=448, ep=8, recompute_granularity="full",
        moe_expert_capacity_factor=1.25, moe_pad_expert_input_to_capacity=True,
    )  # fmt: skip
    whole, apart = (
        project(
            replace(job, recipe=replace(job.recipe, xla_gpu_all_gather_combine_threshold_bytes=size)), B200
        ).step_seconds
        for size in (2**33, 256)
    )
    assert 1.04 < whole / apart < 1.14


# What runs beside compute by framework: DTensor's collectives wait on the spot, custom calls hide no weight gathers.


H100 = catalogue.default_cluster("h100_sxm")


def resolved(framework: str, model: str, **fields: object) -> Resolved:
    return resolve(workload(model, 64, framework, **fields), "nvidia", "hopper")


def backward(framework: str) -> list[Collective]:
    made = resolved(framework, "llama3_70b", tp=8, sequence_parallel=True)
    block = layer(made.workload.model.layer_kinds[0], made)
    ops = (*block.backward_input, *block.backward_weight)
    return [op for op in ops if isinstance(op, Collective) and op.group == "tp"]


def test_dtensor_redistributes_on_the_spot_and_megatron_beside_its_products() -> None:
    titan, megatron = backward("torchtitan"), backward("megatron-lm")
    assert titan
    assert not any(op.hides_behind for op in titan)
    assert any(op.hides_behind for op in megatron)


@pytest.mark.parametrize(("capacity", "hides"), [(None, False), (1.25, True)])
def test_only_products_that_the_compiler_knows_hide_gathers(capacity: float | None, hides: bool) -> None:
    made = resolved(
        "maxtext", "deepseek_v3", ep=8, moe_expert_capacity_factor=capacity,
        moe_pad_expert_input_to_capacity=capacity is not None,
    )  # fmt: skip
    _, (chunk,) = compositions(made.workload.model, made.workload.recipe)
    found = {part.block.name: _hidden_share(made, part) for part in parts(made, chunk)}
    usual = made.execution.data_parallel.overlap
    assert found == {**found, "layer_moe": usual * hides, "layer_dense": usual}
    assert usual > 0


@pytest.mark.parametrize(
    ("framework", "sharding", "each"),
    [("torchtitan", "optim_grads_params", True), ("megatron-lm", "optim", False), ("megatron-lm", "no_shard", False)],
)
def test_what_travels_with_every_micro_batch_does_not_travel_after_the_last(
    framework: str, sharding: str, each: bool
) -> None:
    made = resolved(framework, "llama3.1_8b", data_parallel_sharding=sharding)
    step = priced(made, H100, of(H100.gpu), "simulate", settings.DEFAULT)
    reduce, gather, updates, _ = rank_figures(made, step.clock, step.held[0])
    assert (reduce == 0.0, gather == 0.0) == (each, each or sharding == "no_shard")
    assert updates > 0.0
