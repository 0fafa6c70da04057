"""GPT-NeoX's configurations: widths of its MLP, batches, what its engine shares out, several files, and what is refused."""

from __future__ import annotations

import pytest
import yaml

from projector.errors import InputError, Unsupported
from projector.intake import detect
from projector.workload.parameters import count
from projector.workload.validate import problems

#: Sizes and batch of Pythia 6.9B (EleutherAI/pythia models/6.9B).
FILE = {
    "pipe-parallel-size": 1, "model-parallel-size": 2, "num-layers": 32, "hidden-size": 4096, "num-attention-heads": 32,
    "seq-length": 2048, "max-position-embeddings": 2048, "pos-emb": "rotary", "no-weight-tying": True,
    "attention-config": [[["flash"], 32]], "optimizer": {"type": "Adam", "params": {"lr": 0.00012}},
    "zero_optimization": {"stage": 1, "reduce_bucket_size": 1260000000}, "train_micro_batch_size_per_gpu": 8, "gas": 2,
    "fp16": {"enabled": True}, "checkpoint-activations": True, "checkpoint-factor": 1000,
    "vocab-file": "/data/20B_tokenizer.json", "tokenizer_type": "HFTokenizer",
}  # fmt: skip


def load(folder, changes=(), **given):
    file = folder / "run.yml"
    file.write_text(yaml.safe_dump({**FILE, **dict(changes)}))
    return detect.load(file, **given)


def test_a_whole_configuration(tmp_path):
    loaded = load(tmp_path)
    recipe = loaded.recipe
    assert count(loaded.model).total == pytest.approx(6.857e9, rel=2e-3)  # 50,432 rows of padding and two norms a layer
    assert (loaded.framework, loaded.gpus, loaded.unmodelled) == ("megatron-deepspeed", None, ())
    assert (recipe.tp, recipe.pp, recipe.micro_batch_size, recipe.seq_length) == (2, 1, 8, 2048)
    assert (recipe.precision, recipe.data_parallel_sharding, recipe.optimizer) == ("fp16", "optim", "adam")
    assert (recipe.recompute_granularity, recipe.recompute_num_layers, recipe.attention_backend) == ("full", 1, "fa2")
    assert loaded.workload(64).recipe.global_batch_size == 8 * 2 * 32
    assert loaded.workload(64).padded_vocab_size == 50432
    assert problems(loaded.workload(64)) == ()


def test_what_it_leaves_out_is_gpt_neoxs(tmp_path):
    bare = {key: FILE[key] for key in FILE if key.endswith(("layers", "size", "heads", "length", "embeddings", "gpu"))}
    file = tmp_path / "small.yml"
    file.write_text(yaml.safe_dump({**bare, "checkpoint_factor": 1}))
    loaded = detect.load(file)
    model, recipe = loaded.model, loaded.recipe
    assert (model.normalization, model.position_embedding_type, model.gated_linear_unit) == (
        "LayerNorm",
        "learned_absolute",
        False,
    )
    assert (model.add_bias_linear, model.untie_embeddings_and_output_weights, model.vocab_size) == (True, False, 50257)
    assert (recipe.precision, recipe.data_parallel_sharding, recipe.recompute_granularity) == (
        "fp32",
        "no_shard",
        "none",
    )
    assert (recipe.attention_backend, recipe.optimizer, recipe.sequence_parallel) == ("materialised", "adam", False)


@pytest.mark.parametrize(
    ("stated", "hidden", "width"),
    [
        ({}, 4096, 16384),
        ({"expansion_factor": 3.5}, 1024, 3584),
        ({"intermediate_size": 32768, "activation": "swiglu", "mlp_multiple_of": 256}, 4096, 11008),  # Llama 2 7B
        ({"intermediate_size": 86016, "activation": "swiglu", "mlp_multiple_of": 256}, 8192, 28672),  # Llama 2 70B
        ({"intermediate_size": 14336, "activation": "swiglu", "mlp_multiple_of": 14336}, 4096, 14336),  # Llama 3 8B
        ({"intermediate_size": 1000, "activation": "gelu", "mlp_multiple_of": 256}, 4096, 1024),
    ],
)
def test_both_halves_of_a_gated_mlp_share_what_is_stated(tmp_path, stated, hidden, width):
    assert load(tmp_path, {**stated, "hidden-size": hidden}).model.ffn_hidden_size == width


def test_a_stated_batch_is_that_of_all_ranks(tmp_path):
    loaded = load(tmp_path, {"train_batch_size": 1024})
    assert (loaded.samples_per_rank, loaded.workload(64).recipe.global_batch_size) == (None, 1024)


def test_what_is_not_modelled_is_told(tmp_path):
    told = load(
        tmp_path, {"gpt-j-residual": True, "partition-activations": True, "wall_clock_breakdown": True}
    ).unmodelled
    named = [text.partition("=")[0] for text in told]
    assert named == ["wall_clock_breakdown", "gpt_j_residual", "partition_activations"]
    assert "all-reduce" in told[1]
    inside = {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}
    assert any("offload_param" in text for text in load(tmp_path, inside).unmodelled)
    assert "a_fork=3 (unknown)" in load(tmp_path, {"a_fork": 3}).unmodelled


#: Other trainings, and what does not fit: the changes, and what the refusal names.
REFUSED = {
    Unsupported: [
        ({"moe_num_experts": 8}, "moe_num_experts=8"),
        ({"attention-config": [[["mamba"], 32]]}, "mamba"),
        ({"attention-config": [[["global", "flash"], 16]]}, "flash, global"),
        ({"train_impl": "dpo"}, "train_impl=dpo"),
        ({"pack_impl": "unpacked"}, "unpacked"),
        ({"mlp_type": "llama", "intermediate_size": 11008}, "mlp_type"),
        ({"curriculum_learning": {"enabled": True}}, "curriculum_learning"),
    ],
    InputError: [
        ({"pos-emb": "rpe"}, "pos_emb"),
        ({"norm": "scalenorm"}, "norm"),
        ({"precision": "int8"}, "precision"),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage"),
        ({"optimizer": {"type": "sm3"}}, "optimizer"),
        ({"train_micro_batch_size_per_gpu": None}, "micro_batch_size"),
        ({"num-layers": "many"}, "num_layers"),
    ],
}


def test_a_script_names_several_files_of_a_folder(tmp_path):
    folder = tmp_path / "configs"
    folder.mkdir()
    batch = {"train_micro_batch_size_per_gpu": 4, "num_nodes": 2, "num_gpus": 8}
    (folder / "size.yml").write_text(yaml.safe_dump({k: v for k, v in FILE.items() if k not in batch}))
    (folder / "local.yml").write_text(yaml.safe_dump(batch))
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/bash\npython ./deepy.py train.py -d configs size.yml local\n")
    loaded = detect.load(script)
    assert (loaded.gpus, loaded.recipe.micro_batch_size, loaded.model.num_layers) == (16, 4, 32)
    (folder / "local.yml").write_text(yaml.safe_dump({**batch, "num-layers": 2}))
    with pytest.raises(InputError, match="stated in two files"):
        detect.load(script)
    script.write_text("#!/bin/bash\npython deepy.py train.py -d configs other.yml\n")
    with pytest.raises(InputError, match="configs/other"):
        detect.load(script)
