"""Recompute, graphs and the loss; what is refused, named once and built once."""

from dataclasses import replace

import pytest
from asked import refusal
from hypothesis import given
from hypothesis import strategies as st
from lowering_cases import (
    DEEPSEEK_V3,
    DENSE,
    EXPERTS,
    LLAMA_70B,
    attention_flops,
    collectives,
    flops,
    phases,
    resolved,
    stream_bytes,
)

from projector.errors import Unsupported
from projector.frameworks import resolve
from projector.layers.lower import embedding, head, layer, mtp
from projector.operators.types import Gemm, GroupedGemm
from projector.workload import zoo
from projector.workload.parameters import count
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload


def test_graph_scopes_name_operators():
    block = layer(EXPERTS, resolved(DEEPSEEK_V3, ep=8, cuda_graph_scope=("attn", "moe_router")))
    assert {"q_up", "q_up.dgrad", "core_attn.bwd", "router", "proj.wgrad"} <= block.graphed
    assert not {"moe.dispatch", "experts.fc1"} & block.graphed
    whole = layer(DENSE, resolved(LLAMA_70B, cuda_graph_scope=("full",)))
    assert whole.graphed == {op.name for ops in phases(whole) for op in ops}
    assert not layer(DENSE, resolved(LLAMA_70B)).graphed


@pytest.mark.parametrize(("how", "each"), [("unfused", 52), ("native", 30), ("te", 10), ("compiled", 8), ("linear", 0)])
def test_cross_entropy_bytes(how, each):
    case = resolved(LLAMA_70B, cross_entropy_fusion=how)
    block = head(case)
    logits = 4096 * case.workload.padded_vocab_size
    loss = stream_bytes(op for op in (*block.forward, *block.backward_input) if op.name in ("loss", "loss.bwd"))
    assert loss == each * logits
    again = flops(block.backward_input) - flops(block.forward)
    assert again == (flops(block.forward) if how == "linear" else 0)


def test_embedding_gradient_is_dense():
    block = embedding(resolved(LLAMA_70B, make_vocab_size_divisible_by=64))
    weight = 128256 * 8192
    assert stream_bytes(block.backward_input) == pytest.approx(
        (2 + 2 + 4 + 4) * weight + 4 * 4096 * 8192 + 2 * 4096 * 8192
    )


def test_what_no_operator_lowers_is_refused():
    with pytest.raises(Unsupported, match="state space"):
        layer(DENSE, resolved(replace(LLAMA_70B, unsupported=("state space layers",))))
    refusal(layer, EXPERTS, resolved(LLAMA_70B), match="experts", kind=Unsupported)


def test_names_are_unique_inside_a_phase():
    for block in (
        layer(DENSE, resolved(LLAMA_70B, tp=4, cp=4, precision="fp8", tp_comm_overlap=True)),
        layer(EXPERTS, resolved(DEEPSEEK_V3, tp=2, ep=8, etp=2, cp=2, precision="mxfp8")),
        head(resolved(LLAMA_70B, tp=2)),
        mtp(resolved(DEEPSEEK_V3, tp=2)),
    ):
        for ops in (*phases(block), block.recompute):
            assert len({op.name for op in ops}) == len(ops)


# What recompute makes of a layer is the layer but for what recompute is about.


def test_layers_under_recompute_have_the_operators_and_weights_of_all() -> None:
    model, made = zoo.load("deepseek_v3"), {}
    for granularity in ("none", "selective", "full"):
        recipe = Recipe(
            micro_batch_size=1, global_batch_size=64, seq_length=4096, tp=2, ep=8, recompute_granularity=granularity
        )
        made[granularity] = layer(model.layer_kinds[-1], resolve(Workload(model=model, recipe=recipe, gpus=64)))
    none, selective, full = made.values()
    for other in (selective, full):
        assert other.forward == none.forward
        assert other.backward_weight == none.backward_weight
        assert other.owned == none.owned
        assert other.saves == none.saves
        assert {each.tensor for each in other.dropped} <= {each.tensor for each in none.kept}
    assert not none.recompute
    assert not none.dropped
    assert 0 < len(selective.recompute) < len(full.recompute)
    assert full.kept_bytes < selective.kept_bytes < none.kept_bytes == none.saved_bytes


# The weights of all ranks together are those of the model.


@pytest.mark.parametrize(
    "name", ["llama3_8b", "qwen2.5_7b", "qwen3_30b_a3b", "mixtral_8x7b", "mpt_7b", "nemotron4_15b", "moonlight_16b_a3b"]
)
def test_zoo_models_have_their_published_weights(name):
    model = zoo.load(name)
    case = resolved(model, make_vocab_size_divisible_by=1)
    blocks = [layer(kind, case) for kind in model.layer_kinds] + [embedding(case), head(case)]
    total = sum(b.owned.dense + b.owned.expert for b in blocks)
    assert total == pytest.approx(count(model).total, rel=1e-4)


# However the work is split, all ranks together do the same work.

SPLITS = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4, 8]),
        "cp": st.sampled_from([1, 2, 4, 8, 16]),
        "cp_comm_type": st.sampled_from(["p2p", "allgather"]),
        "ep": st.sampled_from([1, 8, 32]),
        "etp": st.sampled_from([1, 2, 4]),
        "micro_batch_size": st.sampled_from([1, 2]),
        "moe_token_dispatcher_type": st.sampled_from(["alltoall", "allgather", "flex"]),
    }
)
ONE = {"tp": 1, "cp": 1, "ep": 1, "etp": 1}


