"""Tensor parallelism, weights and adapters: each switch changes the operators that it is about, and only those."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lowering_cases import (
    DEEPSEEK_V3,
    DENSE,
    EXPERTS,
    LLAMA_70B,
    collectives,
    flops,
    named,
    names,
    phases,
    resolved,
    stream_bytes,
    with_execution,
)

from projector.layers.lower import embedding, head, layer
from projector.operators.types import Gemm, GroupedGemm
from projector.workload.lora import LoRA


def test_without_sequence_parallelism_two_all_reduces_each_way():
    block = layer(DENSE, resolved(LLAMA_70B, tp=8, sequence_parallel=False))
    assert [c.kind for c in collectives(block.forward)] == ["all_reduce"] * 2
    assert [c.kind for c in collectives(block.backward_input)] == ["all_reduce"] * 2
    assert all(c.hides_behind for c in collectives(block.backward_input))
    assert named(block.forward, "input_norm").read == 2 * 4096 * 8192


def test_one_rank_communicates_nothing():
    for block in (layer(DENSE, resolved(LLAMA_70B)), head(resolved(LLAMA_70B)), layer(EXPERTS, resolved(DEEPSEEK_V3))):
        assert not [c for ops in phases(block) for c in collectives(ops)]


def test_overlapped_tensor_parallelism_exposes_one_chunk():
    plain = layer(DENSE, resolved(LLAMA_70B, tp=4))
    overlapped = layer(DENSE, resolved(LLAMA_70B, tp=4, tp_comm_overlap=True))
    exposed = sum(c.bytes for c in collectives(overlapped.forward) if not c.hides_behind)
    assert exposed == pytest.approx(sum(c.bytes for c in collectives(plain.forward)) / 4)
    for kind in ("all_gather", "reduce_scatter"):
        total = [sum(c.bytes for c in collectives(b.forward, kind)) for b in (plain, overlapped)]
        assert total[0] == total[1]


def test_products_beside_an_overlapped_message_run_piece_by_piece():
    apart, inside = (resolved(LLAMA_70B, tp=8, tp_comm_overlap=on) for on in (False, True))
    pieces = {"qkv": 8, "fc1": 8, "proj": 4, "fc2": 4, "proj.dgrad": 8, "fc2.dgrad": 8}
    for before, after in zip(phases(layer(DENSE, apart)), phases(layer(DENSE, inside)), strict=True):
        assert flops(before) == flops(after)
        cut = {op.name: op.batch for op in after if isinstance(op, Gemm) and op.batch > 1}
        assert cut == {name: pieces[name] for name in cut}
        assert all(op.launches == op.batch for op in after if isinstance(op, Gemm))
    assert {op.name for ops in phases(layer(DENSE, inside)) for op in ops if getattr(op, "batch", 1) > 1} == set(pieces)
    # the output layer is no layer of Transformer Engine
    assert named(head(inside).forward, "output.ag").hides_behind == ()


def test_more_ranks_than_key_value_groups_keep_one_group_each():
    case = resolved(replace(LLAMA_70B, num_query_groups=2), tp=8)
    assert named(layer(DENSE, case).forward, "qkv").n == 64 // 8 * 128 + 2 * 128


def test_latent_attention_gathers_latents_only():
    block = layer(DENSE, resolved(DEEPSEEK_V3, tp=4))
    gathered = {c.name: c.bytes for c in collectives(block.forward, "all_gather")}
    assert gathered["q_up.ag"] == 4096 * 1536 * 2
    assert gathered["kv_up.ag"] == 4096 * 512 * 2
    assert gathered["k_pe.ag"] == 4096 * 64 * 2
    assert named(block.forward, "q_down").m == 4096 // 4
    uncompressed = replace(DEEPSEEK_V3, mla=replace(DEEPSEEK_V3.mla, q_lora_rank=None))
    assert named(layer(DENSE, resolved(uncompressed, tp=4)).forward, "q_proj.ag").bytes == 4096 * 7168 * 2


@pytest.mark.parametrize(
    ("how", "accumulate", "extra"), [("fused", True, 0), ("separate", False, 10), ("none", False, 0)]
)
def test_gradient_accumulation(how, accumulate, extra):
    case = with_execution(resolved(LLAMA_70B), fusion={"wgrad_accumulation": how})
    block = layer(DENSE, case)
    gemms = [op for op in block.backward_weight if isinstance(op, Gemm)]
    assert all(op.accumulate is accumulate for op in gemms)
    adds = stream_bytes(op for op in block.backward_weight if op.name.endswith("wgrad.add"))
    assert adds == extra * sum(op.m * op.n for op in gemms)


def test_libraries_of_grouped_products_return_the_gradient_of_experts():
    """Transformer Engine's adds it inside the product where linears do; the others leave 2 + 4 read and 4 written."""
    cases = {how: resolved(DEEPSEEK_V3, ep=8, moe_grouped_gemm=how) for how in ("te", "fused", "legacy")}
    blocks = {how: layer(EXPERTS, case) for how, case in cases.items()}
    for how, block in blocks.items():
        experts = [op for op in block.backward_weight if isinstance(op, GroupedGemm)]
        assert all(op.accumulate is (how == "te") for op in experts)
        adds = stream_bytes(op for op in block.backward_weight if op.name.endswith("wgrad.add"))
        assert adds == (0 if how == "te" else 10 * sum(op.groups * op.n * op.k for op in experts))
        assert [flops(ops) for ops in phases(block)] == [flops(ops) for ops in phases(blocks["te"])]


