"""The weights of all ranks together are those of the model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering_cases import DEEPSEEK_V3, DENSE, EXPERTS, LLAMA_70B, resolved

from projector.layers.lower import embedding, head, layer
from projector.workload import zoo
from projector.workload.parameters import count


@pytest.mark.parametrize(
    "name", ["llama3_8b", "qwen2.5_7b", "qwen3_30b_a3b", "mixtral_8x7b", "mpt_7b", "nemotron4_15b", "moonlight_16b_a3b"]
)
def test_zoo_models_have_their_published_weights(name):
    model = zoo.load(name)
    case = resolved(model, make_vocab_size_divisible_by=1)
    blocks = [layer(kind, case) for kind in model.layer_kinds] + [embedding(case), head(case)]
    total = sum(b.owned.dense + b.owned.expert for b in blocks)
    assert total == pytest.approx(count(model).total, rel=1e-4)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([1, 2, 4, 8]))
def test_tensor_parallelism_splits_all_but_the_norms(tp):
    once, now = (layer(DENSE, resolved(LLAMA_70B, tp=n)) for n in (1, tp))
    norms = 2 * LLAMA_70B.hidden_size
    assert (now.owned.dense - norms) * tp == once.owned.dense - norms


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([1, 8, 64, 256]), st.sampled_from([1, 2, 4]))
def test_expert_parallelism_splits_the_experts(ep, etp):
    once, now = (layer(EXPERTS, resolved(DEEPSEEK_V3, ep=e, etp=t)) for e, t in ((1, 1), (ep, etp)))
    assert now.owned.expert * ep * etp == once.owned.expert
    assert now.owned.dense == once.owned.dense


def test_latent_down_projections_are_replicated():
    once, now = (layer(DENSE, resolved(DEEPSEEK_V3, tp=tp)) for tp in (1, 4))
    replicated = 7168 * (1536 + 512 + 64) + 2 * 7168 + 1536 + 512
    assert (now.owned.dense - replicated) * 4 == once.owned.dense - replicated
