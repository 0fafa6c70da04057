"""``config.json`` of Hugging Face: the zoo's shapes come out of the published files."""

from __future__ import annotations

import json

import pytest
from huggingface_configs import llama_like
from hypothesis import given
from hypothesis import strategies as st

from projector.errors import InputError, Unsupported
from projector.intake import huggingface
from projector.workload import zoo
from projector.workload.parameters import count

DEEPSEEK_V3 = llama_like(
    "deepseek_v3", 61, 7168, 18432, 128, 128, 129280,
    q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
    n_routed_experts=256, num_experts_per_tok=8, moe_intermediate_size=2048, n_shared_experts=1, n_group=8,
    topk_group=4, first_k_dense_replace=3, moe_layer_freq=1, scoring_func="sigmoid", topk_method="noaux_tc",
    num_nextn_predict_layers=1,
)  # fmt: skip
CONFIGS = {
    "llama3.1_8b": llama_like("llama", 32, 4096, 14336, 32, 8, 128256),
    "llama3.2_1b": llama_like("llama", 16, 2048, 8192, 32, 8, 128256, tie_word_embeddings=True, head_dim=64),
    "mistral_7b": llama_like("mistral", 32, 4096, 14336, 32, 8, 32000, sliding_window=4096),
    "qwen2.5_7b": llama_like("qwen2", 28, 3584, 18944, 28, 4, 152064, use_sliding_window=False, sliding_window=131072),
    "qwen3_8b": llama_like("qwen3", 36, 4096, 12288, 32, 8, 151936, head_dim=128),
    "qwen3_30b_a3b": llama_like(
        "qwen3_moe", 48, 2048, 6144, 32, 4, 151936, head_dim=128, num_experts=128, num_experts_per_tok=8,
        moe_intermediate_size=768, decoder_sparse_step=1, mlp_only_layers=[],
    ),
    "mixtral_8x7b": llama_like("mixtral", 32, 4096, 14336, 32, 8, 32000, num_local_experts=8, num_experts_per_tok=2),
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v2_lite": llama_like(
        "deepseek_v2", 27, 2048, 10944, 16, 16, 102400, q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=128,
        qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=64, num_experts_per_tok=6, moe_intermediate_size=1408,
        n_shared_experts=2, n_group=1, topk_group=1, first_k_dense_replace=1, moe_layer_freq=1,
        scoring_func="softmax", topk_method="greedy",
    ),
    "gpt_oss_20b": llama_like(
        "gpt_oss", 24, 2880, 2880, 64, 8, 201088, head_dim=64, num_local_experts=32, num_experts_per_tok=4,
        sliding_window=128, attention_bias=True,
    ),
    "gpt2_xl": {"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25, "vocab_size": 50257,
                "n_positions": 1024, "n_ctx": 1024},
    "bloom_176b": {"model_type": "bloom", "n_layer": 70, "n_embed": 14336, "num_attention_heads": 112,
                   "vocab_size": 250880},
    "gemma3_27b": {
        "model_type": "gemma3",
        "text_config": llama_like("gemma3_text", 62, 5376, 21504, 32, 16, 262144, head_dim=128, sliding_window=1024,
                                  tie_word_embeddings=True),
    },
    "mpt_30b": {"model_type": "mpt", "n_layers": 48, "d_model": 7168, "n_heads": 56, "vocab_size": 50368,
                "max_seq_len": 2048, "expansion_ratio": 4, "no_bias": False, "attn_config": {"alibi": False}},
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_shapes_agree_with_the_zoo(name):
    model = huggingface.from_mapping(CONFIGS[name], "config.json", name=name).model
    assert count(model) == count(zoo.load(name))
    assert model.layer_kinds == zoo.load(name).layer_kinds


def test_file_and_folder(tmp_path):
    folder = tmp_path / "My-Llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS["llama3.1_8b"]))
    loaded = huggingface.load(folder)
    assert loaded.model.name == "My-Llama"
    assert loaded.recipe is None
    assert "torch_dtype" in loaded.ignored
    assert huggingface.load(folder / "config.json").model == loaded.model
    with pytest.raises(InputError, match="training configuration"):
        loaded.workload(8)


def test_sparse_steps():
    config = CONFIGS["qwen3_30b_a3b"] | {"decoder_sparse_step": 2, "mlp_only_layers": [1], "num_hidden_layers": 6}
    moe = huggingface.from_mapping(config, "f").model.moe
    assert moe is not None
    assert moe.moe_layer_freq == (0, 0, 0, 1, 0, 1)


def test_unknown_architecture_names_the_known_ones():
    with pytest.raises(InputError, match="qwen3"):
        huggingface.from_mapping({"model_type": "qwen33"}, "config.json")
    with pytest.raises(InputError, match="model_type"):
        huggingface.from_mapping({}, "config.json")


