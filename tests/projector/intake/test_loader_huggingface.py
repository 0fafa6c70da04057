"""``config.json`` of Hugging Face: the zoo's shapes come out of the published files."""

import json
from pathlib import Path

import pytest
import yaml
from asked import put, refusal
from huggingface_configs import llama_like

from projector.errors import Unsupported
from projector.intake import huggingface
from projector.workload import zoo
from projector.workload.parameters import count


def _whole(told):
    like = told.get("like")
    more = {key: _whole(value) if isinstance(value, dict) else value for key, value in told.items() if key != "like"}
    return llama_like(*like, **more) if like else more


TABLE = yaml.safe_load((Path(__file__).parent / "data" / "huggingface.yaml").read_text())
CONFIGS = {name: _whole(told) for name, told in TABLE["zoo"].items()}
PUBLISHED = {name: (_whole(told), parameters) for name, (told, parameters) in TABLE["published"].items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_shapes_agree_with_the_zoo(name):
    model = huggingface.from_mapping(CONFIGS[name], "config.json", name=name).model
    assert count(model) == count(zoo.load(name))
    assert model.layer_kinds == zoo.load(name).layer_kinds


def test_file_and_folder(tmp_path):
    folder = tmp_path / "My-Llama"
    put(folder / "config.json", json.dumps(CONFIGS["llama3.1_8b"]))
    loaded = huggingface.load(folder)
    assert loaded.model.name == "My-Llama"
    assert loaded.recipe is None
    assert "torch_dtype" in loaded.ignored
    assert huggingface.load(folder / "config.json").model == loaded.model
    refusal(loaded.workload, 8, match="training configuration")


def test_sparse_steps():
    config = CONFIGS["qwen3_30b_a3b"] | {"decoder_sparse_step": 2, "mlp_only_layers": [1], "num_hidden_layers": 6}
    assert huggingface.from_mapping(config, "f").model.moe.moe_layer_freq == (0, 0, 0, 1, 0, 1)


def test_unknown_architecture_names_the_known_ones():
    refusal(huggingface.from_mapping, {"model_type": "qwen33"}, "config.json", match="qwen3")
    refusal(huggingface.from_mapping, {}, "config.json", match="model_type")


def test_hybrid_models_are_named_not_projected():
    config = llama_like("nemotron_h", 52, 2688, 1856, 32, 2, 131072, head_dim=128)
    assert huggingface.from_mapping(config, "f").model.unsupported == ("Mamba layers",)


def test_a_hybrid_config_is_the_model_of_the_zoo():
    known = zoo.load("nemotron3_super", mtp_num_layers=0)
    config = llama_like("nemotron_h", 88, 4096, 2688, 32, 2, 131072, head_dim=128) | {
        "hybrid_override_pattern": known.hybrid_layer_pattern, "mamba_num_heads": 128, "mamba_head_dim": 64,
        "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4, "chunk_size": 128, "moe_latent_size": 1024,
        "n_routed_experts": 512, "num_experts_per_tok": 22, "moe_intermediate_size": 2688,
        "moe_shared_expert_intermediate_size": 5376,
    }  # fmt: skip
    model = huggingface.from_mapping(config, "f").model
    assert model.layer_kinds == known.layer_kinds
    assert count(model).main == count(known).main


def test_every_mistake_at_once():
    config = CONFIGS["llama3.1_8b"] | {"hidden_size": "wide", "num_attention_heads": None, "vocab_size": [1]}
    error = refusal(huggingface.from_mapping, config, "config.json")
    assert {"hidden_size", "num_attention_heads", "vocab_size"} <= {problem.key for problem in error.problems}


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "\x00", '{"model_type": 5}'])
def test_broken_files(tmp_path, text):
    refusal(huggingface.load, put(tmp_path / "config.json", text))
    refusal(huggingface.load, tmp_path / "none.json")


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_published_weights(name):
    config, published = PUBLISHED[name]
    loaded = huggingface.from_mapping(config, "config.json", name=name)
    assert count(loaded.model).main == pytest.approx(published, rel=1e-4)
    assert loaded.model.unsupported == ()
    assert loaded.model.parallel_residual == (name in ("phi", "gptj", "cohere"))


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
    refusal(huggingface.from_mapping, config, "config.json", match=part, kind=Unsupported)


def test_the_language_model_alone_is_said_aloud():
    config = {**CONFIGS["gemma3_27b"], "vision_config": {"hidden_size": 1152}}
    loaded = huggingface.from_mapping(config, "config.json", name="gemma3_27b")
    assert loaded.model == huggingface.from_mapping(CONFIGS["gemma3_27b"], "config.json", name="gemma3_27b").model
    assert loaded.assumed == ("the language model alone (vision_config left out)",)
