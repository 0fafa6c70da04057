"""``config.json`` of architectures that the table of words, or a reader of several mixers, tells apart."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from asked import refusal
from huggingface_configs import llama_like

from projector.errors import InputError
from projector.intake import huggingface
from projector.workload import zoo
from projector.workload.layer_pattern import expand
from projector.workload.parameters import count
from projector.workload.recipe import Recipe
from projector.workload.validate import problems
from projector.workload.workload import Workload

#: model_type and keys of a zoo model that is read by the table of words; the rest of its config.json follows from it.
BY_TABLE = {
    "glm_4.5": ("glm4_moe", {"experts": "n_routed_experts", "shared": "n_shared_experts", "use_qk_norm": True,
                             "attention_bias": True, "first_k_dense_replace": 3}),
    "dots_llm1": ("dots1", {"experts": "n_routed_experts", "shared": "n_shared_experts", "first_k_dense_replace": 1}),
    "solar_open_100b": ("solar_open", {"experts": "n_routed_experts", "shared": "n_shared_experts"}),
    "hunyuan_v3": ("hy_v3", {"experts": "num_experts", "shared": "num_shared_experts",
                             "mlp_layer_types": ["dense"] + ["sparse"] * 79}),
    "ling_flash_2.0": ("bailing_moe_v2", {"experts": "num_experts", "shared": "num_shared_experts", "use_qk_norm": True,
                                          "first_k_dense_replace": 1, "n_group": 8, "topk_group": 4}),
    "ernie_4.5_21b_a3b": ("ernie4_5_moe", {"experts": "moe_num_experts", "topk": "moe_k", "shared": "moe_num_shared_experts",
                                           "moe_layer_start_index": 1}),
    "minimax_m2": ("minimax_m2", {"experts": "num_local_experts", "width": "intermediate_size"}),
    "hunyuan_a13b": ("hunyuan_v1_moe", {"experts": "num_experts", "topk": "moe_topk", "shared": "num_shared_expert"}),
    "hunyuan_large": ("hunyuan", {"experts": "num_experts", "topk": "moe_topk", "shared": "num_shared_expert",
                                  "use_cla": True, "cla_share_factor": 2}),
    "k_exaone_236b": ("exaone_moe", {"experts": "num_experts", "shared": "num_shared_experts", "first_k_dense_replace": 1,
                                     "sliding_window": 128, "sliding_window_pattern": 4, "use_qk_norm": True}),
    "command_r7b": ("cohere2", {"sliding_window": 4096, "sliding_window_pattern": 4}),
    "cwm_32b": ("cwm", {"sliding_window": 8192,
                        "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 16}),
    "gemma4_26b_a4b": ("gemma4_text", {
        "experts": "num_experts", "topk": "top_k_experts", "enable_moe_block": True, "sliding_window": 1024,
        "global_head_dim": 512, "num_global_key_value_heads": 2, "attention_k_eq_v": True,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5}),
    "deepseek_v3.2": ("deepseek_v32", {
        "experts": "n_routed_experts", "shared": "n_shared_experts", "first_k_dense_replace": 3, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "index_n_heads": 64,
        "index_head_dim": 128, "index_topk": 2048}),
    "deepseek_v4_flash": ("deepseek_v4", {
        "experts": "n_routed_experts", "shared": "n_shared_experts", "q_lora_rank": 1024, "qk_rope_head_dim": 64,
        "o_groups": 8, "o_lora_rank": 1024, "sliding_window": 128, "index_n_heads": 64, "index_head_dim": 128,
        "index_topk": 512, "hc_mult": 4, "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0]}),
}  # fmt: skip


def by_table(name: str) -> dict:
    kind, keys = BY_TABLE[name]
    model, moe = zoo.load(name), zoo.load(name).moe
    config = llama_like(
        kind, model.num_layers, model.hidden_size, model.ffn_hidden_size, model.num_attention_heads,
        model.num_query_groups, model.vocab_size, head_dim=model.kv_channels,
        tie_word_embeddings=not model.untie_embeddings_and_output_weights,
    )  # fmt: skip
    named = dict(keys)
    if moe is not None:
        config[named.pop("experts")] = moe.num_experts
        config[named.pop("topk", "num_experts_per_tok")] = moe.moe_router_topk
        config[named.pop("width", "moe_intermediate_size")] = moe.moe_ffn_hidden_size
        if shared := named.pop("shared", ""):
            config[shared] = moe.moe_shared_expert_intermediate_size // moe.moe_ffn_hidden_size
    return config | named


COUNTED = yaml.safe_load((Path(__file__).parent / "data" / "huggingface_counts.yaml").read_text())


@pytest.mark.parametrize(("parameters", "config"), COUNTED, ids=[config["model_type"] for _, config in COUNTED])
def test_a_configuration_has_the_parameters_that_transformers_gives_it(parameters, config):
    """Norms that a remark says are counted otherwise differ by less than a ten thousandth."""
    loaded = huggingface.from_mapping(config, "config.json")
    told = any("counted" in remark or "left out" in remark for remark in loaded.unmodelled)
    assert count(loaded.model).total == pytest.approx(parameters, rel=1e-4 if told else 1e-7)


@pytest.mark.parametrize("name", BY_TABLE)
def test_architectures_of_the_table_are_those_of_the_zoo(name):
    loaded = huggingface.from_mapping(by_table(name), "config.json")
    read, known = loaded.model, zoo.load(name)
    assert count(read).main == count(known).main
    assert count(read).active == count(known).active
    assert [kind.name for kind in read.layer_kinds] == [kind.name for kind in known.layer_kinds]
    assert [read.within(kind).kv_channels for kind in read.layer_kinds] == [
        known.within(kind).kv_channels for kind in known.layer_kinds
    ]


def test_a_key_of_the_table_that_is_misspelt_is_named():
    config = by_table("deepseek_v4_flash")
    config["index_topks"] = config.pop("index_topk")
    refusal(huggingface.from_mapping, config, "config.json", match="index_topk")
    config = by_table("gemma4_26b_a4b") | {"num_kv_shared_layers": 20}
    assert huggingface.from_mapping(config, "f").model.unsupported == ("layers that share keys and values",)


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


def mixed(kinds: dict[str, str], name: str, kind: str, **more) -> dict:
    """A ``config.json`` of a zoo model whose layers have several mixers."""
    model = zoo.load(name)
    back = {letter: word for word, letter in kinds.items()}
    config = llama_like(
        kind, model.num_layers, model.hidden_size, model.ffn_hidden_size, model.num_attention_heads,
        model.num_query_groups, model.vocab_size, head_dim=model.kv_channels,
        tie_word_embeddings=not model.untie_embeddings_and_output_weights,
        layer_types=[back[letter] for letter in expand(model.mixer_pattern)],
    )  # fmt: skip
    return config | more


DELTA = {
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
}  # fmt: skip
ROUTED = {"num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
          "shared_expert_intermediate_size": 512}  # fmt: skip
LINEAR = {"linear_attention": "G", "full_attention": "*"}
MIXED = {
    "qwen3_next_80b_a3b": mixed(LINEAR, "qwen3_next_80b_a3b", "qwen3_next", **DELTA, **ROUTED),
    "qwen3.5_35b_a3b": mixed(
        LINEAR, "qwen3.5_35b_a3b", "qwen3_5_moe_text", **DELTA, **(ROUTED | {"num_experts": 256, "num_experts_per_tok": 8})
    ),
    "olmo_hybrid_7b": mixed(
        LINEAR, "olmo_hybrid_7b", "olmo_hybrid", linear_num_key_heads=30, linear_num_value_heads=30,
        linear_key_head_dim=96, linear_value_head_dim=192,
    ),
    "kimi_linear_48b_a3b": mixed(
        {"linear_attention": "K", "full_attention": "+"}, "kimi_linear_48b_a3b", "kimi_linear", head_dim=None,
        kv_lora_rank=512, q_lora_rank=None, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, num_experts=256,
        num_experts_per_token=8, moe_intermediate_size=1024, num_shared_experts=1, first_k_dense_replace=1,
        linear_num_heads=32, linear_head_dim=128,
    ),
    "minimax_text_01": mixed(
        {"linear_attention": "L", "full_attention": "*"}, "minimax_text_01", "minimax", num_local_experts=32,
        num_experts_per_tok=2,
    ),
    "granite_4_h_small": mixed(
        {"mamba": "M", "attention": "*"}, "granite_4_h_small", "granitemoehybrid", mamba_n_heads=128, mamba_d_head=64,
        mamba_n_groups=1, mamba_d_state=128, mamba_d_conv=4, mamba_chunk_size=256, num_local_experts=72,
        num_experts_per_tok=10, intermediate_size=768, shared_intermediate_size=1536,
    ),
    "lfm2_8b_a1b": mixed(
        {"conv": "C", "full_attention": "*"}, "lfm2_8b_a1b", "lfm2_moe", num_experts=32, num_experts_per_tok=4,
        moe_intermediate_size=1792, num_dense_layers=2, conv_L_cache=3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_layers_of_several_mixers_are_those_of_the_zoo(name):
    read, known = huggingface.from_mapping(MIXED[name], "config.json").model, zoo.load(name)
    assert (count(read).main, count(read).active) == (count(known).main, count(known).active)
    assert [kind.name for kind in read.layer_kinds] == [kind.name for kind in known.layer_kinds]


def test_a_kind_of_layer_that_nobody_knows_is_named():
    config = MIXED["qwen3_next_80b_a3b"]
    with pytest.raises(InputError, match="linear_attention, full_attention"):
        huggingface.from_mapping(config | {"layer_types": ["sparse_attention"] * 48}, "config.json")
    every = {key: value for key, value in config.items() if key != "layer_types"} | {"full_attention_interval": 4}
    assert huggingface.from_mapping(every, "f").model == huggingface.from_mapping(config, "f").model


def test_side_by_side_decoders_are_counted_as_their_classes_count_them():
    """Parameters of transformers' own classes at their default configurations."""
    phi = llama_like("phi", 24, 2048, 8192, 32, 32, 51200)
    gptj = {"model_type": "gptj", "n_layer": 28, "n_embd": 4096, "n_head": 16, "vocab_size": 50400, "n_positions": 2048,
            "tie_word_embeddings": False}  # fmt: skip
    cohere = llama_like("cohere", 40, 8192, 22528, 64, 64, 256000, tie_word_embeddings=True)
    for config, published in ((phi, 1_418_270_720), (gptj, 6_050_882_784), (cohere, 34_980_831_232)):
        model = huggingface.from_mapping(config, "config.json").model
        assert count(model).main == pytest.approx(published, rel=1e-4)
        assert model.parallel_residual


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


