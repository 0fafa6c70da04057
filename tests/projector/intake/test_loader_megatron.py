"""Megatron-LM argument dumps, mappings and command lines."""

from pathlib import Path

import pytest
from asked import put, refusal
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled

from projector.errors import InputError, Unsupported
from projector.intake import detect, megatron_args, megatron_forks
from projector.intake.megatron_cli import todays_words
from projector.intake.megatron_model import model_fields
from projector.intake.megatron_recipe import recipe_fields
from projector.intake.values import Reader
from projector.workload import zoo
from projector.workload.layout import virtual_stages
from projector.workload.parameters import count
from projector.workload.validate import problems
from tests.workloads import written

MINIMAL = tabled("readers", "loader_megatron_minimal")


def test_whose_modules_and_flash_attention_by_its_older_name():
    """``--use-flash-attn`` until --attention-backend came with fa0dcc4872 (2024-12)."""
    for stated, expected in (
        ({}, (None, None)),
        ({"transformer_impl": "local", "use_flash_attn": True}, ("local", "flash")),
        ({"transformer_impl": "transformer_engine", "use_flash_attn": False}, ("transformer_engine", None)),
        ({"use_flash_attn": True, "attention_backend": "unfused"}, (None, "unfused")),
    ):
        recipe = megatron_args.from_mapping(MINIMAL | stated, "args").recipe
        assert (recipe.transformer_impl, recipe.attention_backend) == expected
    for release in ("v1", "v2", "triton", "builder"):  # of Megatron-DeepSpeed, which has one word for each
        assert todays_words({f"use_flash_attn_{release}": True}) == {"use_flash_attn": True}


@pytest.mark.parametrize(("backend", "units"), [("deepep", 20), ("hybridep", 16)])
def test_each_dispatcher_has_its_own_number_of_compute_units(backend, units):
    """A dump prints the defaults of both."""
    printed = {"moe_deepep_num_sms": 20, "moe_hybridep_num_sms": 16, "moe_token_dispatcher_type": "flex"}
    experts = {"num_experts": 8, "moe_router_topk": 2, "moe_flex_dispatcher_backend": backend}
    recipe = megatron_args.from_mapping(MINIMAL | printed | experts | {"ddp_bucket_size": 10**8}, "args").recipe
    assert (recipe.moe_deepep_num_sms, recipe.ddp_bucket_size) == (units, 10**8)


def test_mapping_fills_in_megatrons_defaults():
    loaded = megatron_args.from_mapping(MINIMAL, "args")
    model = loaded.model
    assert (model.gated_linear_unit, model.normalization, model.add_bias_linear) == (False, "LayerNorm", True)
    assert (model.ffn_hidden_size, model.kv_channels, model.num_query_groups) == (4096, 64, 16)
    assert loaded.gpus is None
    refusal(loaded.workload, match="number of GPUs")


@pytest.mark.parametrize(
    ("flag", "width"), [("swiglu", 2688), ("geglu", 4096), ("quick_geglu", 4096), ("glu_activation", 4096)]
)
def test_each_word_of_a_gate_is_one(flag, width):
    """Two products before the activation; without a width of its own --swiglu alone makes it two thirds of 4H."""
    model = megatron_args.from_mapping(MINIMAL | {flag: True}, "args").model
    assert (model.gated_linear_unit, model.ffn_hidden_size) == (True, width)


def test_a_width_is_rounded_up_where_a_multiple_is_stated():
    """FlagScale's arguments: LLaMA's own rule, with a factor that LLaMA 2 70B has."""
    stated = MINIMAL | {"swiglu": True, "hidden_size": 8192, "num_attention_heads": 64, "multiple_of": 4096}
    for factor, width in ((None, 24576), (1.3, 28672)):
        model = megatron_args.from_mapping(stated | {"hidden_dim_multiplier": factor}, "args").model
        assert model.ffn_hidden_size == width


@pytest.mark.parametrize("sections", [("language_model", "model_parallel"), ("system", "model", "data")])
def test_arguments_in_sections_are_the_same_arguments(tmp_path, sections):
    stated = MINIMAL | {"swiglu": True, "bf16": True, "vocab_size": 32000}
    parts = {name: {} for name in sections}
    for number, (key, value) in enumerate(stated.items()):
        parts[sections[number % len(sections)]][key] = value
    parts[sections[0]] = {"deeper": parts[sections[0]]}
    flat, apart = (detect.load(written(tmp_path / "run.yaml", content, {})) for content in (stated, parts))
    assert apart == flat


