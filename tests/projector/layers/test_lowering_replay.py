"""Recompute, graphs and the loss; what is refused, named once and built once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lowering_cases import (
    DEEPSEEK_V3,
    DENSE,
    EXPERTS,
    LLAMA_70B,
    attention_flops,
    flops,
    names,
    phases,
    resolved,
    stream_bytes,
    syncs,
)

from projector.errors import Unsupported
from projector.layers.lower import embedding, head, layer, mtp


@pytest.mark.parametrize(("model", "kind"), [(LLAMA_70B, DENSE), (DEEPSEEK_V3, EXPERTS)])
def test_full_recompute_is_the_forward_again(model, kind):
    block = layer(kind, resolved(model, tp=2, recompute_granularity="full"))
    assert tuple(op for op in block.recompute if op.name != "recompute.random_state") == block.forward
    assert not layer(kind, resolved(model, tp=2)).recompute


@pytest.mark.parametrize(
    ("module", "inside", "outside"),
    [
        ("core_attn", {"core_attn"}, {"qkv", "proj"}),
        ("layernorm", {"input_norm", "pre_mlp_norm"}, {"core_attn", "q_up"}),
        ("mla_up_proj", {"q_up", "kv_up", "rope"}, {"q_down", "core_attn"}),
        ("moe_act", {"experts.act"}, {"experts.fc1", "moe.dispatch"}),
        ("moe", {"router", "experts.fc1", "moe.dispatch", "moe.combine", "moe.counts"}, {"core_attn", "pre_mlp_norm"}),
        ("shared_experts", {"shared.fc1", "shared.act"}, {"router", "experts.fc1"}),
    ],
)
def test_selective_recompute(module, inside, outside):
    case = resolved(DEEPSEEK_V3, ep=8, recompute_granularity="selective", recompute_modules=(module,))
    replayed = names(layer(EXPERTS, case).recompute)
    assert inside <= replayed
    assert not outside & replayed


def test_selective_recompute_of_a_dense_network():
    case = resolved(LLAMA_70B, tp=2, recompute_granularity="selective", recompute_modules=("mlp",))
    assert {"fc1", "fc2", "fc1.ag", "fc2.rs"} <= names(layer(DENSE, case).recompute)
    default = resolved(LLAMA_70B, recompute_granularity="selective")
    assert attention_flops(layer(DENSE, default).recompute) == attention_flops(layer(DENSE, default).forward)


def test_graph_scopes_name_operators():
    block = layer(EXPERTS, resolved(DEEPSEEK_V3, ep=8, cuda_graph_scope=("attn", "moe_router")))
    assert {"q_up", "q_up.dgrad", "core_attn.bwd", "router", "proj.wgrad"} <= block.graphed
    assert not {"moe.dispatch", "experts.fc1"} & block.graphed
    whole = layer(DENSE, resolved(LLAMA_70B, cuda_graph_scope=("full",)))
    assert whole.graphed == {op.name for ops in phases(whole) for op in ops}
    assert not layer(DENSE, resolved(LLAMA_70B)).graphed


@pytest.mark.parametrize(("how", "per_logit"), [("unfused", 52), ("native", 30), ("te", 10), ("linear", 0)])
def test_cross_entropy_bytes(how, per_logit):
    case = resolved(LLAMA_70B, cross_entropy_fusion=how)
    block = head(case)
    logits = 4096 * case.workload.padded_vocab_size
    loss = stream_bytes(op for op in (*block.forward, *block.backward_input) if op.name in ("loss", "loss.bwd"))
    assert loss == per_logit * logits
    again = flops(block.backward_input) - flops(block.forward)
    assert again == (flops(block.forward) if how == "linear" else 0)


def test_loss_check_waits_for_the_device():
    assert syncs(head(resolved(LLAMA_70B)).forward) == 1
    assert syncs(head(resolved(LLAMA_70B, check_for_nan_in_loss_and_grad=False)).forward) == 0


def test_embedding_gradient_is_dense():
    block = embedding(resolved(LLAMA_70B, make_vocab_size_divisible_by=64))
    weight = 128256 * 8192
    assert stream_bytes(block.backward_input) == pytest.approx(
        (2 + 2 + 4 + 4) * weight + 4 * 4096 * 8192 + 2 * 4096 * 8192
    )


def test_what_no_operator_lowers_is_refused():
    with pytest.raises(Unsupported, match="state space"):
        layer(DENSE, resolved(replace(LLAMA_70B, unsupported=("state space layers",))))
    with pytest.raises(Unsupported, match="experts"):
        layer(EXPERTS, resolved(LLAMA_70B))


def test_names_are_unique_inside_a_phase():
    for block in (
        layer(DENSE, resolved(LLAMA_70B, tp=4, cp=4, precision="fp8", tp_comm_overlap=True)),
        layer(EXPERTS, resolved(DEEPSEEK_V3, tp=2, ep=8, etp=2, cp=2, precision="mxfp8")),
        head(resolved(LLAMA_70B, tp=2)),
        mtp(resolved(DEEPSEEK_V3, tp=2)),
    ):
        for ops in (*phases(block), block.recompute):
            assert len({op.name for op in ops}) == len(ops)


def test_blocks_are_built_once():
    case = resolved(LLAMA_70B, tp=2)
    assert layer(DENSE, case) is layer(DENSE, resolved(LLAMA_70B, tp=2))
