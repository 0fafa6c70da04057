"""However the work is split, all ranks together do the same work."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
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
)

from projector.layers.lower import head, layer, mtp
from projector.operators.types import Gemm, GroupedGemm

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


@settings(max_examples=40, deadline=None)
@given(SPLITS)
def test_dense_flop_do_not_depend_on_the_split(split):
    once = whole(LLAMA_70B, DENSE, **ONE)
    now = [value / split["micro_batch_size"] for value in whole(LLAMA_70B, DENSE, **split)]
    assert now == pytest.approx(once, rel=1e-9)
    assert once[0] == pytest.approx(once[1]) == pytest.approx(once[2])


@settings(max_examples=60, deadline=None)
@given(SPLITS)
def test_moe_flop_do_not_depend_on_the_split(split):
    once = whole(DEEPSEEK_V3, EXPERTS, **ONE)
    now = [value / split["micro_batch_size"] for value in whole(DEEPSEEK_V3, EXPERTS, **split)]
    assert now == pytest.approx(once, rel=1e-9)
    assert once[0] == pytest.approx(once[1]) == pytest.approx(once[2])


@settings(max_examples=40, deadline=None)
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


@settings(max_examples=60, deadline=None)
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


@settings(max_examples=40, deadline=None)
@given(SPLITS)
def test_experts_receive_what_is_sent(split):
    block = layer(EXPERTS, resolved(DEEPSEEK_V3, **split))
    out = {c.name: c.bytes for c in (*collectives(block.forward), *collectives(block.backward_input))}
    for name in ("moe.dispatch", "moe.combine"):
        assert out.get(name) == out.get(f"{name}.bwd")
    assert out.get("moe.dispatch") == out.get("moe.combine")


def test_context_parallel_exchange_does_not_change_with_the_order_of_its_parts():
    for cp in (2, 4, 8, 16, 32):
        block = layer(DENSE, resolved(LLAMA_70B, cp=cp, seq_length=65536))
        sent = sum(c.bytes for c in collectives(block.forward, "send_recv", "cp"))
        keys = 65536 // cp * 2 * LLAMA_70B.num_query_groups * 128 * 2
        assert sent == pytest.approx((cp - 1) * keys)
        back = sum(c.bytes for c in collectives(block.backward_input, "send_recv", "cp"))
        assert back == pytest.approx(2 * (cp - 1) * keys)  # what lies at home at the end is not sent


@pytest.mark.parametrize(("inner", "cp"), [(2, 2), (4, 4), (8, 8)])
def test_ulysses_attends_to_whole_sequences_with_fewer_heads(inner, cp):
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