def test_what_forks_add_means_the_same_in_a_file(tmp_path):
    stated = MINIMAL | {"lora_dim": 8, "lora_target_modules": ["linear_qkv"], "peft_type": "lora"}
    adapters = detect.load(written(tmp_path / "run.yaml", stated, {})).recipe.lora
    assert (adapters.dim, tuple(adapters.targets)) == (8, ("linear_qkv",))
    for words in ({"peft_type": "dora"}, {"rlhf_type": "dpo"}):
        refusal(detect.load, written(tmp_path / "run.yaml", stated | words, {}), kind=Unsupported)


@pytest.mark.parametrize(
    ("given", "streams"),
    [({"num_residual_streams": 4}, 0), ({"enable_hyper_connections": True}, 4),
     ({"enable_mhc_connections": True, "mhc_num_residual_streams": 2}, 2), ({"enable_mhc_connections": False}, 0)],
)  # fmt: skip
def test_streams_of_a_residual_need_their_switch(given, streams):
    """Megatron-LM prints their number of every run."""
    assert megatron_args.from_mapping(MINIMAL | given, "args").model.hyper_connections == streams


def test_sizes_of_latent_attention_have_megatrons_defaults():
    mla = megatron_args.from_mapping(MINIMAL | {"multi_latent_attention": True, "kv_lora_rank": 512}, "args").model.mla
    assert (mla.kv_lora_rank, mla.qk_head_dim, mla.qk_pos_emb_head_dim, mla.v_head_dim) == (512, 128, 64, 128)


@pytest.mark.parametrize(("args", "fields"), tabled("readers", "recipe_fields"))
def test_recipe_fields(args, fields):
    found, misfits = megatron_args.partial_recipe(args, num_layers=8)
    assert misfits == []
    assert fields.items() <= found.items()


@pytest.mark.parametrize(("name", "beside", "known"), tabled("readers", "a_word_that_no_choice_knows"))
def test_a_word_that_no_choice_knows_is_refused_with_those_known(name: str, beside: dict, known: str) -> None:
    stated = MINIMAL | beside | {name: "banana"}
    refusal(megatron_args.from_mapping, stated, "args", match=f"{name}: found 'banana', expected one of .*{known}")


def test_a_list_of_one_is_no_value() -> None:
    stated = MINIMAL | {
        "fp8": "hybrid", "fp8_recipe": "tensorwise", "recompute_granularity": "full", "recompute_method": "uniform",
        "recompute_num_layers": 1, "transformer_impl": "local", "attention_backend": "flash", "optimizer": "adam",
        "use_distributed_optimizer": True, "sequence_parallel": True, "position_embedding_type": "rope",
        "normalization": "RMSNorm", "tensor_model_parallel_size": 2, "world_size": 8,
    }  # fmt: skip
    megatron_args.from_mapping(stated, "args").workload()
    for name, value in stated.items():
        refusal(megatron_args.from_mapping, stated | {name: [value]}, "args", match=name)


def test_deepspeeds_parts_of_a_sequence_are_context_parallelism_of_a_stated_number() -> None:
    words = [todays_words(MINIMAL | {"world_size": 8, "ds_sequence_parallel_size": size}) for size in (1, 2, True)]
    assert [megatron_args.from_mapping(args, "args").recipe.cp for args in words[:2]] == [1, 2]
    refusal(megatron_args.from_mapping, words[2], "args", match="context_parallel_size")


@pytest.mark.parametrize("name", ["world_size", "data_parallel_size"])
@pytest.mark.parametrize("count", [0, -8])
def test_a_count_that_counts_nothing_is_named(name: str, count: int) -> None:
    with pytest.raises(InputError, match=f"{name}: found {count}, expected a whole number above 0"):
        megatron_args.from_mapping(MINIMAL | {name: count}, "args")


def test_experts_that_no_layer_of_the_pattern_has_are_named() -> None:
    experts = {"num_experts": 8, "moe_ffn_hidden_size": 256, "moe_router_topk": 2}
    stack = MINIMAL | experts | {"hybrid_override_pattern": "M-*-", "num_layers": 4}
    refusal(megatron_args.from_mapping, stack, "args", match="num_experts: found 8, expected E for their layers")
    assert megatron_args.from_mapping(stack | {"hybrid_override_pattern": "M-*E"}, "args").model.moe is not None


