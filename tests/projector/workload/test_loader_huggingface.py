"""``config.json`` of Hugging Face: the zoo's shapes come out of the published files."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.errors import InputError
from projector.workload import zoo
from projector.workload.loaders import huggingface
from projector.workload.parameters import count


def llama_like(kind: str, layers: int, hidden: int, ffn: int, heads: int, groups: int, vocab: int, **more) -> dict:
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **more,
    }


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
