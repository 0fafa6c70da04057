"""Strict models and recipes: round trips, and every mistake of a mapping at once."""

import dataclasses
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled

from projector.workload import value_checks, zoo
from projector.workload.field_facts import AFFECTS, SAME, about_of
from projector.workload.fields import field_of, fields
from projector.workload.lora import LoRA
from projector.workload.moe_layer_freq import expand
from projector.workload.recipe import Recipe
from projector.workload.schema import parse_model, parse_recipe
from projector.workload.structure import to_mapping
from tests.conftest import ROOT
from tests.projector.workload.effects import JOBS, SIZES, effects

GOOD = {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096}
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def test_models_round_trip():
    for name in zoo.names():
        model = zoo.load(name)
        assert parse_model(to_mapping(model), "file") == (model, []), name
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
    mapping = to_mapping(recipe)
    assert parse_recipe(mapping, "file") == (recipe, [])
    assert set(GOOD) <= set(mapping)
    assert recipe.tp != 1 or "tp" not in mapping


def test_a_field_is_written_under_any_of_its_spellings_once() -> None:
    sizes = {"seq": "4k", "mbs": 1, "gbs": 64}
    recipe, problems = parse_recipe({**sizes, "lora_rank": 16, "lora": {"targets": ["linear_qkv"]}}, "f")
    assert not problems
    assert (recipe.seq_length, recipe.global_batch_size, recipe.lora.dim) == (4096, 64, 16)
    for twice in ({"seq_length": 4096}, {"lora_rank": 8, "lora": {"dim": 8}}, {"lora_rank": 8, "lora_r": 8}):
        _, problems = parse_recipe({**sizes, **twice}, "f")
        assert problems, twice


def test_every_mistake_at_once():
    _, problems = parse_recipe(
        {
            "tensor_model_parallel_size": 8, "micro_batch_sise": 1, "seq_length": "long", "precision": "bf15",
            "recompute_modules": "core_attn", "sequence_parallel": 1, "lora": {"rank": 16}, "pp": 2.0,
        },
        "suite.yaml",
        "cases[3].recipe.",
    )  # fmt: skip
    said = {problem.key.removeprefix("cases[3].recipe."): problem.expected for problem in problems}
    assert said["tensor_model_parallel_size"] == "the field tp"
    assert "micro_batch_size" in said["micro_batch_sise"]
    assert said["seq_length"] == "a whole number"
    assert "bf16" in said["precision"]
    assert {"recompute_modules", "sequence_parallel", "pp", "lora.rank", "lora.dim", "global_batch_size"} <= set(said)
    assert all(problem.where == "suite.yaml" for problem in problems)


def test_a_model_of_ones_own():
    model, problems = parse_model(
        {
            "name": "mine", "num_layers": 4, "hidden_size": 512, "ffn_hidden_size": 2048, "num_attention_heads": 8,
            "vocab_size": 1000,
            "moe": {"num_experts": 4, "moe_router_topk": 1, "moe_ffn_hidden_size": 256, "moe_layer_freq": "([0,1]*2)"},
        },
        "file",
    )  # fmt: skip
    assert problems == []
    assert (model.family, model.kv_channels, model.num_query_groups) == ("mine", 64, 8)
    assert model.moe.moe_layer_freq == (0, 1, 0, 1)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        *tabled("refusals", "models"),
        ({"base": "mixtral_8x7b", "moe": {"moe_layer_freq": [1, 0]}}, "one 0 or 1 per layer"),
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


# What recipe fields declare of themselves, held against what they do.

TOLD = about_of(Recipe)


@pytest.mark.parametrize("kind", [Recipe, LoRA])
def test_every_field_says_what_it_means_and_may_change(kind: type) -> None:
    for name, told in about_of(kind).items():
        assert told.help, name
        assert told.affects, name
        assert told.affects <= set(AFFECTS), name
        assert len(set(told.choices)) == len(told.choices), name
        assert SAME not in [each for names in told.names.values() for each in names], name


