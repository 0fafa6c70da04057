"""Strict models and recipes: round trips, and every mistake of a mapping at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.workload import zoo
from projector.workload.lora import LoRA
from projector.workload.model_schema import model_to_mapping
from projector.workload.recipe import Recipe
from projector.workload.schema import parse_model, parse_recipe, recipe_to_mapping

GOOD = {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096}
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("name", zoo.names())
def test_models_round_trip(name):
    model = zoo.load(name)
    again, problems = parse_model(model_to_mapping(model), "file")
    assert problems == []
    assert again == model
    assert parse_model(name, "file")[0] == model


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(**GOOD),
        Recipe(**GOOD, tp=2, recompute_modules=("core_attn", "mlp"), sequence_parallel=False, cuda_graph_scope=()),
        Recipe(**GOOD, lora=LoRA(dim=16), moe_expert_capacity_factor=1.25, recompute_layer_ids=(0, 3)),
    ],
)
def test_recipes_round_trip(recipe):
    mapping = recipe_to_mapping(recipe)
    assert parse_recipe(mapping, "file") == (recipe, [])
    assert set(GOOD) <= set(mapping)
    assert recipe.tp != 1 or "tp" not in mapping


def test_every_mistake_at_once():
    _, problems = parse_recipe(
        {
            "tensor_model_parallel_size": 8,
            "micro_batch_sise": 1,
            "seq_length": "long",
            "precision": "bf15",
            "recompute_modules": "core_attn",
            "sequence_parallel": 1,
            "lora": {"rank": 16},
            "pp": 2.0,
        },
        "suite.yaml",
        "cases[3].recipe.",
    )
    said = {problem.key.removeprefix("cases[3].recipe."): problem.expected for problem in problems}
    assert said["tensor_model_parallel_size"] == "the field tp"
    assert "micro_batch_size" in said["micro_batch_sise"]
    assert said["seq_length"] == "a whole number"
    assert "bf16" in said["precision"]
    assert {"recompute_modules", "sequence_parallel", "pp", "lora.rank", "lora.dim", "global_batch_size"} <= set(said)
    assert all(problem.where == "suite.yaml" for problem in problems)


def test_truncated_model():
    model, problems = parse_model({"base": "deepseek_v2", "num_layers": 12, "moe": {"num_experts": 80}}, "file")
    assert problems == []
    assert model is not None
    assert model.moe is not None
    assert (model.num_layers, model.moe.num_experts, sum(model.moe.moe_layer_freq)) == (12, 80, 11)
    assert model.mla == zoo.load("deepseek_v2").mla


def test_a_model_of_ones_own():
    model, problems = parse_model(
        {
            "name": "mine",
            "num_layers": 4,
            "hidden_size": 512,
            "ffn_hidden_size": 2048,
            "num_attention_heads": 8,
            "vocab_size": 1000,
            "moe": {"num_experts": 4, "moe_router_topk": 1, "moe_ffn_hidden_size": 256, "moe_layer_freq": "([0,1]*2)"},
        },
        "file",
    )
    assert problems == []
    assert model is not None
    assert (model.family, model.kv_channels, model.num_query_groups) == ("mine", 64, 8)
    assert model.moe is not None
    assert model.moe.moe_layer_freq == (0, 1, 0, 1)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("lama3_8b", "llama3_8b"),
        ("Llama 3.1 8B Vision", "llama3.1_8b"),
        ({"base": "llama9"}, "nearest"),
        (7, "a zoo name or a mapping"),
        ({"base": "llama3_8b", "hiden_size": 8}, "hidden_size"),
        ({"base": "mixtral_8x7b", "moe": {"moe_layer_freq": [1, 0]}}, "one 0 or 1 per layer"),
        ({"name": "x"}, "no default"),
        ({"base": "llama3_8b", "normalization": "BatchNorm"}, "RMSNorm"),
    ],
)
def test_bad_models(value, words):
    model, problems = parse_model(value, "file")
    assert model is None
    assert any(words in problem.expected for problem in problems)


@given(st.sampled_from(sorted(Recipe.__dataclass_fields__)), JUNK)
def test_any_value_of_any_recipe_field(field, value):
    recipe, problems = parse_recipe(GOOD | {field: value}, "file")
    assert (recipe is None) == bool(problems)


@given(st.sampled_from(sorted(zoo.load("deepseek_v3").__dataclass_fields__)), JUNK)
def test_any_value_of_any_model_field(field, value):
    model, problems = parse_model({"base": "deepseek_v3", field: value}, "file")
    assert (model is None) == bool(problems)


@given(JUNK)
def test_any_value_at_all(value):
    assert parse_recipe(value, "file")[0] is None
    model, problems = parse_model(value, "file")
    assert (model is None) == bool(problems)
