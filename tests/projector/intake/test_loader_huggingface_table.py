"""``config.json`` of architectures that the table of words, or a reader of several mixers, tells apart."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from asked import refusal
from huggingface_configs import llama_like
from workloads import workload

from projector.errors import InputError
from projector.intake import huggingface
from projector.workload import zoo
from projector.workload.parameters import count
from projector.workload.validate import problems

#: Keys of a zoo model's config.json beside those that follow from the zoo.
ALIKE: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "data/huggingface.yaml").read_text())[
    "alike"
]


def config(name: str) -> dict[str, Any]:
    """The config.json of an architecture that ``data/huggingface.yaml`` states beside the zoo's model of the name."""
    model = zoo.load(name.rstrip("'"))
    repeated = {
        key: [*held.get("head", ()), *held["of"] * held["times"], *held.get("tail", ())]
        for key, held in ALIKE[name].items()
        if isinstance(held, dict) and "times" in held
    }
    like = llama_like(
        "", model.num_layers, model.hidden_size, model.ffn_hidden_size, model.num_attention_heads,
        model.num_query_groups, model.vocab_size, head_dim=model.kv_channels,
        tie_word_embeddings=not model.untie_embeddings_and_output_weights,
    )  # fmt: skip
    return like | ALIKE[name] | repeated


COUNTED = yaml.safe_load((Path(__file__).parent / "data" / "huggingface_counts.yaml").read_text())


@pytest.mark.parametrize(("parameters", "config"), COUNTED, ids=[config["model_type"] for _, config in COUNTED])
def test_a_configuration_has_the_parameters_that_transformers_gives_it(parameters: int, config: dict[str, Any]) -> None:
    """Norms that a remark says are counted otherwise differ by less than a ten thousandth."""
    loaded = huggingface.from_mapping(config, "config.json")
    told = any("counted" in remark or "left out" in remark for remark in loaded.unmodelled)
    assert count(loaded.model).total == pytest.approx(parameters, rel=1e-4 if told else 1e-7)


@pytest.mark.parametrize("config", [config for _, config in COUNTED], ids=lambda config: config["model_type"])
def test_an_output_layer_of_which_nothing_is_said_is_that_of_the_class(config: dict[str, Any]) -> None:
    """transformers writes no value that is its base class's default; cohere and gemma are stated against theirs."""
    silent = {key: value for key, value in config.items() if key != "tie_word_embeddings"}
    said, unsaid = (count(huggingface.from_mapping(each, "config.json").model).total for each in (config, silent))
    assert (said == unsaid) is (config["model_type"] not in ("cohere", "gemma"))


@pytest.mark.parametrize("name", ALIKE)
def test_a_config_is_the_model_of_the_zoo(name: str) -> None:
    read, known = huggingface.from_mapping(config(name), "config.json").model, zoo.load(name.rstrip("'"))
    assert (count(read).main, count(read).active) == (count(known).main, count(known).active)
    assert [kind.name for kind in read.layer_kinds] == [kind.name for kind in known.layer_kinds]
    widths, expected = ([model.within(kind).kv_channels for kind in model.layer_kinds] for model in (read, known))
    assert widths == expected
    assert read.unsupported == ()


def test_a_key_of_the_table_that_is_misspelt_is_named():
    wrong = config("deepseek_v4_flash")
    wrong["index_topks"] = wrong.pop("index_topk")
    refusal(huggingface.from_mapping, wrong, "config.json", match="index_topk")
    shared = config("gemma4_26b_a4b") | {"num_kv_shared_layers": 20}
    assert huggingface.from_mapping(shared, "f").model.unsupported == ("layers that share keys and values",)


def searched_block(heads: int, mult: float | None) -> dict:
    attention = {"n_heads_in_group": heads or None, "no_op": not heads, "replace_with_linear": False}
    return {"attention": attention, "ffn": {"ffn_mult": mult, "no_op": mult is None, "replace_with_linear": False}}


def test_searched_blocks_are_those_of_the_zoo():
    """Widths of Llama-3.3-Nemotron-Super-49B by its ``ffn_mult``; a replaced half is refused, a broken one named."""
    known = zoo.load("llama_nemotron_super_49b")
    widths = known.per_layer.ffn_hidden_size
    mults = {14336: 2.625, 28672: 5.25, 17920: 3.28125, 7168: 1.3125, 5632: 1.0, 2816: 0.5}
    blocks = [
        searched_block(8 if heads else 0, mults[width])
        for heads, width in zip(known.per_layer.num_attention_heads, widths, strict=True)
    ]
    config = llama_like("nemotron-nas", 80, 8192, 28672, 64, 8, 128256, block_configs=blocks)
    config |= {"intermediate_size": None, "num_key_value_heads": None}
    model = huggingface.from_mapping(config, "config.json").model
    assert count(model) == count(known)
    assert model.layer_kinds == known.layer_kinds
    blocks[3]["attention"] |= {"replace_with_linear": True}
    assert huggingface.from_mapping(config, "config.json").model.unsupported
    blocks[3]["ffn"] = {"ffn_mult": "wide"}
    refusal(huggingface.from_mapping, config, "config.json", match="block_configs")
    with pytest.raises(InputError, match="num_hidden_layers"):
        huggingface.from_mapping({**config, "block_configs": [searched_block(8, 1.0)]}, "config.json")


