"""Precision, attention and element-wise switches change the operators that they are about, and only those."""

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
    launches,
    named,
    names,
    phases,
    resolved,
    stream_bytes,
    with_execution,
)

from projector.layers.lower import embedding, head, layer
from projector.operators.types import Attention, Gemm, GroupedGemm, Stream
from projector.workload.model import decoder


@pytest.mark.parametrize(
    ("precision", "recipe", "dtype", "scaling"),
    [
        ("bf16", "tensorwise", "bf16", ""),
        ("fp16", "tensorwise", "fp16", ""),
        ("fp8", "delayed", "fp8", "tensorwise"),
        ("fp8", "tensorwise", "fp8", "tensorwise"),
        ("fp8", "rowwise", "fp8", "rowwise"),
        ("fp8", "blockwise", "fp8", "blockwise"),
        ("fp8", "mxfp8", "mxfp8", "mxfp8"),
        ("mxfp8", "mxfp8", "mxfp8", "mxfp8"),
        ("nvfp4", "nvfp4", "nvfp4", ""),
    ],
)
def test_operand_types(precision, recipe, dtype, scaling):
    case = resolved(DEEPSEEK_V3, precision=precision, fp8_recipe=recipe)
    block = layer(EXPERTS, case)
    plain = "fp16" if precision == "fp16" else "bf16"
    for op in block.forward:
        if isinstance(op, Attention):
            assert op.dtype == plain
        elif isinstance(op, Gemm | GroupedGemm):
            assert (op.dtype, op.scaling) == ((plain, "") if op.name == "router" else (dtype, scaling))
    assert named(head(case).forward, "output").dtype == plain
    assert bool([op for op in block.forward if isinstance(op, Stream) and op.kind == "cast"]) == (dtype != plain)


def test_quantised_elements_of_a_dense_layer():
    h, q, kv, f = 8192, 64 * 128, 2 * 8 * 128, 28672
    block = layer(DENSE, resolved(LLAMA_70B, precision="fp8", fp8_recipe="blockwise"))
    per_element = 2 + 2 + 2 * 4 / 128
    cast = stream_bytes(op for op in block.forward if op.name.endswith(".cast"))
    assert cast == pytest.approx(per_element * 4096 * (2 * h + q + f))
    cast = stream_bytes(op for op in block.backward_input if op.name.endswith(".grad_cast"))
    assert cast == pytest.approx(per_element * 4096 * (q + kv + h + 2 * f + h))


def test_norms_emit_quantised_output_when_the_scale_is_known():
    delayed = layer(DENSE, resolved(LLAMA_70B, precision="fp8", fp8_recipe="delayed"))
    assert "qkv.cast" not in names(delayed.forward)
    assert "proj.cast" in names(delayed.forward)


def test_first_and_last_layers_may_stay_in_bf16():
    case = resolved(LLAMA_70B, precision="fp8")
    assert layer(DENSE, case, quantised=False).forward == layer(DENSE, resolved(LLAMA_70B)).forward


def test_a_cast_writes_each_orientation_that_a_product_wants():
    for recipe, written in (("delayed", 2.0), ("tensorwise", 2.0), ("current", 2.0)):
        both = resolved(LLAMA_70B, precision="fp8", fp8_recipe=recipe)
        either = with_execution(both, fusion={"cast_transposes": False})
        pairs = [(named(layer(DENSE, case).forward, "proj.cast")) for case in (both, either)]
        assert pairs[0].write == written * 4096 * 8192 == 2 * pairs[1].write, "one operand serves every product"
        assert pairs[0].read == pairs[1].read
    scaled = resolved(LLAMA_70B, precision="mxfp8")
    apart = with_execution(scaled, fusion={"norm_casts_mxfp8": False, "cast_transposes": False})
    joined, alone = (layer(DENSE, case) for case in (scaled, apart))
    assert stream_bytes(alone.forward) - stream_bytes(joined.forward) == pytest.approx((4 + 2 / 32) * 2 * 4096 * 8192)
    assert names(joined.backward_input) == names(alone.backward_input), "two orientations under scales of blocks"


def test_weights_are_cast_in_every_micro_batch_only_under_full_sharding():
    sharded = layer(DENSE, resolved(LLAMA_70B, precision="fp8", data_parallel_sharding="optim_grads_params"))
    kept = layer(DENSE, resolved(LLAMA_70B, precision="fp8"))
    assert names(sharded.forward) - names(kept.forward) == {
        f"{name}.weight_cast" for name in ("qkv", "proj", "fc1", "fc2")
    }


