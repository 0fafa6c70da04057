"""Whole workloads: what does not divide, what is absurd, and that nothing else is complained about."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled

from projector import project
from projector.errors import InputError
from projector.hardware import catalogue
from projector.pipeline.schedules import names as schedule_names
from projector.workload import zoo
from projector.workload.model import Model, MoE, decoder
from projector.workload.parameters import count, layer
from projector.workload.recipe import Recipe
from projector.workload.validate import problems
from projector.workload.value_checks import CHOICES
from projector.workload.workload import Workload

GOOD = {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096}


def found(model: str = "llama3_8b", gpus: int = 8, **changes) -> dict[str, str]:
    workload = Workload(model=zoo.load(model), recipe=Recipe(**(GOOD | changes)), gpus=gpus)
    said: dict[str, str] = {}
    for problem in problems(workload, "file.yaml"):
        said[problem.key] = f"{said.get(problem.key, '')}{problem}\n"
    return said


@pytest.mark.parametrize(("model", "gpus", "recipe"), tabled("workloads", "sound"))
def test_real_configurations_pass(model, gpus, recipe):
    assert found(model, gpus, **recipe) == {}


@pytest.mark.parametrize(("changes", "key", "words"), tabled("workloads", "mistakes"))
def test_each_mistake(changes, key, words):
    mistakes = found(**changes)
    assert key in mistakes
    assert words in mistakes[key]


def test_all_mistakes_at_once():
    mistakes = found("mixtral_8x7b", gpus=12, tp=5, pp=3, ep=3, etp=9, global_batch_size=7, precision="bf15")
    assert {"recipe.tp", "recipe.ep", "recipe.etp", "recipe.pp", "recipe.precision", "gpus"} <= set(mistakes)


def test_models_are_checked_too():
    model = dataclasses.replace(zoo.load("mixtral_8x7b"), num_query_groups=5)
    model = dataclasses.replace(model, moe=dataclasses.replace(model.moe, moe_router_topk=9, moe_layer_freq=(1,)))
    keys = {p.key for p in problems(Workload(model=model, recipe=Recipe(**GOOD), gpus=8))}
    assert {"model.num_query_groups", "model.moe.moe_router_topk", "model.moe.moe_layer_freq"} <= keys


def test_the_pipelines_schedules_are_known_words():
    assert {name.replace("_", "-") for name in schedule_names()} <= set(CHOICES["pipeline_schedule"])


@given(
    st.fixed_dictionaries({name: st.integers(-2, 300) for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "gpus")}),
    st.sampled_from(["llama3_8b", "deepseek_v3", "gpt_oss_20b"]),
    st.integers(-1, 100_000),
)
def test_any_numbers_end_in_a_list(sizes, model, batch):
    assert isinstance(found(model, **sizes, global_batch_size=batch), dict)


@pytest.mark.parametrize("gpus", [1 + 2j, True, 8.0, "8", None, [8]])
def test_the_number_of_gpus_is_looked_at_where_all_else_is_known(gpus: object) -> None:
    right = Workload(model=zoo.load("llama3_8b"), recipe=Recipe(**GOOD), gpus=8)
    cluster = catalogue.default_cluster("h100_sxm")
    assert project(right, cluster).step_seconds > 0
    with pytest.raises(InputError, match="gpus"):
        project(dataclasses.replace(right, gpus=gpus), cluster)  # type: ignore[arg-type]


def test_a_schedule_of_millions_of_micro_batches_is_refused_before_it_is_made() -> None:
    assert "micro-batches a rank" in found(tp=4, pp=2, global_batch_size=16_000_000)["recipe.global_batch_size"]
    assert found(tp=4, pp=2, global_batch_size=100_000) == {}


@given(st.sampled_from(zoo.names()), st.integers(1, 200))
def test_another_depth_of_any_model_runs_or_is_refused(name: str, layers: int) -> None:
    """Lists of one entry a layer (Gemma 3n's) do not follow ``num_layers``."""
    model = dataclasses.replace(zoo.load(name), num_layers=layers)
    for problem in problems(Workload(model=model, recipe=Recipe(**GOOD), gpus=8), "file.yaml"):
        assert problem.expected


# Parameter counts against closed forms.


def dense(**changes) -> Model:
    fields = {
        "name": "small", "family": "small", "num_layers": 3, "hidden_size": 64, "ffn_hidden_size": 256,
        "num_attention_heads": 4, "num_query_groups": 4, "kv_channels": 16, "vocab_size": 1000,
    }  # fmt: skip
    return Model(**(fields | changes))


def test_gpt_closed_form():
    model = dense(
        gated_linear_unit=False, normalization="LayerNorm", add_bias_linear=True,
        position_embedding_type="learned_absolute", max_position_embeddings=128,
        untie_embeddings_and_output_weights=False,
    )  # fmt: skip
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
        ({"normalization": "LayerNorm", "qk_layernorm": True}, 7 * 64 + 3 * 2 * 2 * 16),
        ({"normalization": "NonParametricLayerNorm", "qk_layernorm": True}, -7 * 64),
    ],
)
def test_each_feature_adds_its_weights(change, extra):
    assert count(dense(**change)).total - count(dense()).total == extra


def test_active_leaves_out_the_experts_a_token_does_not_visit():
    moe = MoE(num_experts=8, moe_router_topk=2, moe_ffn_hidden_size=32, moe_layer_freq=(0, 1, 1))
    parts = count(dense(moe=moe))
    expert = 3 * 64 * 32
    assert parts.main - parts.active == 2 * 6 * expert


@pytest.mark.parametrize(
    ("name", "billions"),
    [("deepseek_v3", 37.55), ("qwen3_30b_a3b", 3.35), ("mixtral_8x7b", 12.88), ("kimi_k2", 32.9), ("gpt_oss_120b", 5.7)],
)  # fmt: skip
def test_published_active_sizes(name, billions):
    assert count(zoo.load(name)).active / 1e9 == pytest.approx(billions, rel=0.01)


def test_mtp_of_deepseek_v3():
    """arXiv:2412.19437, 2.2: a layer with experts, a projection of two hidden states, three norms; 11.6 B."""
    parts = count(zoo.load("deepseek_v3"))
    assert parts.mtp == layer(zoo.load("deepseek_v3"), decoder(True)).total + 2 * 7168**2 + 3 * 7168
    assert parts.total == parts.main + parts.mtp


@given(
    layers=st.integers(1, 12), heads=st.integers(1, 8), width=st.integers(1, 16), ffn=st.integers(1, 512),
    gated=st.booleans(),
)  # fmt: skip
def test_layers_add_up(layers, heads, width, ffn, gated):
    hidden = heads * width
    model = dense(
        num_layers=layers, hidden_size=hidden, num_attention_heads=heads, num_query_groups=heads, kv_channels=width,
        ffn_hidden_size=ffn, gated_linear_unit=gated,
    )  # fmt: skip
    deeper = dataclasses.replace(model, num_layers=layers + 1)
    assert count(deeper).total - count(model).total == layer(model, decoder(False)).total
    assert count(model).active == count(model).main