def test_double_layers_and_factored_queries_are_those_of_the_zoo():
    longcat = {
        "model_type": "longcat_flash", "vocab_size": 131072, "hidden_size": 6144, "num_layers": 28,
        "num_attention_heads": 64,
        "ffn_hidden_size": 12288, "expert_ffn_hidden_size": 2048, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "moe_topk": 12, "n_routed_experts": 512,
        "zero_expert_num": 256, "zero_expert_type": "identity", "max_position_embeddings": 131072,
    }  # fmt: skip
    step = llama_like(
        "step3_text", 61, 7168, 18432, 64, 1, 128815, num_attention_groups=1, share_q_dim=2048, moe_num_experts=48,
        moe_top_k=3, moe_intermediate_size=5120, share_expert_dim=5120, head_dim=256,
        moe_layers_enum=",".join(map(str, range(4, 60))),
    )  # fmt: skip
    for config, name in ((longcat, "longcat_flash"), (step, "step_3")):
        model = huggingface.from_mapping(config, "config.json").model
        assert count(model) == count(zoo.load(name)), name
        assert model.layer_kinds == zoo.load(name).layer_kinds, name


def test_a_kind_of_layer_that_nobody_knows_is_named():
    stated = config("qwen3_next_80b_a3b")
    with pytest.raises(InputError, match="linear_attention, full_attention"):
        huggingface.from_mapping(stated | {"layer_types": ["sparse_attention"] * 48}, "config.json")
    every = {key: value for key, value in stated.items() if key != "layer_types"} | {"full_attention_interval": 4}
    assert huggingface.from_mapping(every, "f").model == huggingface.from_mapping(stated, "f").model


def test_pairs_of_stacks_are_counted_as_their_classes_count_them():
    """T5ForConditionalGeneration, FLAN-T5 (version 1.1) and mT5 as published."""
    old = {"model_type": "t5", "is_encoder_decoder": True, "d_model": 1024, "d_kv": 64, "d_ff": 4096, "num_layers": 24,
           "num_heads": 16, "vocab_size": 32128, "relative_attention_num_buckets": 32, "n_positions": 512}  # fmt: skip
    new = {"num_decoder_layers": 24, "d_ff": 2816, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    mt5 = {**old, "model_type": "mt5", "d_ff": 2816, "vocab_size": 250112}
    for config, name in ((old, "t5_large"), (old | new, "flan_t5_large"), (mt5, None)):
        model = huggingface.from_mapping(config, "config.json").model
        published = 1_229_581_312 if name is None else zoo.entry(name).parameters_published
        assert count(model).main == published
        assert model.encoder.num_layers == 24


def test_language_models_that_see_are_counted_as_their_class_counts_them():
    """LlavaForConditionalGeneration of llava-hf/llava-1.5-7b-hf and -13b-hf, whose files leave out LLaMA's defaults."""
    tower = {"hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "model_type": "clip_vision_model",
             "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768}  # fmt: skip
    large = {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40}
    for name, text in (("llava_1.5_7b", {}), ("llava_1.5_13b", large)):
        inner = {"model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 4096, **text}
        config = {"model_type": "llava", "text_config": inner, "vision_config": tower, "image_token_index": 32000}
        loaded = huggingface.from_mapping(config, "config.json")
        assert count(loaded.model).main == count(zoo.load(name)).main
        assert (loaded.model.vision.tokens, loaded.model.vision.image_tokens, loaded.assumed) == (577, 576, ())
    with pytest.raises(InputError, match="clip_vision_model"):
        huggingface.from_mapping({**config, "vision_config": {**tower, "model_type": "pixtral"}}, "config.json")


def test_encoders_are_counted_as_their_classes_count_them():
    """BertForMaskedLM and RobertaForMaskedLM of transformers at their default configurations."""
    bert = llama_like("bert", 12, 768, 3072, 12, 12, 30522, max_position_embeddings=512, type_vocab_size=2)
    del bert["num_key_value_heads"], bert["tie_word_embeddings"]
    for config, published in ((bert, 109_514_298), (bert | {"model_type": "roberta"}, 109_514_298)):
        model = huggingface.from_mapping(config, "config.json").model
        assert count(model).main == published
        assert not model.causal


def test_what_matters_and_is_not_read_is_named() -> None:
    for name, wrong, nearest in (
        ("jamba_1.5_mini", {"attn_layer_perod": 4}, "attn_layer_period"),
        ("falcon_h1_34b", {"mamba_n_head": 16}, "mamba_n_heads"),
        ("mamba_2.8b", {"state_sizes": 32}, "state_size"),
    ):
        (problem,) = refusal(huggingface.from_mapping, {**config(name), **wrong}, "config.json").problems
        assert problem.key in wrong
        assert nearest in problem.expected
    short = huggingface.from_mapping(
        {**config("granite_4_h_tiny"), "layer_types": ["mamba", "attention"]}, "config.json"
    ).model
    (problem,) = problems(workload(short, 8, global_batch_size=8))
    assert "40 of them, not 2" in problem.expected