def test_hybrid_models_are_named_not_projected():
    config = llama_like("nemotron_h", 52, 2688, 1856, 32, 2, 131072, head_dim=128)
    assert huggingface.from_mapping(config, "f").model.unsupported == ("Mamba layers",)


def test_a_hybrid_config_is_the_model_of_the_zoo():
    known = zoo.load("nemotron3_super", mtp_num_layers=0)
    config = llama_like("nemotron_h", 88, 4096, 2688, 32, 2, 131072, head_dim=128) | {
        "hybrid_override_pattern": known.hybrid_layer_pattern,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "ssm_state_size": 128,
        "conv_kernel": 4,
        "chunk_size": 128,
        "moe_latent_size": 1024,
        "n_routed_experts": 512,
        "num_experts_per_tok": 22,
        "moe_intermediate_size": 2688,
        "moe_shared_expert_intermediate_size": 5376,
    }
    model = huggingface.from_mapping(config, "f").model
    assert model.layer_kinds == known.layer_kinds
    assert count(model).main == count(known).main


def test_every_mistake_at_once():
    config = CONFIGS["llama3.1_8b"] | {"hidden_size": "wide", "num_attention_heads": None, "vocab_size": [1]}
    with pytest.raises(InputError) as error:
        huggingface.from_mapping(config, "config.json")
    assert {"hidden_size", "num_attention_heads", "vocab_size"} <= {problem.key for problem in error.value.problems}


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "\x00", '{"model_type": 5}'])
def test_broken_files(tmp_path, text):
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(InputError):
        huggingface.load(file)
    with pytest.raises(InputError):
        huggingface.load(tmp_path / "none.json")


VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.lists(st.integers(), max_size=3)
)


@given(st.sampled_from(sorted(CONFIGS)), st.data())
def test_mutated_configs_raise_nothing_else(name, data):
    keys = sorted(CONFIGS[name])
    changes = data.draw(st.dictionaries(st.sampled_from(keys), VALUES, max_size=3))
    try:
        huggingface.from_mapping(CONFIGS[name] | changes, "config.json")
    except InputError as error:
        assert error.problems  # noqa: PT017


