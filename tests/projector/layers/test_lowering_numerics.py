"""Precision, attention and element-wise switches change the operators that they are about, and only those."""

from dataclasses import replace
from typing import Any

import pytest
from asked import refusal
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
from tabled import tabled

from projector.errors import Unsupported
from projector.frameworks import resolve
from projector.layers.cross_entropy import cross_entropy
from projector.layers.local import LayerView, local
from projector.layers.lower import head, layer
from projector.operators.types import Attention, Gemm, GroupedGemm, Stream
from projector.workload.lora import LoRA
from projector.workload.model import decoder
from tests.workloads import workload


@pytest.mark.parametrize(("precision", "recipe", "dtype", "scaling"), tabled("workloads", "operand_types"))
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
    assert layer(DENSE, case, False).forward == layer(DENSE, resolved(LLAMA_70B)).forward


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


# Losses that never hold all logits: memory of a chunk, gradients made early, and what the published kernel saves.


def case(loss: str, **how: Any) -> Any:
    fields = {"micro_batch_size": 4, "global_batch_size": 32, "data_parallel_sharding": "optim"}
    return resolve(workload(**{**fields, "cross_entropy_fusion": loss, **how}), "nvidia", "hopper")


def of(loss: str, **how: Any) -> tuple[LayerView, Any]:
    view = local(case(loss, **how))
    return view, cross_entropy(view)


def test_a_chunk_of_logits_is_as_large_as_the_hidden_states() -> None:
    """16,384 tokens, 128,256 words, width 4,096: 32 times the width, so 512 tokens at a time (Liger's own rule)."""
    view, part = of("liger")
    weight = float(view.vocab * view.hidden)
    assert part.saves[0].bytes == pytest.approx(2.0 * 16384 * 4096 + 2.0 * weight)
    assert part.forward_transient.bytes == pytest.approx(2.0 * 512 * view.vocab + 6.0 * weight)
    (added,) = [op for op in part.forward if op.name == "loss.accumulate"]
    assert added.read == pytest.approx(32 * 8.0 * weight)


def test_a_frozen_weight_has_no_gradient() -> None:
    view, part = of("liger", lora=LoRA(dim=16, targets=("linear_qkv",)))
    assert part.saves[0].bytes == pytest.approx(view.hidden_bytes)
    assert not [op for op in part.forward if op.name == "loss.accumulate"]


@pytest.mark.parametrize(
    ("loss", "compiled", "saved", "forward", "backward"),
    [
        ("unfused", False, 4, 2, 2), ("native", False, 4, 2, 6), ("native", True, 4, 2, 6), ("fp32", False, 4, 6, 8),
        ("fp32", True, 2, 0, 2), ("compiled", False, 2, 0, 2), ("bf16", False, 4, 2, 4), ("chunks", False, 4, 0.5, 1),
        ("chunks", True, 2, 0, 0), ("chunk_gradients", False, 0, 14 / 8, 0), ("chunk_gradients", True, 0, 4 / 8, 0),
    ],
)  # fmt: skip
def test_bytes_of_a_logit(loss: str, compiled: bool, saved: float, forward: float, backward: float) -> None:
    """Live bytes as torch 2.13 has them on a CPU, by its profiler; without the JIT fuser Megatron's two losses are alike.
    Gradients made in the forward: the input's in fp32, and the weight's in 16 bits beside their sum in fp32."""
    made_of = case(loss, jit_fusion=True, torch_compile=compiled)
    view = local(with_execution(made_of, fusion={"loss_compiled": compiled}))
    part, logits = cross_entropy(view), float(view.tokens * view.vocab)
    made = loss == "chunk_gradients"
    extra = 4.0 * view.tokens * view.hidden + 6.0 * view.vocab * view.hidden if made else 0.0
    assert part.saves[0].bytes == saved * logits + view.hidden_bytes * made
    assert part.forward_transient.bytes == pytest.approx(forward * logits + extra, abs=1e6)
    assert part.backward_transient.bytes == pytest.approx(backward * logits, abs=1e6)
    assert cross_entropy(local(case("native", jit_fusion=False))).saves == cross_entropy(local(case("unfused"))).saves


def test_logits_that_are_made_again_leave_two_numbers_a_token() -> None:
    view, part = of("linear")
    assert part.saves[0].bytes == 8.0 * view.tokens
    assert part.backward_input[0].name == "output.again"


@pytest.mark.parametrize("loss", ["liger", "liger_cross_entropy"])
def test_a_split_vocabulary_is_refused(loss: str) -> None:
    refusal(of, loss, tp=2, match=f"={loss} ", kind=Unsupported)


def test_ligers_loss_on_whole_logits_overwrites_their_fp32_copy() -> None:
    """Of each logit 4 bytes live from forward to backward; 2 beside them, first its own, then its gradient's. It is read in
    16 bits, twice in fp32, and its gradient is scaled and cast: no pass more."""
    view, part = of("liger_cross_entropy")
    logits = float(view.tokens * view.vocab)
    assert part.saves[0].bytes == 4 * logits
    assert part.forward_transient.bytes == part.backward_transient.bytes == 2 * logits
    (forward,), (backward,) = (
        [op for op in ops if op.name in ("loss", "loss.bwd")] for ops in (part.forward, part.backward_input)
    )
    assert (forward.read, forward.write) == ((2 + 4 + 4) * logits, (4 + 4) * logits)
    assert (backward.read, backward.write) == ((4 + 4) * logits, (4 + 2) * logits)


def test_automodels_loss_of_experts_stays_in_bf16() -> None:
    """log-softmax of 2-byte logits (F.cross_entropy without a copy to fp32): half its bytes, and the logits."""
    found = {}
    for name in ("llama3_8b", "qwen3_30b_a3b"):
        run = resolve(workload(name, 8, "automodel", micro_batch_size=4, global_batch_size=32), "nvidia", "hopper")
        view = local(run)
        found[run.execution.fusion.loss] = (cross_entropy(view), view.tokens * view.vocab)
    (full, many), (half, few) = found["fp32"], found["bf16"]
    assert half.saves[0].bytes / few == 2.0 + 2.0 == full.saves[0].bytes / many
    moved = [sum(op.read + op.write for op in (part.forward[0], part.backward_input[0])) for part in (half, full)]
    assert moved[0] / few == 12.0 < moved[1] / many
    assert half.backward_transient.bytes / few == 4.0


# Losses that a trainer computes from the logits for its log.


def loss(metrics: int, **recipe: Any) -> tuple[float, Any]:
    case = with_execution(resolved(LLAMA_70B, **recipe), fusion={"loss_metrics": metrics})
    part = head(case)
    return sum(op.bytes for op in part.forward if isinstance(op, Stream) and op.name.startswith("loss")), part


@pytest.mark.parametrize("recipe", [{}, {"tp": 4}, {"seq_length": 2048, "micro_batch_size": 2}])
def test_each_metric_passes_over_the_logits_without_a_gradient(recipe: dict[str, Any]) -> None:
    (none, plain), (one, _), (two, part) = (loss(count, **recipe) for count in (0, 1, 2))
    tokens = recipe.get("seq_length", 4096) * recipe.get("micro_batch_size", 1)
    assert (
        two - one == one - none == pytest.approx(10.0 * tokens * LLAMA_70B.vocab_size / recipe.get("tp", 1), rel=0.01)
    )
    assert part.backward_input == plain.backward_input
    assert part.backward_weight == plain.backward_weight
