"""Parameter counts against closed forms."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.workload import zoo
from projector.workload.model import Model, MoE, decoder
from projector.workload.parameters import count, layer


def dense(**changes) -> Model:
    fields = {
        "name": "small",
        "family": "small",
        "num_layers": 3,
        "hidden_size": 64,
        "ffn_hidden_size": 256,
        "num_attention_heads": 4,
        "num_query_groups": 4,
        "kv_channels": 16,
        "vocab_size": 1000,
    }
    return Model(**(fields | changes))


def test_gpt_closed_form():
    model = dense(
        gated_linear_unit=False,
        normalization="LayerNorm",
        add_bias_linear=True,
        position_embedding_type="learned_absolute",
        max_position_embeddings=128,
        untie_embeddings_and_output_weights=False,
    )
    h, layers = 64, 3
    assert count(model).total == layers * (12 * h * h + 13 * h) + (1000 + 128) * h + 2 * h


def test_llama_closed_form():
    model = dense(num_query_groups=2)
    h = 64
    each = h * (2 * 64 + 2 * 2 * 16) + 3 * h * 256 + 2 * h
    assert count(model).total == 3 * each + 2 * 1000 * h + h


@pytest.mark.parametrize(
    ("change", "extra"),
    [
        ({"add_qkv_bias": True}, 3 * 3 * 64),
        ({"qk_layernorm": True}, 3 * 2 * 16),
        ({"attention_sinks": True}, 3 * 4),
        ({"sandwich_norm": True}, 3 * 2 * 64),
        ({"embedding_layernorm": True}, 64),
        ({"untie_embeddings_and_output_weights": False}, -1000 * 64),
        ({"normalization": "LayerNorm"}, 7 * 64),
        ({"normalization": "NonParametricLayerNorm"}, -7 * 64),
    ],
)
def test_each_feature_adds_its_weights(change, extra):
    assert count(dense(**change)).total - count(dense()).total == extra


def test_active_leaves_out_the_experts_a_token_does_not_visit():
    moe = MoE(num_experts=8, moe_router_topk=2, moe_ffn_hidden_size=32, moe_layer_freq=(0, 1, 1))
    parts = count(dense(moe=moe))
    expert = 3 * 64 * 32
    assert parts.experts == 2 * 8 * expert
    assert parts.main - parts.active == 2 * 6 * expert


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("deepseek_v3", 37.55),
        ("qwen3_30b_a3b", 3.35),
        ("mixtral_8x7b", 12.88),
        ("kimi_k2", 32.9),
        ("gpt_oss_120b", 5.7),
    ],
)
def test_published_active_sizes(name, billions):
    assert count(zoo.load(name)).active / 1e9 == pytest.approx(billions, rel=0.01)


def test_mtp_of_deepseek_v3():
    """arXiv:2412.19437, 2.2: a layer with experts, a projection of two hidden states, three norms; 11.6 B."""
    parts = count(zoo.load("deepseek_v3"))
    one = layer(zoo.load("deepseek_v3"), decoder(True)).total
    assert parts.mtp == one + 2 * 7168**2 + 3 * 7168
    assert parts.total == parts.main + parts.mtp


@given(
    layers=st.integers(1, 12),
    heads=st.integers(1, 8),
    width=st.integers(1, 16),
    ffn=st.integers(1, 512),
    gated=st.booleans(),
)
def test_layers_add_up(layers, heads, width, ffn, gated):
    hidden = heads * width
    model = dense(
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_query_groups=heads,
        kv_channels=width,
        ffn_hidden_size=ffn,
        gated_linear_unit=gated,
    )
    deeper = dataclasses.replace(model, num_layers=layers + 1)
    assert count(deeper).total - count(model).total == layer(model, decoder(False)).total
    assert count(model).active == count(model).main