#: Configurations that no zoo entry holds, and the parameters that the published weights have (their model cards).
PUBLISHED = {
    "Phi-3-mini": (llama_like("phi3", 32, 3072, 8192, 32, 32, 32064, sliding_window=2047), 3_821_079_552),
    "internlm2-7b": (llama_like("internlm2", 32, 4096, 14336, 32, 8, 92544, bias=False), 7_737_708_544),
    "granite-3.1-8b": (llama_like("granite", 40, 4096, 12800, 32, 8, 49155, tie_word_embeddings=True), 8_170_848_256),
    "granite-3.0-1b-a400m": (
        llama_like("granitemoe", 24, 1024, 512, 16, 8, 49155, tie_word_embeddings=True, num_local_experts=32,
                   num_experts_per_tok=8), 1_334_628_352),
    "starcoder2-7b": (
        llama_like("starcoder2", 32, 4608, 18432, 36, 4, 49152, use_bias=True, tie_word_embeddings=None), 7_173_923_840),
    "starcoderbase": (
        {"model_type": "gpt_bigcode", "n_layer": 40, "n_embd": 6144, "n_head": 48, "n_inner": 24576, "n_positions": 8192,
         "vocab_size": 49152, "multi_query": True}, 15_517_456_384),
    "stablelm-2-1.6b": (llama_like("stablelm", 24, 2048, 5632, 32, 32, 100352, use_qkv_bias=True), 1_644_515_328),
    "opt-6.7b": (
        {"model_type": "opt", "num_hidden_layers": 32, "hidden_size": 4096, "ffn_dim": 16384, "num_attention_heads": 32,
         "word_embed_proj_dim": 4096, "vocab_size": 50272, "max_position_embeddings": 2048}, 6_658_473_984),
    "OLMo-7B": (llama_like("olmo", 32, 4096, 11008, 32, 32, 50304), 6_888_095_744),
    "OLMo-2-7B": (llama_like("olmo2", 32, 4096, 11008, 32, 32, 100352), 7_298_617_344),
    "Olmo-3-7B": (llama_like("olmo3", 32, 4096, 11008, 32, 32, 100278, sliding_window=4096), 7_298_011_136),
    "OLMoE-1B-7B": (
        llama_like("olmoe", 16, 2048, 1024, 16, 16, 50304, num_experts=64, num_experts_per_tok=8), 6_919_161_856),
    "dbrx": (
        {"model_type": "dbrx", "d_model": 6144, "n_layers": 40, "n_heads": 48, "vocab_size": 100352, "max_seq_len": 32768,
         "attn_config": {"kv_n_heads": 8}, "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}},
        131_596_523_520),
    "glm-4-9b-hf": (llama_like("glm", 40, 4096, 13696, 32, 2, 151552, head_dim=128, attention_bias=True), 9_399_951_360),
    "GLM-4-9B-0414": (llama_like("glm4", 40, 4096, 13696, 32, 2, 151552, head_dim=128, attention_bias=True), 9_400_279_040),
    "chatglm3-6b": (
        {"model_type": "chatglm", "num_layers": 28, "hidden_size": 4096, "ffn_hidden_size": 13696, "kv_channels": 128,
         "num_attention_heads": 32, "multi_query_attention": True, "multi_query_group_num": 2, "add_qkv_bias": True,
         "add_bias_linear": False, "rmsnorm": True, "padded_vocab_size": 65024, "seq_length": 8192}, 6_243_584_000),
    "EXAONE-3.0-7.8B": (llama_like("exaone", 32, 4096, 14336, 32, 8, 102400), 7_818_448_896),
    "Baichuan2-7B": (llama_like("baichuan", 32, 4096, 11008, 32, 32, 125696), 7_505_973_248),
    "MiniCPM-2B": (llama_like("minicpm", 40, 2304, 5760, 36, 36, 122753, tie_word_embeddings=True), 2_724_880_896),
    "SmolLM3-3B": (llama_like("smollm3", 36, 2048, 11008, 16, 4, 128256, tie_word_embeddings=True), 3_075_098_624),
    "Seed-OSS-36B": (
        llama_like("seed_oss", 64, 5120, 27648, 80, 8, 155136, head_dim=128, attention_bias=True), 36_151_104_512),
    "ERNIE-4.5-0.3B": (
        llama_like("ernie4_5", 18, 1024, 3072, 16, 2, 103424, head_dim=128, tie_word_embeddings=True), 360_748_032),
    "Apertus-8B": (llama_like("apertus", 32, 4096, 21504, 32, 8, 131072), 8_053_338_176),
    "Qwen-7B": (llama_like("qwen", 32, 4096, 22016, 32, 32, 151936), 7_721_324_544),
    "deepseek-moe-16b": (
        llama_like("deepseek", 28, 2048, 10944, 16, 16, 102400, n_routed_experts=64, num_experts_per_tok=6,
                   moe_intermediate_size=1408, n_shared_experts=2, first_k_dense_replace=1, moe_layer_freq=1),
        16_375_728_128),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_published_weights(name):
    config, published = PUBLISHED[name]
    loaded = huggingface.from_mapping(config, "config.json", name=name)
    assert count(loaded.model).main == pytest.approx(published, rel=1e-4)
    assert loaded.model.unsupported == ()


def test_multi_token_prediction_of_mimo():
    config = llama_like("mimo", 36, 4096, 11008, 32, 8, 151680, attention_bias=True, num_nextn_predict_layers=1)
    assert count(huggingface.from_mapping(config, "config.json").model).total == 7_833_409_536


@pytest.mark.parametrize("kind", ["olmo2", "olmoe", "gpt_neox"])
def test_what_is_counted_otherwise_is_said(kind):
    config = llama_like(kind, 4, 512, 1024, 8, 8, 32000, num_experts=8, num_experts_per_tok=2)
    assert huggingface.from_mapping(config, "config.json").unmodelled


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ({"model_type": "falcon"}, "side by side"),
        ({"model_type": "zamba"}, "Mamba"),
        ({"model_type": "umt5"}, "an encoder and a decoder"),
        ({"model_type": "deberta"}, "an encoder"),
        ({"model_type": "own", "is_encoder_decoder": True}, "encoder"),
        ({"model_type": "qwen2_vl", "hidden_size": 8}, "images"),
        ({"model_type": "llava_next", "text_config": CONFIGS["llama3.1_8b"], "vision_config": {"d": 4}}, "text_config"),
        ({**CONFIGS["llama3.1_8b"], "mm_vision_tower": "clip"}, "mm_vision_tower"),
        ({**CONFIGS["llama3.1_8b"], "audio_config": {"d": 1}}, "audio_config"),
    ],
)  # fmt: skip
def test_what_nothing_lowers_is_named(config, part):
    with pytest.raises(Unsupported, match=part):
        huggingface.from_mapping(config, "config.json")


def test_the_language_model_alone_is_said_aloud():
    config = {**CONFIGS["gemma3_27b"], "vision_config": {"hidden_size": 1152}}
    loaded = huggingface.from_mapping(config, "config.json", name="gemma3_27b")
    assert loaded.model == huggingface.from_mapping(CONFIGS["gemma3_27b"], "config.json", name="gemma3_27b").model
    assert loaded.assumed == ("the language model alone (vision_config left out)",)
