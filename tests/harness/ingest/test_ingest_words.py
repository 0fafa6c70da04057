"""Texts for recompute, sharding, schedule, precision, frameworks and dates."""

from __future__ import annotations

import pytest

from harness.evidence.ingest.fields import framework_slug, precision, software_date
from harness.evidence.ingest.recipe_words import recompute, schedule, sharding


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none (recompute_num_layers 0)", {"recompute_granularity": "none"}),
        ("none set in the yaml of the AMD implementation", {"recompute_granularity": "none"}),
        ("full (remat_policy full)", {"recompute_granularity": "full"}),
        ("full uniform 1", {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}),
        (
            "full block 5 layers",
            {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 5},
        ),
        ("recompute_layer_ids [0-2,7]", {"recompute_granularity": "full", "recompute_layer_ids": (0, 1, 2, 7)}),
        (
            "recompute_num_layers=2 (per stage)",
            {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 2},
        ),
        (
            "selective ['moe', 'layernorm', 'core_attn']",
            {"recompute_granularity": "selective", "recompute_modules": ("moe", "layernorm", "core_attn")},
        ),
        (
            "selective (attention core) + sequence parallel",
            {"recompute_granularity": "selective", "recompute_modules": ("core_attn",), "sequence_parallel": True},
        ),
    ],
)
def test_recompute(text: str, expected: dict[str, object]) -> None:
    assert recompute(text) == (expected, "", "")


@pytest.mark.parametrize("text", ["null", "not stated", "not stated in README (recipe default)", "unknown"])
def test_recompute_that_is_not_stated_stays_open(text: str) -> None:
    assert recompute(text) == ({}, "", "")


@pytest.mark.parametrize(
    ("text", "degree", "shard"),
    [
        ("ZeRO stage 1, optimizer states sharded over 8 GPUs (hybrid zero)", "optim", 8),
        ("ZeRO stage 1, optimizer states sharded over all data-parallel ranks", "optim", None),
        ("ZeRO stage 2 (sharding stage2, degree 4)", "optim_grads", 4),
        ("sharding stage 1 over 4", "optim", 4),
        ("sharding stage 2 over 8", "optim_grads", 8),
        ("FSDP, shard 128", "optim_grads_params", 128),
        ("none (sharding degree 1)", "no_shard", None),
    ],
)
def test_shard_groups_in_words(text: str, degree: str, shard: int | None) -> None:
    fields = {"data_parallel_sharding": degree} | ({"data_parallel_shard_size": shard} if shard else {})
    assert sharding(text) == (fields, "", "")


def test_recompute_that_no_field_holds_is_refused() -> None:
    assert "no equivalent" in recompute("remat_policy minimal_offloaded")[2]
    kept = {"recompute_granularity": "full", "recompute_saved": ("qkv_proj", "out_proj", "mlpwo")}
    assert recompute("remat_policy save_dot_except_mlpwi") == (kept, "", "")
    assert "not understood" in recompute("outer layer groups")[2]
    assert "not modelled" in recompute("selective (per-op SAC)")[2]
    stands_for = recompute("selective (op SAC)", per_op="mlp")
    assert stands_for[0]["recompute_modules"] == ("mlp",)
    assert "stands for" in stands_for[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("distributed optimizer (recipe default)", "optim"),
        ("DeepSpeed ZeRO stage 1", "optim"),
        ("1", "optim"),
        ("FSDP SHARD_GRAD_OP (ZeRO-2)", "optim_grads"),
        ("FSDP FULL_SHARD (ZeRO-3)", "optim_grads_params"),
        ("3", "optim_grads_params"),
        ("none", "no_shard"),
    ],
)
def test_sharding(text: str, expected: str) -> None:
    assert sharding(text)[0]["data_parallel_sharding"] == expected


def test_sharding_groups_and_layerwise_muon() -> None:
    assert sharding("FSDP2, shard 8")[0]["data_parallel_shard_size"] == 8
    assert sharding("FSDP2, shard 1")[0] == {"data_parallel_sharding": "no_shard"}
    assert sharding("layer-wise distributed Muon (dist_muon)")[0]["optimizer"] == "dist_muon"
    assert "not understood" in sharding("something")[2]