def test_split_projections_have_the_same_flop_and_more_kernels():
    fused = layer(DENSE, resolved(LLAMA_70B, tp=2))
    split = layer(DENSE, with_execution(resolved(LLAMA_70B, tp=2), fusion={"qkv": False, "gate_up": False}))
    for a, b in zip(phases(fused), phases(split), strict=True):
        assert flops(a) == flops(b)
    assert len([op for op in split.forward if isinstance(op, Gemm)]) == 7
    assert split.owned.dense == fused.owned.dense
    assert sum(c.bytes for c in collectives(split.forward)) == sum(c.bytes for c in collectives(fused.forward))


def test_adapters_freeze_everything_else():
    base = layer(DENSE, resolved(LLAMA_70B, seq_length=8192))
    case = resolved(LLAMA_70B, seq_length=8192, lora=LoRA(dim=16))
    block = layer(DENSE, case)
    assert flops(block.backward_weight) < 0.01 * flops(base.backward_weight)
    assert {name.split(".")[0] for name in names(block.backward_weight)} == {"qkv", "proj"}
    assert flops(block.backward_input) > flops(base.backward_input)
    assert block.owned.dense - base.owned.dense == 16 * (8192 + 10240 + 8192 + 8192)
    assert not head(case).backward_weight
    assert not embedding(case).backward_input


def test_adapters_gather_again_what_an_overlapped_gather_keeps():
    """Transformer Engine returns the gathered input of a linear only where the gather is not part of the product."""
    how = {"tp": 4, "lora": LoRA(dim=16)}
    apart, inside = (layer(DENSE, resolved(LLAMA_70B, **how, tp_comm_overlap=on)) for on in (False, True))
    gathered = [op.name for op in inside.forward if op.name.endswith("lora_ag")]
    assert gathered == ["qkv.lora_ag"]  # the input of the projection is split by heads, not by tokens
    assert not [op for op in apart.forward if op.name.endswith("lora_ag")]
    assert named(inside.forward, "qkv.lora_ag").bytes == 2 * 4096 * 8192
    assert named(inside.backward_input, "qkv.lora_rs").bytes == 2 * 4096 * 8192


def test_dropout_of_an_adapter_costs_what_it_saves():
    case = resolved(LLAMA_70B, lora=LoRA(dim=16))
    dropping = layer(DENSE, with_execution(case, adapters={"dropout": 0.1}))
    mask = named(dropping.forward, "qkv.lora_dropout")
    assert (mask.read, mask.write) == (2 * 4096 * 8192, 3 * 4096 * 8192)
    assert not [op for op in layer(DENSE, case).forward if "dropout" in op.name]


def test_tied_weights_are_counted_once_on_one_stage():
    tied = replace(LLAMA_70B, untie_embeddings_and_output_weights=False)
    assert head(resolved(tied)).owned.dense == LLAMA_70B.hidden_size
    assert head(resolved(tied, pp=2)).owned.dense == head(resolved(LLAMA_70B)).owned.dense


def test_row_wise_scaling_gathers_sixteen_bits_and_casts_everything():
    fp8 = {"precision": "fp8", "tp": 8, "tp_comm_overlap": True}
    tensor, row = (
        layer(
            DENSE,
            with_execution(
                resolved(LLAMA_70B, **fp8, fp8_recipe=how),
                tensor_parallel={"quantised_gather": "tensorwise"},
            ),
        )
        for how in ("tensorwise", "rowwise")
    )
    gathered = [sum(c.bytes for c in collectives(b.forward, "all_gather")) for b in (tensor, row)]
    assert gathered[1] == 2 * gathered[0]
    assert all(not c.hides_behind for c in collectives(row.forward, "all_gather"))
    assert any(c.hides_behind for c in collectives(tensor.forward, "all_gather"))
    assert named(row.forward, "qkv.cast").read == 8 * named(tensor.forward, "qkv.cast").read
    assert "qkv.dgrad_scale" in names(row.backward_input)
    assert "qkv.dgrad_scale" not in names(tensor.backward_input)