def whole(model, kind, **split):
    """(GEMM FLOP forward, dgrad, wgrad, attention forward, backward) of a micro-batch over all ranks that share it."""
    recipe = {"seq_length": 8192} | split
    block = layer(kind, resolved(model, **recipe))
    ranks = split["tp"] * split["cp"]
    matrix = [flops(ops) * ranks for ops in phases(block)]
    return (*matrix, attention_flops(block.forward) * ranks, attention_flops(block.backward_input) * ranks)


@pytest.mark.parametrize(("model", "kind"), [(LLAMA_70B, DENSE), (DEEPSEEK_V3, EXPERTS)])
@given(split=SPLITS)
def test_flop_do_not_depend_on_the_split(model, kind, split):
    once = whole(model, kind, **ONE)
    now = [value / split["micro_batch_size"] for value in whole(model, kind, **split)]
    assert now == pytest.approx(once, rel=1e-9)
    assert once[0] == pytest.approx(once[1]) == pytest.approx(once[2])


@given(SPLITS)
def test_every_gemm_has_its_two_gradients_of_the_same_flop(split):
    block = layer(EXPERTS, resolved(DEEPSEEK_V3, **split))
    forward = {op.name: op for op in block.forward if isinstance(op, Gemm | GroupedGemm)}
    dgrad = {op.name: op for op in block.backward_input if isinstance(op, Gemm | GroupedGemm)}
    wgrad = {op.name: op for op in block.backward_weight if isinstance(op, Gemm | GroupedGemm)}
    for name, op in forward.items():
        back, weight = dgrad[f"{name}.dgrad"], wgrad[f"{name}.wgrad"]
        assert op.flops == back.flops == weight.flops
        assert (op.layout, back.layout, weight.layout) == ("TN", "NN", "NT")


@given(SPLITS, st.booleans())
def test_what_is_gathered_forward_is_scattered_backward(split, overlap):
    block = layer(DENSE, resolved(LLAMA_70B, tp_comm_overlap=overlap, **split))
    sent = {
        (kind, phase): sum(c.bytes for c in collectives(ops, kind, "tp"))
        for phase, ops in (("forward", block.forward), ("backward", block.backward_input))
        for kind in ("all_gather", "reduce_scatter")
    }
    assert sent["all_gather", "forward"] == pytest.approx(sent["reduce_scatter", "forward"])
    assert sent["reduce_scatter", "backward"] == pytest.approx(sent["all_gather", "forward"])
    # output gradients gathered once, saved inputs a second time
    assert sent["all_gather", "backward"] == pytest.approx(2 * sent["all_gather", "forward"])


@given(SPLITS)
def test_experts_receive_what_is_sent(split):
    block = layer(EXPERTS, resolved(DEEPSEEK_V3, **split))
    out = {c.name: c.bytes for c in (*collectives(block.forward), *collectives(block.backward_input))}
    for name in ("moe.dispatch", "moe.combine"):
        assert out.get(name) == out.get(f"{name}.bwd")
    assert out.get("moe.dispatch") == out.get("moe.combine")


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_ulysses_attends_to_whole_sequences_with_fewer_heads(cp):
    once = whole(LLAMA_70B, DENSE, **ONE)
    for how in ("a2a", "a2a+p2p"):
        assert whole(LLAMA_70B, DENSE, **(ONE | {"cp": cp, "cp_comm_type": how})) == pytest.approx(once)


def published(model, seq_length):
    """GFLOP per token of training as Megatron-LM counts them since 0.12: three forwards, the causal half."""
    case = resolved(model, seq_length=seq_length)
    kinds = [layer(kind, case) for kind in model.layer_kinds]
    forward = sum(flops(b.forward) - flops(b.forward, "router") + attention_flops(b.forward) for b in kinds)
    return 3 * (forward + flops(head(case).forward)) / seq_length / 1e9


def test_whole_models_agree_with_the_formula_of_megatron():
    assert published(LLAMA_70B, 8192) == pytest.approx(449.22, rel=2e-5)
    assert published(DEEPSEEK_V3, 4096) == pytest.approx(249.81, rel=2e-4)


def test_depths_of_multi_token_prediction_agree_with_the_formula_of_megatron():
    case = resolved(DEEPSEEK_V3)
    block = mtp(case)
    extra = 3 * (flops(block.forward) - flops(block.forward, "router") + attention_flops(block.forward)) / 4096 / 1e9
    assert published(DEEPSEEK_V3, 4096) + extra == pytest.approx(259.99, rel=2e-4)


def test_six_flop_per_active_weight_and_token():
    case = resolved(LLAMA_70B, seq_length=8192)
    blocks = [layer(kind, case) for kind in LLAMA_70B.layer_kinds] + [head(case)]
    norms = (2 * 80 + 1) * LLAMA_70B.hidden_size
    weights = sum(b.owned.dense for b in blocks) - norms
    total = sum(flops(ops) for b in blocks for ops in phases(b))
    assert total == pytest.approx(6 * weights * 8192)
