"""Every switch of a mixture-of-experts layer changes the operators that it is about, and only those."""

import random
from dataclasses import replace
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lowering_cases import DEEPSEEK_V3, EXPERTS, collectives, named, names, resolved, syncs

from projector.errors import Unsupported
from projector.frameworks import Resolved, load, resolve
from projector.layers import lower
from projector.layers.local import local
from projector.layers.lower import layer
from projector.mechanisms.dispatch.routing import expert_loads, fullest_rank, kept_share
from projector.operators.module import Block
from projector.operators.types import Collective, Gemm, GroupedGemm, Stream
from projector.workload import zoo
from tests.workloads import workload


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather", "flex"])
def test_host_waits_once_in_every_forward_and_replay_and_never_backward(dispatcher):
    case = resolved(DEEPSEEK_V3, ep=8, moe_token_dispatcher_type=dispatcher, recompute_granularity="full")
    block = layer(EXPERTS, case)
    assert [syncs(ops) for ops in (block.forward, block.recompute, block.backward_input)] == [1, 1, 0]


def test_quantised_experts_are_padded():
    block = layer(EXPERTS, resolved(DEEPSEEK_V3, ep=8, seq_length=4100, precision="fp8"))
    rows = named(block.forward, "experts.fc1").rows
    assert rows >= 4100 * 8
    assert rows % (16 * 32) == 0
    assert {"moe.pad", "moe.unpad"} <= names(block.forward)


def test_overlaps_of_the_exchange():
    shared = layer(EXPERTS, resolved(DEEPSEEK_V3, ep=8, moe_shared_expert_overlap=True))
    dispatch = named(shared.forward, "moe.dispatch")
    assert "shared.fc1" in dispatch.hides_behind
    assert set(dispatch.hides_behind) <= names(shared.forward)
    batch = layer(EXPERTS, resolved(DEEPSEEK_V3, ep=8, overlap_moe_expert_parallel_comm=True))
    for ops in (batch.forward, batch.backward_input):
        # what runs beside them is a neighbouring micro-batch, in no phase of this one (projector.step.combined_1f1b)
        assert all(c.hides_behind == () for c in collectives(ops, "all_to_all"))


HYBRIDEP = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}


@pytest.mark.parametrize("fusion", [True, False])
def test_hybridep_permutes_by_kernels_of_its_own(fusion):
    """dispatch_with_permute: what landed is read once and written to each expert, and the way back is its mirror image."""
    block = layer(EXPERTS, resolved(DEEPSEEK_V3, ep=8, moe_permute_fusion=fusion, **HYBRIDEP))
    there, back = named(block.forward, "moe.permute"), named(block.forward, "moe.unpermute")
    assert (there.kind, back.kind) == ("permute", "permute")
    assert (there.read, there.write) == (back.write, back.read)
    assert there.write == 2 * 7168 * 8 * 4096  # every routed copy
    assert there.read < there.write  # a token lands once on a rank, however many of its experts want it
    assert named(block.forward, "moe.dispatch").transport == "hybridep"


@given(st.sampled_from([2, 4, 8, 16, 32, 64]))
def test_hybridep_gathers_the_routes_of_the_group(ep):
    """One byte for each token and expert, so it grows with the group where the tokens' bytes level off."""
    block = layer(EXPERTS, resolved(DEEPSEEK_V3, ep=ep, **HYBRIDEP))
    assert named(block.forward, "moe.routes_ag").bytes == 4096 * 256 * ep
    sent, summed = named(block.forward, "moe.dispatch"), named(block.forward, "moe.combine")
    weights = 4 * 256 * min(1.0, 8 / ep)  # fp32 weights of the experts of a node, on the way there only
    assert sent.bytes / summed.bytes == pytest.approx(1 + weights / (2 * 7168))


def test_mega_moe_hides_the_exchange_of_deepep_in_the_products_and_permutes_nothing():
    flex = {"ep": 8, "moe_token_dispatcher_type": "flex", "moe_grouped_gemm": "fused"}
    mega = layer(EXPERTS, resolved(DEEPSEEK_V3, **flex, moe_flex_dispatcher_backend="mega_moe"))
    deepep = layer(EXPERTS, resolved(DEEPSEEK_V3, **flex))
    assert syncs(mega.forward) == 0 < syncs(deepep.forward)
    assert not {"moe.permute", "moe.unpermute.bwd"} & (names(mega.forward) | names(mega.backward_input))
    for own, other in ((mega.forward, deepep.forward), (mega.backward_input, deepep.backward_input)):
        exchanged = {c.name: c for c in collectives(other) if c.group == "ep"}
        for message in (c for c in collectives(own) if c.group == "ep"):
            assert message.bytes == exchanged.pop(message.name).bytes
            assert message.launches == 0  # inside the kernel of the product
            assert set(message.hides_behind) <= names(own)
            assert message.hides_behind
        assert not exchanged
    with pytest.raises(Unsupported, match="one node"):
        layer(EXPERTS, resolved(DEEPSEEK_V3, **(flex | {"ep": 16}), moe_flex_dispatcher_backend="mega_moe"))


