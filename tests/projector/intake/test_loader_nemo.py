"""NeMo 1's configurations of GPT-like models: what is whole is read, what is not is named."""

from __future__ import annotations

import pytest

from projector.errors import InputError, Unsupported
from projector.intake import detect
from projector.workload.parameters import count
from projector.workload.validate import problems
from tests.workloads import written

FILE = {
    "defaults": ["_self_"],
    "run": {"name": "gpt3_175b"},
    "trainer": {"num_nodes": 32, "devices": 8, "precision": "bf16"},
    "exp_manager": {"checkpoint_callback_params": {"size": "${multiply:${model.tensor_model_parallel_size}, 8}"}},
    "model": {
        "mcore_gpt": True,
        "micro_batch_size": 1,
        "global_batch_size": 2048,
        "tensor_model_parallel_size": 4,
        "pipeline_model_parallel_size": 8,
        "virtual_pipeline_model_parallel_size": 2,
        "encoder_seq_length": 2048,
        "max_position_embeddings": "${.encoder_seq_length}",
        "num_layers": 96,
        "hidden_size": 12288,
        "ffn_hidden_size": "${multiply:4, ${.hidden_size}}",
        "num_attention_heads": 96,
        "kv_channels": None,
        "num_query_groups": None,
        "sequence_parallel": True,
        "activations_checkpoint_granularity": None,
        "fp8": True,
        "fp8_hybrid": True,
        "megatron_amp_O2": True,
        "tokenizer": {"library": "megatron", "type": "GPT2BPETokenizer", "vocab_file": "vocab.json"},
        "optim": {"name": "distributed_fused_adam", "overlap_grad_sync": True, "grad_sync_dtype": "bf16"},
        "data": {"seq_length": 2048},
    },
}


def load(folder, changes=(), **given):
    return detect.load(written(folder / "gpt.yaml", FILE, dict(changes)), **given)


def test_a_whole_configuration(tmp_path):
    loaded = load(tmp_path)
    recipe, model = loaded.workload().recipe, loaded.model
    assert (loaded.framework, loaded.gpus) == ("nemo", 256)
    assert (recipe.tp, recipe.pp, recipe.vpp, recipe.cp) == (4, 8, 2, 1)
    assert (recipe.micro_batch_size, recipe.global_batch_size, recipe.seq_length) == (1, 2048, 2048)
    assert (recipe.precision, recipe.data_parallel_sharding, recipe.recompute_granularity) == ("fp8", "optim", "none")
    assert (recipe.sequence_parallel, recipe.overlap_grad_reduce, recipe.grad_reduce_in_bf16) == (True, True, True)
    assert (model.vocab_size, model.ffn_hidden_size, model.max_position_embeddings) == (50257, 49152, 2048)
    assert (model.gated_linear_unit, model.normalization, model.add_bias_linear) == (False, "LayerNorm", True)
    assert count(model).main == pytest.approx(175e9, rel=0.01)
    assert problems(loaded.workload()) == ()


@pytest.mark.parametrize(
    ("tokenizer", "words", "wrong"),
    [
        ({"library": "huggingface", "type": "meta-llama/Meta-Llama-3-8B"}, 128256, ""),
        ({"library": "sentencepiece", "type": None, "model": "mistralai/Mixtral-8x7B-v0.1"}, 32000, ""),
        ({"library": "megatron", "type": "GPT2BPETokenizer"}, 50257, ""),
        ({"library": "sentencepiec", "type": "GPT2BPETokenizer"}, None, "one of huggingface, sentencepiece, megatron"),
    ],
)
def test_the_library_of_a_tokenizer_says_where_its_name_stands(tmp_path, tokenizer, words, wrong):
    changes = {f"model.tokenizer.{key}": value for key, value in tokenizer.items()}
    if wrong:
        with pytest.raises(InputError, match=wrong):
            load(tmp_path, changes)
    else:
        assert load(tmp_path, changes).model.vocab_size == words