def test_a_name_means_one_field_of_a_framework() -> None:
    for framework in {framework for told in TOLD.values() for framework in told.names}:
        names = Counter(name for told in TOLD.values() for name in told.names.get(framework, ()))
        assert [name for name, count in names.items() if count > 1] == [], framework


def test_every_named_setting_is_one_that_the_loaders_know() -> None:
    """Names that a field is worked out from stand in the code that works it out."""
    folder = ROOT / "projector/intake"
    code = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py")))
    for name, told in TOLD.items():
        assert [each for each in told.derived_from if f'"{each}"' not in code] == [], name


def test_what_is_declared_is_what_is_checked_shown_and_hinted() -> None:
    by_key = {field.key: field for field in fields()}
    for name, told in TOLD.items():
        if name == "lora":
            continue
        field = by_key[name]
        words = (
            told.choices or field.choices if name == "pipeline_schedule" else told.choices
        )  # schedules name themselves
        assert (field.help, field.choices) == (told.help, words)
        assert all(field_of(each) is field for each in (name, *told.names.get("megatron", ()), *told.also))
        assert value_checks.CHOICES.get(name, ()) == words
        if field.kind in (int, float) and not field.many:
            for value in (told.most, told.most + 1, told.least, told.least - 1):
                _, problems = parse_recipe({**SIZES, name: field.kind(value)}, "f")
                inside = told.least <= value <= told.most or (field.kind is float and value == told.most)
                assert bool(problems) is not inside, (name, value, problems)
        if not field.many and told.choices:
            _, problems = parse_recipe({**SIZES, name: "no such word"}, "f")
            assert [(p.key, p.found) for p in problems] == [(f"recipe.{name}", "no such word")]
    long_names = [each for told in TOLD.values() for each in told.names.get("megatron", ()) if each not in TOLD]
    for field in by_key.values():
        for each in field.also:
            bad = {**{key: value for key, value in SIZES.items() if key != field.key}, each: object()}
            _, problems = parse_recipe(bad, "f")
            assert field.key in {problem.key.removeprefix("recipe.") for problem in problems}, each
    for each in long_names:
        _, problems = parse_recipe({**SIZES, each: 1}, "f")
        assert problems[0].expected == f"the field {field_of(each).path[0]}"  # type: ignore[union-attr]


@pytest.mark.parametrize("job", range(len(JOBS)), ids=lambda i: JOBS[i][0].model.name)
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.night)])
def test_a_field_changes_nothing_that_it_does_not_declare(job: int, whole: bool) -> None:
    """Every field on a twelfth of the jobs in each run of the tests, on every job at night."""
    work, cluster = JOBS[job]
    for field in fields() if whole else fields()[job % 12 :: 12]:
        told = TOLD[field.path[0]]
        for value, found in effects(work, cluster, field):
            assert found <= told.affects, (
                f"{field.key}={value!r} changes {', '.join(sorted(found - told.affects))}, too"
            )


def test_defaults_are_not_stated_or_sizes() -> None:
    for field in dataclasses.fields(Recipe):
        assert field.default in (dataclasses.MISSING, None, 1, False, "bf16"), field.name


# ``moe_layer_freq`` in all its spellings, and that none of them is evaluated.


@pytest.mark.parametrize(("value", "pattern"), [*tabled("names", "spellings_of_values"), ([0, 1, 1, 1], (0, 1, 1, 1))])
def test_spellings(value, pattern):
    assert expand(value, 4) == (pattern, "")


@pytest.mark.parametrize(
    "value",
    [0, -1, True, None, 1.5, "x", "[0]*3", [0, 1], [2, 1, 1, 1], "__import__('os')", "[0]**4", "[1 for i in range(4)]",
     "([1]*99999999999)", "(" * 500, "[[1]*4]", "'a'*4", "4-[1]", {}, "[0]*-1"],
)  # fmt: skip
def test_everything_else_is_refused(value):
    pattern, expected = expand(value, 4)
    assert pattern == ()
    assert expected


@given(st.text("[]()01,*+ 2", max_size=40), st.integers(1, 8))
def test_any_text(text, layers):
    pattern, expected = expand(text, layers)
    assert bool(expected) != (len(pattern) == layers)
