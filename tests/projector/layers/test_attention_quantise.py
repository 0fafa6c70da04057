"""8-bit core attention: its casts, and what context-parallel messages carry."""

from __future__ import annotations

import pytest
from lowering_cases import LLAMA_70B, collectives, resolved, stream_bytes, with_execution

from projector.layers.attention_core import Heads
from projector.layers.context_parallel import core_attention
from projector.layers.local import local
from projector.layers.mlp import mlp
from projector.operators.types import Stream

HEADS = Heads(heads=64, kv_heads=8, qk=128, v=128)
TOKENS = 8192
INPUTS, OUTPUTS = (64 + 2 * 8) * 128, 64 * 128  # elements of a token


def lowered(**recipe):
    stated = {"seq_length": TOKENS, "precision": "fp8", "fp8_recipe": "delayed", "fp8_dot_product_attention": True}
    return core_attention(HEADS, local(resolved(LLAMA_70B, **(stated | recipe))), frozenset())


def message_bytes(ops):
    return sum(op.bytes for op in collectives(ops, group="cp"))


def per_token(ops):
    return stream_bytes(op for op in ops if op.name.startswith("core_attn.")) / TOKENS


def streams(ops):
    return {op.name: (op.read / TOKENS, op.write / TOKENS) for op in ops if isinstance(op, Stream)}


def test_casts_follow_the_scaling():
    delayed, current, mx = lowered(), lowered(fp8_recipe="tensorwise"), lowered(precision="mxfp8")
    assert streams(delayed.forward) == {
        "core_attn.join": (2 * INPUTS, 2 * INPUTS),
        "core_attn.cast": (2 * INPUTS, INPUTS),
        "core_attn.out_widen": (OUTPUTS, 2 * OUTPUTS),
    }
    assert streams(delayed.backward_input) == {
        "core_attn.grad_cast": (2 * OUTPUTS, OUTPUTS),
        "core_attn.grad_widen": (INPUTS, 2 * INPUTS),
    }
    # 16-bit results; a pass for the maximum
    assert streams(current.forward)["core_attn.cast"] == (4 * INPUTS, INPUTS)
    assert set(streams(current.backward_input)) == {"core_attn.grad_cast"}
    assert streams(mx.forward) == {"core_attn.cast": (2 * INPUTS, (2 + 2 / 32) * INPUTS)}
    for plain in (lowered(fp8_dot_product_attention=False), lowered(precision="bf16")):
        assert per_token(plain.forward) == per_token(plain.backward_input) == 0.0


@pytest.mark.parametrize("how", ["p2p", "a2a"])
def test_messages_carry_eight_bits_where_attention_was_cast_before_them(how):
    def share(**recipe):
        case, plain = (lowered(cp=8, cp_comm_type=how, fp8_dot_product_attention=on, **recipe) for on in (True, False))
        return [message_bytes(a) / message_bytes(b) for a, b in zip(_passes(case), _passes(plain), strict=True)]

    assert share() == pytest.approx([0.5, 0.5])
    forward, backward = share(fp8_recipe="tensorwise")
    assert 0.5 <= forward < 1.0
    assert 0.5 < backward < 1.0
    assert share(precision="mxfp8") == pytest.approx([1.0, 1.0])


def test_casts_are_divided_with_the_sequence():
    for how in ("p2p", "a2a", "allgather"):
        split = lowered(cp=8, cp_comm_type=how)
        for mine, alone in zip(_passes(split), _passes(lowered()), strict=True):
            assert 8 * per_token(mine) == pytest.approx(per_token(alone))


def test_an_output_saved_behind_the_exchange_travels_back():
    case = resolved(LLAMA_70B, seq_length=TOKENS, cp=8, cp_comm_type="a2a")
    kept, moved = (
        core_attention(HEADS, local(with_execution(case, fusion={"cp_a2a_keeps_output": keeps})), frozenset())
        for keeps in (True, False)
    )
    output = 2.0 * TOKENS / 8 * OUTPUTS
    assert message_bytes(moved.forward) == message_bytes(kept.forward)
    assert message_bytes(moved.backward_input) - message_bytes(kept.backward_input) == output
    assert sum(s.bytes for s in kept.saves) - sum(s.bytes for s in moved.saves) == output


def test_an_activation_that_casts_spares_the_linears_beside_it():
    def made(fused, **recipe):
        case = resolved(LLAMA_70B, seq_length=TOKENS, **({"precision": "fp8", "fp8_recipe": "delayed"} | recipe))
        parts = mlp(local(with_execution(case, fusion={"activation_casts": fused})))
        return [op for part in parts for op in (*part.forward, *part.backward_input) if isinstance(op, Stream)]

    def casts(fused, **recipe):
        return {op.name: op.bytes / TOKENS for op in made(fused, **recipe) if op.kind == "cast"}

    alone, fused = casts(False), casts(True)
    assert {name: alone[name] for name in alone.keys() - fused.keys()} == {
        "fc2.cast": 4 * LLAMA_70B.ffn_hidden_size,
        "fc1.grad_cast": 8 * LLAMA_70B.ffn_hidden_size,
    }
    assert fused.items() <= alone.items()
    assert casts(True, fp8_recipe="tensorwise") == casts(False, fp8_recipe="tensorwise")
    stored = casts(False, activation_func_fp8_input_store=True)
    halves = 2 * LLAMA_70B.ffn_hidden_size
    assert stored.items() - alone.items() == {("act.store", 3 * halves), ("act.restore", 3 * halves)}


def _passes(part):
    return part.forward, part.backward_input