def test_words_of_llama(tmp_path):
    words = {"activation": "fast-swiglu", "normalization": "rmsnorm", "bias": False, "position_embedding_type": "rope"}
    words |= {
        "share_embeddings_and_output_weights": False,
        "num_query_groups": 8,
        "activations_checkpoint_method": "block",
    }
    words |= {"activations_checkpoint_granularity": "full", "activations_checkpoint_num_layers": 1}
    loaded = load(tmp_path, {f"model.{key}": value for key, value in words.items()})
    model, recipe = loaded.model, loaded.workload().recipe
    assert (model.gated_linear_unit, model.normalization, model.add_bias_linear) == (True, "RMSNorm", False)
    assert (model.num_query_groups, model.untie_embeddings_and_output_weights) == (8, True)
    assert (recipe.recompute_granularity, recipe.recompute_method, recipe.recompute_num_layers) == ("full", "block", 1)


def test_what_another_file_says_is_named(tmp_path):
    with pytest.raises(InputError) as error:
        load(tmp_path, {"model.num_layers": None, "model.encoder_seq_length": None})
    assert {"model.num_layers", "model.encoder_seq_length"} <= {problem.key for problem in error.value.problems}
    assert "defaults" in str(error.value)
    loaded = load(tmp_path, {"model.num_layers": None}, model="gpt3_175b")
    assert loaded.model.num_layers == 96
    with pytest.raises(InputError, match="not resolved"):
        load(tmp_path, {"model.ffn_hidden_size": "${elsewhere.width}"})


def test_gpus_may_be_given(tmp_path):
    assert load(tmp_path, {"trainer.num_nodes": None}).gpus is None


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("model.peft", {"peft_scheme": "lora"}, "peft"),
        ("model.fsdp", True, "fsdp"),
        ("model.encoder", {"num_layers": 2}, "encoder"),
        ("model.bert_binary_head", False, "bert_binary_head"),
        ("model.patch_dim", 16, "patch_dim"),
        ("model.parallel_attention", True, "side by side"),
        ("model.transformer_block_type", "normformer", "normformer"),
        ("trainer.rm", {"max_epochs": 1}, "preference training"),
        ("run.convert_name", "to_nemo", "nothing trained"),
        ("model.restore_from_path", "/ckpt/griffin_2b.nemo", "does not describe"),
    ],
)
def test_what_nothing_lowers(tmp_path, path, value, named):
    with pytest.raises(Unsupported, match=named):
        load(tmp_path, {path: value})


def test_an_unknown_norm(tmp_path):
    with pytest.raises(InputError, match="normalization"):
        load(tmp_path, {"model.normalization": "batchnorm"})


def test_what_stands_in_the_model_is_read_or_told(tmp_path):
    changes = {
        "model.apply_rope_fusion": True, "model.defer_embedding_wgrad_compute": True, "model.fp8_params": True,
        "model.gradient_as_bucket_view": True, "model.ffn_dropout": 0.0, "model.hidden_dropout": 0.1,
        "model.a_new_kernel": "fast", "model.optim.dtype": "bf16",
    }  # fmt: skip
    loaded = load(tmp_path, changes)
    recipe = loaded.recipe
    assert (recipe.apply_rope_fusion, recipe.defer_embedding_wgrad_compute, recipe.fp8_param_gather) == (
        True,
        True,
        True,
    )
    assert set(loaded.unmodelled) == {"hidden_dropout=0.1", "a_new_kernel=fast (unknown)", "optim.dtype=bf16 (unknown)"}
    assert recipe.cpu_offloading_num_layers is None
    moved = load(tmp_path, {"model.cpu_offloading": True, "model.cpu_offloading_num_layers": 8})
    assert moved.recipe.cpu_offloading_num_layers == 8
    with pytest.raises(InputError, match="micro_batch_size"):
        load(tmp_path, {"model.micro_batch_sise": 2})