def test_fp8_attention_only_when_asked():
    case = resolved(LLAMA_70B, precision="fp8", fp8_dot_product_attention=True)
    assert named(layer(DENSE, case).forward, "core_attn").dtype == "fp8"


def test_sliding_window():
    case = resolved(LLAMA_70B, seq_length=8192)
    op = named(layer(decoder(False, 1024), case).forward, "core_attn")
    assert op.pairs == 1024 * 8192 - 1024**2 / 2
    ring = layer(decoder(False, 1024), resolved(LLAMA_70B, seq_length=8192, cp=4))
    assert not collectives(ring.forward, "send_recv")


def test_ring_attention_steps_hide_their_exchange():
    block = layer(DENSE, resolved(LLAMA_70B, cp=4, seq_length=16384))
    steps = [op for op in block.forward if isinstance(op, Attention)]
    assert [op.causal for op in steps] == [True, False, False, False]
    assert [(op.seq_q, op.seq_k) for op in steps] == [(4096, 4096), (4096, 2048), (2048, 4096), (4096, 2048)]
    ring = collectives(block.forward, "send_recv", "cp")
    assert [c.hides_behind for c in ring] == [(op.name,) for op in steps[:-1]]


@pytest.mark.parametrize("cp", [2, 4, 16, 64])
def test_ring_attention_sends_keys_and_gradients_once_to_each_other_rank(cp: int):
    """Whatever steps are merged: cp-1 messages each way around, gradients beside keys, and every area once."""
    seq = 65536
    block = layer(DENSE, resolved(LLAMA_70B, cp=cp, seq_length=seq))
    whole = layer(DENSE, resolved(LLAMA_70B, seq_length=seq))
    keys = 2.0 * 2 * 8 * 128 * seq / cp
    for ops, tensors in ((block.forward, 1), (block.backward_input, 2)):
        ring = collectives(ops, "send_recv", "cp")
        assert sum(op.bytes for op in ring) == tensors * keys * (cp - 1)
        assert sum(op.launches for op in ring) == cp - 1
        assert all(op.hides_behind for op in ring)
    mine, all_ = (sum(op.flops for op in b.forward if isinstance(op, Attention)) for b in (block, whole))
    assert mine == pytest.approx(all_ / cp)


def test_materialised_attention():
    case = with_execution(resolved(LLAMA_70B), fusion={"attention_materialised": True})
    ops = [op for ops in phases(layer(DENSE, case)) for op in ops if isinstance(op, Attention)]
    assert ops
    assert not any(op.flash for op in ops)


def test_positions_and_query_key_norms():
    learned = replace(LLAMA_70B, position_embedding_type="learned_absolute", max_position_embeddings=2048)
    assert "rope" not in names(layer(DENSE, resolved(learned)).forward)
    assert embedding(resolved(learned)).owned.dense - embedding(resolved(LLAMA_70B)).owned.dense == 2048 * 8192
    assert "qk_norm" in names(layer(DENSE, resolved(replace(LLAMA_70B, qk_layernorm=True))).forward)


def test_compiled_elementwise_kernels_are_fewer_and_read_less():
    plain = layer(DENSE, resolved(LLAMA_70B, apply_rope_fusion=False, bias_activation_fusion=False))
    compiled = layer(
        DENSE,
        with_execution(
            resolved(LLAMA_70B, apply_rope_fusion=False, bias_activation_fusion=False), fusion={"elementwise": True}
        ),
    )
    assert 8 <= launches(compiled.forward) <= 14
    for a, b in zip(phases(compiled)[:2], phases(plain)[:2], strict=True):
        assert launches(a) < launches(b)
        assert stream_bytes(a) < stream_bytes(b)
        assert flops(a) == flops(b)


@pytest.mark.parametrize(("gated", "expected"), [(True, 6), (False, 4)])
def test_activation_bytes(gated, expected):
    block = layer(DENSE, resolved(replace(LLAMA_70B, gated_linear_unit=gated)))
    assert named(block.forward, "act").bytes == expected * 28672 * 4096
    assert named(block.backward_input, "act.bwd").bytes == (10 if gated else 6) * 28672 * 4096
