"""Expert layers of compiled frameworks: mask products, worst-case buffers, masked grouped products, scatter-additions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from projector.frameworks import Resolved, resolve
from projector.layers import lower
from projector.mechanisms.dispatch.imbalance import fullest_rank
from projector.operators.part import Block
from projector.operators.types import Collective, Gemm, GroupedGemm, Stream
from projector.workload import zoo
from tests.workloads import workload

MODEL = zoo.load("deepseek_v3")
S, K, E, H = 4096, 8, 256, 7168


def resolved(**recipe: object) -> Resolved:
    fields = {"micro_batch_size": 2, "global_batch_size": 128, "seq_length": S, "ep": 8}
    fields |= {"moe_router_force_load_balancing": True} | recipe
    return resolve(workload(MODEL, 64, "maxtext", **fields), "amd", "gfx950")


def moe(**recipe: object) -> Block:
    return lower.layer(MODEL.layer_kinds[-1], resolved(**recipe))


def flops(block: Block, prefix: str) -> float:
    ops = (*block.forward, *block.backward_input, *block.backward_weight)
    return sum(op.flops for op in ops if isinstance(op, Gemm | GroupedGemm) and op.name.startswith(prefix))


CAPACITY = {"moe_expert_capacity_factor": 2.0, "moe_pad_expert_input_to_capacity": True}


def test_mask_products_cost_what_their_shapes_say() -> None:
    """2·S·(E·C)·h FLOP a sequence each: two forward, one and two backward (masks of the dispatch have no gradient)."""
    block = moe(**CAPACITY)
    slots = S * K * 2
    one = 2.0 * S * slots * H * 2  # two sequences
    assert flops(block, "moe.mask_in") == pytest.approx(2 * one)
    assert flops(block, "moe.mask_out") == pytest.approx(3 * one)


def test_mask_products_grow_with_the_square_of_the_sequence() -> None:
    long = moe(**CAPACITY, seq_length=2 * S)
    assert flops(long, "moe.mask") == pytest.approx(4 * flops(moe(**CAPACITY), "moe.mask"))


def test_a_gather_based_framework_has_no_mask_products() -> None:
    load = resolved(**CAPACITY)
    assert load.execution.dispatch.name == "einsum"
    gathers = replace(load, execution=load.execution.but(dispatch={"masks": False}).run_by(load.workload.recipe))
    assert flops(lower.layer(MODEL.layer_kinds[-1], gathers), "moe.mask") == 0


def test_static_shapes_hold_the_worst_case_but_multiply_only_what_arrived() -> None:
    load = resolved()
    static = lower.layer(MODEL.layer_kinds[-1], load)
    exact = lower.layer(
        MODEL.layer_kinds[-1], replace(load, execution=load.execution.but(dispatch={"static_shapes": False}))
    )

    def act(block: Block) -> Stream:
        return next(op for op in block.forward if isinstance(op, Stream) and op.name == "experts.act")

    assert act(static).bytes == pytest.approx(8 * act(exact).bytes)
    assert flops(static, "experts") == flops(exact, "experts")


def test_masked_products_cost_every_expert_for_every_row() -> None:
    grouped, masked = moe(moe_grouped_gemm="fused"), moe(moe_grouped_gemm="masked")
    assert flops(masked, "experts") == pytest.approx(8 * (E // 8) * flops(grouped, "experts"))
    assert masked.owned.expert == grouped.owned.expert


def test_scatter_additions_and_the_one_shot_exchange_are_switches() -> None:
    flex = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}

    def scatters(count: int) -> int:
        block = moe(**flex, moe_dispatch_scatter_adds=count)
        return sum(isinstance(op, Stream) and op.kind == "scatter" for op in block.backward_input)

    assert [scatters(n) for n in (0, 1, 2)] == [0, 1, 2]
    one_shot = moe(moe_all_to_all_kernel="one_shot")
    transports = {op.name: op.transport for op in one_shot.forward if isinstance(op, Collective)}
    assert transports["moe.dispatch"] == transports["moe.combine"] == "one_shot"


def test_natural_routing_loads_the_fullest_rank_more() -> None:
    forced, natural = moe(), moe(moe_router_force_load_balancing=False)
    case = resolved()
    recipe, experts = case.workload.recipe, case.workload.model.moe
    assert experts is not None
    rows = recipe.seq_length * recipe.micro_batch_size * experts.moe_router_topk
    factor = fullest_rank(case.execution.dispatch.dispersion, experts.num_experts // recipe.ep, recipe.ep, rows)
    assert factor > 1.0
    assert flops(natural, "experts") == pytest.approx(factor * flops(forced, "experts"), rel=1e-3)
    fixed = moe(**CAPACITY, moe_router_force_load_balancing=False)
    assert flops(fixed, "experts") == flops(moe(**CAPACITY), "experts")
