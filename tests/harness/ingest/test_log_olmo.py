"""OLMo: the configuration in one line, and what of it nobody reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_samples import samples

from harness.evidence.ingest.dialects import read_log
from harness.evidence.ingest.logs.olmo_config import arguments

MODEL = (
    "d_model=2048, n_heads=16, n_kv_heads=None, clip_qkv=8.0, n_layers=16, mlp_ratio=8, mlp_hidden_size=None, "
    "activation_type='swiglu', block_type='sequential', alibi=False, rope=True, multi_query_attention=False, "
    "attention_layer_norm=False, layer_norm_type='default', layer_norm_with_affine=False, max_sequence_length=4096, "
    "include_bias=False, vocab_size=50280, embedding_size=50304, weight_tying=True, precision='amp_bf16'"
)
REST = (
    "optimizer=OptimizerConfig(name='adamw', betas=(0.9, 0.95)), data=DataConfig(paths=['/a/b.npy']), "
    "global_train_batch_size=2048, device_train_batch_size=256, device_train_microbatch_size=8, precision='amp_bf16', "
    "compile=None, distributed_strategy='fsdp', fsdp=FSDPConfig(use_orig_params=True, "
    "sharding_strategy=<ShardingStrategy.FULL_SHARD: 1>, precision='pure'), activation_checkpointing=None, fused_loss=None"
)
LINE = (
    f"2025-12-11 00:26:10.823\tnode:0\ttrain:98\tINFO\tTrainConfig(run_name='a', model=ModelConfig({MODEL}), {REST})\n"
)


def test_a_log_of_olmo_is_a_whole_run_but_for_its_gpu(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(LINE + samples()["olmo"])
    (run,), (row,) = read_log(path, incomplete=True).runs, read_log(path, incomplete=True).rows
    assert run.model is not None
    assert run.recipe is not None
    model, recipe = run.model, run.recipe
    assert (model.num_layers, model.hidden_size, model.ffn_hidden_size, model.gated_linear_unit) == (
        16,
        2048,
        8192,
        True,
    )
    assert (model.normalization, model.vocab_size, model.add_bias_linear) == ("NonParametricLayerNorm", 50280, False)
    assert model.untie_embeddings_and_output_weights is False
    assert (recipe.micro_batch_size, recipe.global_batch_size, recipe.seq_length, run.gpus) == (8, 2048, 4096, 8)
    assert (recipe.precision, recipe.data_parallel_sharding) == ("bf16", "optim_grads_params")
    assert run.measured.step_seconds == pytest.approx(6.0)
    assert [name for name, _ in row.missing] == ["gpu"]


@pytest.mark.parametrize(
    ("said", "other", "told"),
    [
        ("activation_checkpointing=None", "activation_checkpointing='one_in_two'", "activation_checkpointing"),
        ("distributed_strategy='fsdp'", "distributed_strategy='other'", "distributed_strategy"),
        ("<ShardingStrategy.FULL_SHARD: 1>", "<ShardingStrategy.HYBRID_SHARD: 4>", "distributed_strategy"),
        ("precision='amp_bf16'", "precision='amp_fp8'", "precision"),
    ],
)
def test_what_nobody_reads_of_olmo_leaves_the_run_open(said: str, other: str, told: str, tmp_path: Path) -> None:
    assert said in LINE
    path = tmp_path / "a.log"
    path.write_text(LINE.replace(said, other) + samples()["olmo"])
    (row,) = read_log(path, incomplete=True).rows
    assert "micro_batch_size" in [name for name, _ in row.missing]
    assert any(text.startswith(f"{told}=") and "not read" in text for text in row.doubts)


@pytest.mark.parametrize(
    ("said", "other", "name", "value"),
    [
        ("mlp_hidden_size=None", "mlp_hidden_size=22016", "ffn_hidden_size", 11008),
        ("activation_type='swiglu'", "activation_type='gelu'", "ffn_hidden_size", 16384),
        ("n_kv_heads=None", "n_kv_heads=4", "num_query_groups", 4),
        ("multi_query_attention=False", "multi_query_attention=True", "num_query_groups", 1),
        ("layer_norm_type='default'", "layer_norm_type='rms'", "normalization", "RMSNorm"),
        ("activation_checkpointing=None", "activation_checkpointing='whole_layer'", "recompute_granularity", "full"),
        ("distributed_strategy='fsdp'", "distributed_strategy='ddp'", "data_parallel_sharding", "no_shard"),
        ("compile=None", "compile=CompilerConfig(mode=None)", "torch_compile", True),
        ("block_type='sequential'", "block_type='llama'", "num_layers", None),
        ("rope=True", "rope=False", "num_layers", None),
    ],
)
def test_olmos_words(said: str, other: str, name: str, value: object) -> None:
    assert said in LINE
    found, _ = arguments(LINE.replace(said, other, 1))
    assert found.get(name) == value
    assert arguments("no configuration") == ({}, ())