# config.json of stacks with recurrent layers: kinds and counts of the zoo, and what is missing or wrong by name.


_STATES: dict[str, Any] = {"mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": True, "mamba_proj_bias": False}
_GRANITE = ["mamba"] * 5 + ["attention"] + ["mamba"] * 4
#: model_type, name in the zoo, keys beside those of every decoder. Files: the repositories that the zoo names.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba_2.8b": ("mamba", {"state_size": 16, "conv_kernel": 4, "intermediate_size": 5120, "time_step_rank": 160}),
    "falcon_mamba_7b": ("falcon_mamba", {"intermediate_size": 8192, "state_size": 16, "time_step_rank": "auto"}),
    "codestral_mamba_7b": ("mamba2", {"num_heads": 128, "head_dim": 64, "state_size": 128, "n_groups": 8,
                                      "chunk_size": 256}),
    "jamba_1.5_mini": ("jamba", {"attn_layer_period": 8, "attn_layer_offset": 4, "expert_layer_period": 2,
                                 "expert_layer_offset": 1, "num_experts": 16, "num_experts_per_tok": 2, "mamba_d_state": 16,
                                 "mamba_dt_rank": 256, **_STATES}),
    "falcon_h1_34b": ("falcon_h1", {"mamba_d_ssm": 4096, "mamba_n_heads": 32, "mamba_d_head": "auto", "mamba_n_groups": 2,
                                    "mamba_d_state": 256, "mamba_chunk_size": 128, "mamba_rms_norm": False,
                                    "ssm_multipliers": [1.0] * 5, **_STATES}),
    "granite_4_h_tiny": ("granitemoehybrid", {"layer_types": _GRANITE * 4, "num_local_experts": 64, "num_experts_per_tok": 6,
                                              "intermediate_size": 512, "shared_intermediate_size": 1024,
                                              "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_n_groups": 1,
                                              "mamba_d_state": 128, "mamba_chunk_size": 256, **_STATES}),
    "granite_4_h_micro": ("granitemoehybrid", {"layer_types": _GRANITE * 4, "num_local_experts": 0,
                                               "shared_intermediate_size": 8192, "mamba_n_heads": 64, "mamba_d_head": 64,
                                               "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_chunk_size": 256,
                                               **_STATES}),
    "zamba2_7b": ("zamba2", {"layers_block_type": ["hybrid" if i in (6, *range(11, 78, 6)) else "mamba" for i in range(81)],
                             "num_mem_blocks": 2, "adapter_rank": 128, "use_shared_attention_adapter": False,
                             "use_mem_rope": True, "n_mamba_heads": 112, "mamba_ngroups": 2, "mamba_d_state": 64,
                             "chunk_size": 256, "mamba_d_conv": 4, "mamba_expand": 2}),
    "qwen3_next_80b_a3b": ("qwen3_next", {"full_attention_interval": 4, "linear_num_key_heads": 16,
                                          "linear_num_value_heads": 32, "linear_key_head_dim": 128,
                                          "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "num_experts": 512,
                                          "num_experts_per_tok": 10, "moe_intermediate_size": 512,
                                          "shared_expert_intermediate_size": 512}),
    "minimax_text_01": ("minimax_text_01", {"attn_type_list": ([0] * 7 + [1]) * 10, "num_local_experts": 32,
                                            "num_experts_per_tok": 2, "block_size": 256, "shared_intermediate_size": 0}),
    "lfm2_8b_a1b": ("lfm2_moe", {"full_attn_idxs": [2, 6, 10, 14, 18, 21], "conv_L_cache": 3, "num_experts": 32,
                                 "num_experts_per_tok": 4, "moe_intermediate_size": 1792, "num_dense_layers": 2}),
}  # fmt: skip


def config(name: str) -> dict[str, Any]:
    kind, keys = CONFIGS[name]
    model = zoo.load(name)
    return {
        "model_type": kind, "num_hidden_layers": model.num_layers, "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size, "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_query_groups, "head_dim": model.kv_channels, "vocab_size": model.vocab_size,
        "tie_word_embeddings": not model.untie_embeddings_and_output_weights,
    } | keys  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_is_the_model_of_the_zoo(name: str) -> None:
    known, read = zoo.load(name), huggingface.from_mapping(config(name), "config.json").model
    assert read.unsupported == ()
    assert [kind.mixer for kind in read.layer_kinds] == [kind.mixer for kind in known.layer_kinds]
    assert (count(read).main, count(read).active) == (count(known).main, count(known).active)


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
    recipe = Recipe(micro_batch_size=1, global_batch_size=8, seq_length=4096)
    (problem,) = problems(Workload(model=short, recipe=recipe, gpus=8))
    assert "40 of them, not 2" in problem.expected