@pytest.mark.parametrize(("ep", "copies"), [(4, 8), (8, 8)])
def test_mega_moe_has_rows_for_every_copy_on_one_rank(ep: int, copies: int) -> None:
    """Primus-Turbo flydsl/mega/symm_buffer.py: rows of the pool; a layer keeps the first linear's output for all of them and
    neither the dispatched rows nor the activated ones; two pools and the slots of the combine lie in a heap."""
    flex = {"ep": ep, "moe_token_dispatcher_type": "flex", "moe_grouped_gemm": "fused"}
    case = resolved(DEEPSEEK_V3, **flex, moe_flex_dispatcher_backend="mega_moe")
    view, here = local(case), 256 // ep
    rows = -(-(ep * view.shard_tokens * copies + here * 255) // 256) * 256
    saved = {each.tensor: each.bytes for each in layer(EXPERTS, case).saves if each.since == "forward"}
    assert saved["experts.fc1.out"] == pytest.approx(2 * rows * 2 * 2048)
    assert not {"experts.in", "experts.act.out", "experts.act.unweighted", "experts.act.gate"} & saved.keys()
    (moment,) = {each.bytes for each in layer(EXPERTS, case).backward_transients if each.bytes > 3 * rows * 2048}
    assert moment == pytest.approx(2 * rows * 4 * 2048)
    heap = case.execution.dispatch.device_bytes(view)
    assert heap == pytest.approx(2 * 7168 * (2 * rows + 8 * view.shard_tokens) + 16 * rows)
    assert case.execution.dispatch.device_bytes(local(resolved(DEEPSEEK_V3, **(flex | {"ep": 1})))) == 0.0


@given(st.sampled_from([1, 2, 4, 8, 16, 32, 64]))
def test_deduplicated_dispatch_never_sends_more_than_every_copy(ep):
    flex = layer(EXPERTS, resolved(DEEPSEEK_V3, ep=ep, moe_token_dispatcher_type="flex"))
    copies = layer(EXPERTS, resolved(DEEPSEEK_V3, ep=ep))
    sent = [sum(c.bytes for c in collectives(b.forward) if c.name == "moe.dispatch") for b in (flex, copies)]
    assert sent[0] <= sent[1]


# Expert layers of compiled frameworks: mask products, worst-case buffers, masked grouped products, scatter-
# additions.

MODEL = zoo.load("deepseek_v3")
S, K, E, H = 4096, 8, 256, 7168


def compiled_case(**recipe: object) -> Resolved:
    fields = {"micro_batch_size": 2, "global_batch_size": 128, "seq_length": S, "ep": 8}
    fields |= {"moe_router_force_load_balancing": True} | recipe
    return resolve(workload(MODEL, 64, "maxtext", **fields), "amd", "gfx950")


def moe(**recipe: object) -> Block:
    return lower.layer(MODEL.layer_kinds[-1], compiled_case(**recipe))


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


def test_static_shapes_hold_the_worst_case_but_multiply_only_what_arrived() -> None:
    load = compiled_case()
    static = lower.layer(MODEL.layer_kinds[-1], load)
    exact = lower.layer(
        MODEL.layer_kinds[-1], replace(load, execution=load.execution.evolve(dispatch={"static_shapes": False}))
    )

    def act(block: Block) -> Stream:
        return next(op for op in block.forward if isinstance(op, Stream) and op.name == "experts.act")

    assert act(static).bytes == pytest.approx(8 * act(exact).bytes)
    assert flops(static, "experts") == flops(exact, "experts")


def test_masked_products_cost_every_expert_for_every_row() -> None:
    grouped, masked = moe(moe_grouped_gemm="fused"), moe(moe_grouped_gemm="masked")
    assert flops(masked, "experts") == pytest.approx(8 * (E // 8) * flops(grouped, "experts"))
    assert masked.owned.expert == grouped.owned.expert


def test_padded_products_give_every_expert_the_rows_of_the_fullest() -> None:
    even = {"moe_router_force_load_balancing": True}
    assert flops(moe(**even, moe_grouped_gemm="padded"), "experts") == flops(moe(**even), "experts")
    uneven = {"moe_router_force_load_balancing": False, "mock_data": False, "ep": 1}
    padded, tight = (moe(**uneven, moe_grouped_gemm=word) for word in ("padded", "fused"))
    rows = {block: named(block.forward, "experts.fc2").rows for block in (padded, tight)}
    factor = fullest_rank(compiled_case().execution.dispatch.real_data_dispersion, 1, E, rows[tight] / E)
    assert factor > 2.0
    assert rows[padded] == pytest.approx(factor * rows[tight], rel=1e-3)
    assert rows[padded] % E == 0
    assert padded.owned.expert == tight.owned.expert


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
    case = compiled_case()
    recipe, experts = case.workload.recipe, case.workload.model.moe
    assert experts is not None
    rows = recipe.seq_length * recipe.micro_batch_size * experts.moe_router_topk
    factor = fullest_rank(case.execution.dispatch.dispersion, experts.num_experts // recipe.ep, recipe.ep, rows)
    assert factor > 1.0
    assert flops(natural, "experts") == pytest.approx(factor * flops(forced, "experts"), rel=1e-3)
    fixed = moe(**CAPACITY, moe_router_force_load_balancing=False)
    assert flops(fixed, "experts") == flops(moe(**CAPACITY), "experts")


# Loads of experts and ranks under a stated distribution.


def test_forced_balance_and_one_rank_are_even() -> None:
    assert fullest_rank(0.0, 8, 64, 1e4) == 1.0
    assert fullest_rank(0.5, 8, 1, 1e4) == 1.0
    assert expert_loads(0.0, 4) == (1.0,) * 4


@pytest.mark.parametrize(("experts", "ranks"), [(8, 8), (4, 64), (32, 8)])
def test_the_fullest_rank_is_what_a_draw_of_loads_gives(experts: int, ranks: int) -> None:
    dice, dispersion, trials = random.Random(7), 0.2, 2000
    total = 0.0
    for _ in range(trials):
        loads = [sum(max(0.0, dice.gauss(1.0, dispersion)) for _ in range(experts)) for _ in range(ranks)]
        total += max(loads) * ranks / sum(loads)
    assert fullest_rank(dispersion, experts, ranks, 1e9) == pytest.approx(total / trials, rel=0.01)


def test_few_rows_are_uneven_even_when_experts_are_alike() -> None:
    """Multinomial noise: 1/√rows on top of what the router does."""
    assert fullest_rank(1e-9, 8, 8, 100.0) == pytest.approx(1.0 + 1.42 * sqrt(1 / 100) * sqrt(7 / 8), rel=0.01)


@given(st.floats(0.01, 2.0), st.integers(1, 64))
def test_loads_average_to_one_and_fall(dispersion: float, experts: int) -> None:
    loads = expert_loads(dispersion, experts)
    assert sum(loads) == pytest.approx(experts)
    assert list(loads) == sorted(loads, reverse=True)


def test_a_larger_capacity_drops_less() -> None:
    shares = [kept_share(1.0, 256, factor) for factor in (0.5, 1.0, 1.5, 4.0, 100.0)]
    assert shares == sorted(shares)
    assert shares[0] <= 0.5
    assert shares[-1] == pytest.approx(1.0)


def test_more_experts_on_a_rank_even_it_out_and_more_ranks_do_not() -> None:
    assert fullest_rank(1.0, 32, 8, 1e6) < fullest_rank(1.0, 8, 8, 1e6) < fullest_rank(1.0, 8, 32, 1e6)


# Real text spreads tokens over experts less evenly than tokens drawn at random.


def routed(framework: str = "megatron-lm", **changes: object):  # type: ignore[no-untyped-def]
    stated = {"ep": 8, "moe_router_force_load_balancing": False} | changes
    return resolve(workload("deepseek_v2_lite", framework=framework, **stated), "nvidia", "hopper")


def expert_rows(made) -> int:  # type: ignore[no-untyped-def]
    kind = made.workload.model.layer_kinds[-1]
    return max(op.rows for op in layer(kind, made).forward if isinstance(op, GroupedGemm))


def test_forced_balance_then_random_tokens_then_text() -> None:
    forced, mock, text = (
        routed(moe_router_force_load_balancing=True, mock_data=False),
        routed(mock_data=True),
        routed(mock_data=False),
    )
    spread = [made.execution.dispatch.unevenness(made.workload.recipe) for made in (forced, mock, text)]
    assert spread[0] == 0.0 < spread[1] < spread[2]
    assert expert_rows(forced) < expert_rows(mock) < expert_rows(text)


@pytest.mark.parametrize("framework", ["megatron-lm", "primus", "maxtext"])
def test_each_framework_says_how_uneven_text_is(framework: str) -> None:
    assert load(framework).name == framework
    made = routed(framework)
    assert made.execution.dispatch.real_data_dispersion > made.execution.dispatch.dispersion