@pytest.mark.parametrize(
    ("text", "name", "vpp"),
    [
        ("1F1B (DeepSpeed pipe engine)", "1f1b", None),
        ("1f1b-interleaved-vpp3", "interleaved", 3),
        ("interleaved zero bubble", "zero-bubble", None),
        ("zbv-formatted", "zbv-formatted", None),
        ("ZB-2P", "zb-h2", None),
        ("no pipeline", None, None),
    ],
)
def test_schedule(text: str, name: str | None, vpp: int | None) -> None:
    fields = schedule(text)[0]
    assert (fields.get("pipeline_schedule"), fields.get("vpp")) == (name, vpp)


def test_schedule_with_layout_and_overlap() -> None:
    fields = schedule("interleaved via layout Ett|(tt|)*6mL with 1F1B EP A2A overlap")[0]
    assert fields["pipeline_model_parallel_layout"] == "Ett|(tt|)*6mL"
    assert fields["overlap_moe_expert_parallel_comm"] is True


@pytest.mark.parametrize(
    ("text", "gpu", "name", "scaling"),
    [
        ("FP8-MX", "b200", "mxfp8", None),
        ("fp8 (mxfp8)", "mi355x", "mxfp8", None),
        ("FP8-CS", "gb200", "fp8", "tensorwise"),
        ("FP8 (per-tensor)", "h100_sxm", "fp8", "delayed"),
        ("float8 rowwise", "h100_sxm", "fp8", "rowwise"),
        ("NVFP4", "gb300", "nvfp4", None),
        ("mxfp4 (Hadamard)", "mi355x", "mxfp4", None),
        ("fp16 mixed", "a100_sxm_80gb", "fp16", None),
        ("FP8, alternative (32x32 on GB200/B200; 128x128 weights on H100)", "h100_sxm", "fp8", "blockwise"),
        ("FP8, alternative (32x32 on GB200/B200; 128x128 weights on H100)", "gb200", "mxfp8", None),
        ("bf16 (no float8, no compile, no async TP)", "mi355x", "bf16", None),
    ],
)
def test_precision(text: str, gpu: str, name: str, scaling: str | None) -> None:
    found = precision(text, gpu)
    assert found is not None
    assert (found.name, found.recipe) == (name, scaling)


def test_precision_of_nothing() -> None:
    assert precision("quantised somehow", "h100_sxm") is None


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("NeMo / Megatron-Core (MLPerf)", "mlperf"),
        ("Megatron-Bridge / NeMo", "megatron-bridge"),
        ("NeMo 2", "nemo"),
        ("Primus/MaxText v26.6", "maxtext"),
        ("Primus/TorchTitan", "torchtitan"),
        ("Primus/Megatron-LM (primus-pipeline)", "primus"),
        ("zero-bubble fork of Megatron-LM", "megatron-lm"),
        ("My Own Thing", "my-own-thing"),
        ("", ""),
    ],
)
def test_framework(text: str, slug: str) -> None:
    assert framework_slug(text) == slug


@pytest.mark.parametrize(
    ("texts", "date"),
    [
        (("NeMo container 26.04.01",), "2026-04"),
        (("26.7",), "2026-07"),
        (("PyTorch NVIDIA Release 25.04; NeMo Framework NVIDIA Release 25.09; MLPerf training v5.1",), "2025-09"),
        (("PyTorch NVIDIA Release 23.09; MLPerf training v5.0",), "2025-05"),
        (("PyTorch NVIDIA Release 23.09; MLPerf training v3.1",), "2023-09"),
        (("PyTorch, NeMo, HugeCTR, DGL NVIDIA Release 24.09; MLPerf training v5.1",), "2024-09"),
        (("torch 2.7.0a0+7c8ec84dab.nv25.03",), "2025-03"),
        (("PyTorch 2.10.0.dev20251112+rocm7.1",), "2025-11"),
        (("llm-foundry README (torch 1.13-2.0 era)", "@8c8dd48f (2025-07-21)"), "2023-03"),
        (("see source commits", "README @b5bcd76c66d0 (measured 2024-12; torch 1963fc8)"), "2024-12"),
        (("bigscience fork, Feb 2022 (02-25)",), "2022-02"),
        (("Megatron-Core r0.8.0",), "2024-08"),
        (("", "arXiv:2205.05198 Table 5"), "2022-05"),
        (("", "mlcommons/training_results_v5.0 @ 0fdc28f01325"), "2025-05"),
        (("bigscience fork 2022",), "2022-01"),
        (("4dcaae513ba7679d56c116a17cd4a691ec41e252",), ""),
    ],
)
def test_dates(texts: tuple[str, ...], date: str) -> None:
    assert software_date(*texts) == date