@pytest.mark.parametrize("setting", ["export_kd_teacher_load", "perform_rl_step"])
def test_other_trainings_with_megatrons_arguments_are_refused(setting: str) -> None:
    assert megatron_args.from_mapping(MINIMAL | {setting: "x"}, "args").model.unsupported


def test_model_fields_of_a_moe_with_latent_attention():
    args = MINIMAL | {
        "num_layers": 4, "multi_latent_attention": True, "kv_lora_rank": 512, "qk_head_dim": 128,
        "qk_pos_emb_head_dim": 64, "v_head_dim": 128, "num_experts": 8, "moe_ffn_hidden_size": 256,
        "moe_layer_freq": "([0]*1+[1]*3)", "mtp_num_layers": 1, "pipeline_model_parallel_size": 2,
        "pipeline_model_parallel_layout": "Ett|t|t|mL", "moe_router_topk": 2,
    }  # fmt: skip
    loaded = megatron_args.from_mapping(args, "args")
    assert loaded.model.mla is not None
    assert loaded.model.moe.moe_layer_freq == (0, 1, 1, 1)
    assert loaded.recipe is not None
    assert virtual_stages(loaded.recipe) == 2


def test_vocabulary_of_the_model_that_the_name_means():
    args = {key: value for key, value in MINIMAL.items() if key != "vocab_size"}
    loaded = megatron_args.from_mapping(args, "args", name="Qwen3-8B")
    assert loaded.model.vocab_size == 151936
    assert loaded.assumed == ("vocab_size=151936 (of qwen3_8b)",)


def test_every_mistake_at_once():
    args = MINIMAL | {"num_layers": "many", "tensor_model_parallel_size": "two", "recompute_granularity": "ful"}
    del args["micro_batch_size"]
    error = refusal(megatron_args.from_mapping, args, "args")
    assert {"num_layers", "tensor_model_parallel_size", "recompute_granularity", "micro_batch_size"} <= {
        problem.key for problem in error.problems
    }


@pytest.mark.parametrize("content", ["", "nothing here", "iteration 1/ 10 | loss 1", "a: [", "[1, 2]"])
def test_files_without_arguments(tmp_path, content):
    file = put(tmp_path / "file.txt", content)
    refusal(detect.load, file, match=r"nothing that states a run|mapping|valid|block")
    refusal(detect.load, tmp_path / "missing.log", match=r"readable|does not exist")


def test_logs_of_bigscience(shared):
    for log in sorted((shared / "corpus" / "logs" / "nvidia").glob("bigscience_meg*.log")):
        loaded = detect.load(log)
        assert loaded.model.vocab_size == 50257
        assert problems(loaded.workload()) == ()


def test_launch_arguments_in_the_results_tables(shared):
    import yaml

    text = (shared / "corpus" / "nvidia.yaml").read_text()
    rows = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    rows = [row for row in rows if (row.get("other") or {}).get("args") and "V4" not in row["model"]]
    assert len(rows) > 8
    for row in rows:
        loaded = megatron_args.from_mapping(row["other"]["args"], row["id"], name=row["model"])
        assert count(loaded.model).main == pytest.approx(count(zoo.load(zoo.find(row["model"]))).main, rel=1e-3)
        assert problems(loaded.workload(row["gpus"])) == ()


@given(st.text(max_size=200))
def test_any_text_parses_or_is_refused(text):
    assert isinstance(megatron_args.parse(text), dict)


DENSE = tabled("readers", "loader_megatron_dense")


@pytest.mark.parametrize("printed", [None, "None", 4, "4", 1])
def test_a_dense_dump_may_print_an_expert_tensor_size(printed: object) -> None:
    """Megatron-LM's validate_args gives every model the tensor size as its expert tensor size, and prints it."""
    loaded = megatron_args.from_mapping({**DENSE, "expert_tensor_parallel_size": printed, "world_size": 4}, "dump")
    assert loaded.recipe.etp == 1
    assert problems(loaded.workload()) == ()


@pytest.mark.parametrize(("given", "expected"), [({"recompute_granularity": None}, "none"), ({}, None)])
def test_a_printed_none_is_stated_and_silence_is_not(given: dict[str, object], expected: str | None) -> None:
    loaded = megatron_args.from_mapping({**DENSE, **given}, "dump")
    assert loaded.recipe.recompute_granularity == expected


def test_arguments_of_a_pair_of_stacks_are_told_from_those_of_a_model_that_sees():
    """Both state ``decoder_seq_length``; a dump of any other training prints the encoder's names alone, as its own."""
    printed = {"num_layers": 4, "encoder_num_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "vocab_size": 1000,
               "seq_length": 512, "encoder_seq_length": 512, "decoder_seq_length": None}  # fmt: skip
    plain, pair = Reader(printed), Reader({**printed, "decoder_seq_length": 128})
    assert "encoder" not in model_fields(plain)
    assert recipe_fields(plain, 4)["seq_length"] == 512
    assert model_fields(pair)["encoder"] == {"num_layers": 4}
    assert {"seq_length": 128, "encoder_seq_length": 512}.items() <= recipe_fields(pair, 4).items()
    sees = Reader({**printed, "decoder_seq_length": 2048, "vision_model_type": "clip"})
    assert model_fields(sees)["unsupported"] == ["images beside text"]


# What a whole dump of Megatron-LM's arguments tells of their age.


_SIZES = {"num_layers": 4, "hidden_size": 1024, "num_attention_heads": 16, "seq_length": 1024, "micro_batch_size": 1,
          "global_batch_size": 8, "max_position_embeddings": 1024, "padded_vocab_size": 50304, "world_size": 8}  # fmt: skip


def _dump(path: Path, others: int, **further: object) -> str:
    args = {**_SIZES, **{f"setting_{i}": i for i in range(others)}, **further}
    path.write_text("\n".join(f"  {name} {'.' * (40 - len(name))} {value}" for name, value in args.items()))
    return detect.load(path).framework_date


@pytest.mark.parametrize(
    ("others", "further", "month"), tabled("readers", "one_that_knows_of_no_flash_attention_is_older")
)
def test_one_that_knows_of_no_flash_attention_is_older(tmp_path: Path, others: int, further: dict, month: str) -> None:
    assert _dump(tmp_path / "train.log", others, **further) == month


def test_what_a_person_wrote_tells_nothing_by_what_it_lacks(tmp_path: Path) -> None:
    file = put(tmp_path / "arguments.yaml", "".join(f"{name}: {value}\n" for name, value in _SIZES.items()))
    assert detect.load(file).framework_date == ""


def test_deepspeeds_table_of_operators_is_no_dump() -> None:
    operators = ("async_io", "cpu_adam", "fused_adam", "fused_lamb", "quantizer", "random_ltd", "utils", "transformer")
    table = "".join(f"{name} {'.' * (24 - len(name))} [NO] ....... [OKAY]\n" for name in operators)
    assert megatron_args.parse(table) == {}
    assert not megatron_args.is_dump(table)
    rows = "".join(f"  argument_{i} ................................... {i}\n" for i in range(8))
    assert megatron_args.parse(table + rows) == {f"argument_{i}": i for i in range(8)}


def test_a_line_of_a_dump_that_another_process_cut_is_no_value() -> None:
    whole = "\n".join(f"  argument_{i} ........................ {i}" for i in range(10))
    torn = "  use_torch_fsdp2 ..............WARNING: one_logger package is required\n  tensor_model_parallel_size ........ 2"
    found = megatron_args.parse(f"{whole}\n{torn}\n")
    assert "use_torch_fsdp2" not in found
    assert found["tensor_model_parallel_size"] == 2


@pytest.mark.parametrize(("rank", "word", "targets"), tabled("readers", "words_for_several_linears_are_those_linears"))
def test_words_for_several_linears_are_those_linears(rank: int, word: str, targets: tuple[str, ...] | None) -> None:
    found = megatron_forks.in_own_words({"lora_rank": rank, "lora_target_modules": word})
    lora = found.get("lora")
    assert (tuple(lora["target_modules"]) if isinstance(lora, dict) else None) == targets


@pytest.mark.parametrize(
    ("switch", "groups", "told"), [(True, 2, False), (False, 2, True), (None, 2, True), (False, 8, False)]
)
def test_groups_of_queries_without_their_switch_are_said(switch: bool | None, groups: int, told: bool) -> None:
    stated = {**tabled("readers", "loader_megatron_dense"), "num_query_groups": groups, "group_query_attention": switch}
    loaded = megatron_args.from_mapping({key: value for key, value in stated.items() if value is not None}, "args")
    assert loaded.model.num_query_groups == (groups if switch else 8)
    assert bool(loaded.moot) is told
