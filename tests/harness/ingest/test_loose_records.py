"""Real records of every source family, converted and checked field by field."""

from __future__ import annotations

import pytest
from loose_cases import SIMUMAX, one, record

from harness.evidence.ingest.loose import convert
from harness.predictors.ours import Ours
from projector.intake.bridge_recipes import recompute_of
from projector.workload.lora import LoRA


def test_simumax() -> None:
    run, report = one(**SIMUMAX)
    assert run.problem == ""
    assert (run.gpu, run.gpus, run.stack.framework, run.stack.date) == ("b200", 8, "megatron-lm", "2026-01")
    assert run.source.revision == "4dcaae513ba7"
    assert run.model is not None
    assert run.model.moe is not None
    assert (run.model.name, run.model.num_layers, run.model.vocab_size) == ("deepseek_v2", 4, 102401)
    assert run.model.moe.moe_layer_freq == (0, 1, 1, 1)
    r = run.recipe
    assert r is not None
    assert (r.ep, r.recompute_granularity, r.data_parallel_sharding) == (8, "none", "optim")
    assert (r.cross_entropy_fusion, r.attention_backend, r.grad_reduce_in_bf16) == ("te", "fused", False)
    assert (r.make_vocab_size_divisible_by, r.moe_expert_capacity_factor) == (128, 1.0)
    assert run.measured.step_seconds == pytest.approx(0.3666)
    assert (run.measured.peak_memory_gib, run.measured.memory_kind) == (45.63, "allocated")
    assert any("NullTokenizer" in text for text in report.mapped)


def test_megatron_bridge_arguments() -> None:
    other = {
        "container": "NeMo 26.04",
        "recompute_granularity": "selective",
        "recompute_modules": ["mla_up_proj"],
        "cuda_graph_impl": "transformer_engine",
        "cuda_graph_scope": ["attn", "moe_router", "moe_preprocess"],
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "hybridep",
        "grad_reduce_in_fp32": False,
        "use_precision_aware_optimizer": True,
        "exp_avg_dtype": "bf16",
        "pipeline_model_parallel_layout": "Et*4|(t*4|)*14tmL",
        "mtp_num_layers": 1,
        "moe_routing": "force-balanced, token-dropless",
        "optimizer": "adam",
    }
    run, _ = one(
        **record(
            model="DeepSeekV3",
            gpu="GB200",
            gpus=256,
            framework="Megatron-Bridge / NeMo",
            framework_version="NeMo container 26.04",
            precision="MXFP8",
            seq_length=4096,
            global_batch_size=4096,
            pp=4,
            ep=64,
            etp=1,
            dp=64,
            vpp=4,
            recompute="selective ['mla_up_proj']",
            other=other,
            metrics={"tokens_per_s_per_gpu": 4500.0, "tflops_per_gpu": 1170.0},
        )
    )
    assert run.problem == ""
    r = run.recipe
    assert r is not None
    assert (r.precision, r.fp8_recipe, r.vpp) == ("mxfp8", None, 4)
    assert r.pipeline_model_parallel_layout == "Et*4|(t*4|)*14tmL"
    assert r.recompute_modules == ("mla_up_proj",)
    assert r.cuda_graph_scope == ("attn", "moe_router", "moe_preprocess")
    assert (r.moe_token_dispatcher_type, r.moe_flex_dispatcher_backend) == ("flex", "hybridep")
    assert (r.grad_reduce_in_bf16, r.exp_avg_dtype, r.moe_router_force_load_balancing) == (True, "bf16", True)
    assert run.model is not None
    assert run.model.mtp_num_layers == 1
    assert run.measured.step_seconds == pytest.approx(4096 * 4096 / 256 / 4500)
    assert run.measured.derived == ("step_seconds from tgs",)


def test_graphs_named_but_not_captured_are_off() -> None:
    run, _ = one(**record(other={"cuda_graph_impl": "none", "cuda_graph_scope": ["full_iteration"]}))
    assert run.recipe is not None
    assert run.recipe.cuda_graph_scope == ()


def test_layout_with_other_chunk_count_is_dropped_and_doubted() -> None:
    other = {"pipeline_model_parallel_layout": "Et|(tt|)*14tL"}
    run, report = one(**record(pp=2, dp=4, vpp=2, other=other))
    assert run.recipe is not None
    assert run.recipe.pipeline_model_parallel_layout is None
    assert "layout has 16 chunks" in report.doubts[0]


def test_bigscience_recompute_follows_from_its_flop_count() -> None:
    run, _ = one(
        id="bs",
        gpu="A100-SXM-80GB",
        gpus=384,
        framework="Megatron-DeepSpeed",
        framework_version="bigscience fork, Feb 2022 (02-25)",
        model="GPT 181B (BLOOM prequel)",
        arch={
            "layers": 72,
            "hidden": 14336,
            "heads": 64,
            "kv_heads": 64,
            "ffn": 57344,
            "vocab": "~250k (250680 class)",
        },
        seq_length=2048,
        micro_batch_size=1,
        global_batch_size=2016,
        tp=8,
        pp=2,
        vpp=1,
        cp=1,
        ep=1,
        dp=24,
        zero="DeepSpeed ZeRO stage 1",
        schedule="1F1B (DeepSpeed pipe engine)",
        metrics={"iteration_ms": 145450.0, "tflops_per_gpu": 109.11, "memory_gb": 65.0},
        note="Memory = nvidia-smi max on first/last node.",
    )
    assert run.problem == ""
    assert run.recipe is not None
    assert run.model is not None
    assert (run.recipe.precision, run.recipe.recompute_granularity) == ("fp16", "full")
    assert (run.model.vocab_size, run.model.kv_channels) == (250680, 224)
    assert run.stack.date == "2022-02"
    assert run.measured.memory_kind == "device"
    assert {text.split("=")[0] for text in run.assumed} == {"vocab_size", "precision", "recompute_granularity"}


def test_template_without_its_shape_is_refused() -> None:
    run, _ = one(**record(model="GPT 194B (BLOOM prequel)", gpu="A100-SXM-80GB", framework="Megatron-DeepSpeed"))
    assert "num_layers" in run.problem
    assert run.model is None


def test_mlperf_lora_with_launch_exports() -> None:
    run, _ = one(
        **record(
            id="mlperf",
            gpu="B200",
            framework="NeMo / Megatron-Core (MLPerf)",
            framework_version="NVIDIA NeMo Framework Release 25.04; MLPerf training v5.0",
            model="Llama2-70B LoRA",
            precision="FP8 (TE)",
            global_batch_size=8,
            other={
                "config_exports": {
                    "FP8_AMAX_HISTORY": "4",
                    "FP8_DPA": "1",
                    "FP8_ACTIVATION": "True",
                    "SP": "0",
                    "TP_COMM_OVERLAP": "True",
                    "OVERLAP_PARAM_GATHER": "True",
                    "FULL_CUDA_GRAPH": "0",
                    "LAYER_CUDA_GRAPH": "1",
                },
                "step_time_s_median_by_run": [0.9450, 0.9449, 0.9543],
            },
            metrics={"iteration_ms": 945.0, "memory_gb": 82.3},
        )
    )
    r = run.recipe
    assert r is not None
    assert r.lora == LoRA(dim=16, targets=("linear_qkv", "linear_proj"))
    assert (r.fp8_recipe, r.fp8_dot_product_attention, r.cuda_graph_scope) == ("delayed", True, ("full",))
    assert (r.activation_func_fp8_input_store, r.sequence_parallel) == (True, False)
    assert (run.stack.framework, run.stack.date, run.measured.memory_kind) == ("mlperf", "2025-04", "allocated")
    assert run.measured.rel_std == pytest.approx(0.0057, abs=1e-4)
    assert any("lora targets" in text for text in run.assumed)


def test_llm_foundry_fsdp() -> None:
    run, _ = one(
        **record(
            framework="llm-foundry / Composer FSDP",
            framework_version="llm-foundry benchmarking README (torch 1.13-2.0 era)",
            gpu="A100-SXM-40GB",
            model="MPT-7b",
            arch={"layers": 32, "hidden": 4096, "vocab": 50368, "position": "learned, seq_length entries"},
            zero="FSDP FULL_SHARD (ZeRO-3)",
            recompute="full (per block)",
            precision="bf16",
            seq_length=2048,
            other={"activation_cpu_offload": "False"},
            metrics={"tokens_per_s_per_gpu": 3000.0},
        )
    )
    assert run.recipe is not None
    assert run.model is not None
    assert (run.model.name, run.stack.date) == ("mpt_7b", "2023-03")
    assert (run.recipe.data_parallel_sharding, run.recipe.recompute_granularity) == ("optim_grads_params", "full")


def test_maxtext_moe_paths() -> None:
    base = record(
        gpu="MI355X",
        gpus=64,
        framework="MaxText (JAX)",
        model="DeepSeek-V3 671B",
        seq_length=4096,
        micro_batch_size=7,
        global_batch_size=448,
        dp=None,
        ep=8,
        fsdp=8,
        recompute="full (remat_policy full)",
    )
    dropping, _ = one(**base, other={"moe_path": "dense_matmul, capacity_factor 1.25 (drops tokens)"})
    deepep, _ = one(**(base | {"deepep": True, "grouped_gemm": "turbo"}), other={"moe_path": "same, moe.py v3"})
    assert dropping.recipe is not None
    assert deepep.recipe is not None
    assert dropping.recipe.moe_expert_capacity_factor == 1.25
    assert dropping.recipe.moe_pad_expert_input_to_capacity is True
    assert (deepep.recipe.moe_token_dispatcher_type, deepep.recipe.moe_grouped_gemm) == ("flex", "fused")
    for words, name in (("legacy grouped gemm", "legacy"), ("turbo grouped gemm", "fused")):
        legacy, _ = one(**(base | {"grouped_gemm": words}))
        assert legacy.recipe is not None
        assert legacy.recipe.moe_grouped_gemm == name
    assert deepep.recipe.moe_expert_capacity_factor is None
    assert dropping.recipe.data_parallel_sharding == "optim_grads_params"
    assert dropping.model is not None
    assert dropping.model.mtp_num_layers == 0
    assert "mtp_num_layers=0 (not stated)" in dropping.assumed
    assert dropping.switches["moe_path"].startswith("dense_matmul")  # type: ignore[attr-defined]


def test_torchtitan_local_batch_and_float8() -> None:
    run, _ = one(
        **record(
            framework="torchtitan",
            source="benchmarks/llama3_h100_202412_torchtitan.md @b5bcd76c66d0 (measured 2024-12; torch 1963fc8)",
            gpu="H100-SXM-96GB-HBM2e-500W",
            gpus=512,
            model="Llama3.1-405B",
            precision="float8 (linear)",
            micro_batch_size=None,
            global_batch_size=64,
            tp=8,
            pp=8,
            dp=8,
            zero="FSDP2",
            other={"local_batch_size": 8, "async_tp": True, "torch_compile": True},
            metrics={"tokens_per_s_per_gpu": 100.0, "memory_gb": 75.3},
        )
    )
    assert run.recipe is not None
    assert (run.recipe.micro_batch_size, run.recipe.fp8_recipe) == (1, "tensorwise")
    assert (run.recipe.tp_comm_overlap, run.recipe.torch_compile) == (True, True)
    assert (run.stack.date, run.measured.memory_kind) == ("2024-12", "reserved")


def test_primus_steps() -> None:
    run, _ = one(
        **record(
            gpu="MI355X",
            framework="Primus/Megatron-LM",
            framework_version="rocm/megatron-lm:v25.10, ROCm 7.1, PyTorch 2.9.0",
            model="DeepSeek-V2-Lite 16B",
            seq_length=4096,
            micro_batch_size=12,
            global_batch_size=768,
            ep=8,
            recompute="none (recompute_num_layers 0)",
            deepep=True,
            sync_free_stage=1,
            grouped_gemm="legacy grouped gemm (script default LEGACY_GG=True)",
            other={"numa_binding": True, "loss_fusion": "te", "force_load_balancing": True, "manual_gc": True},
            metrics={"tokens_per_s_per_gpu": 40000.0, "memory_pct_of_288": 92.18},
        )
    )
    r = run.recipe
    assert r is not None
    assert (run.stack.framework, run.stack.date) == ("primus", "2025-10")
    assert (r.numa_binding, r.sync_free_stage, r.cross_entropy_fusion, r.manual_gc) == (True, 1, "te", True)
    assert (r.moe_token_dispatcher_type, r.moe_flex_dispatcher_backend) == ("flex", "deepep")
    assert (r.recompute_granularity, r.moe_router_force_load_balancing) == ("none", True)
    assert run.measured.peak_memory_gib == pytest.approx(0.9218 * 288, abs=1e-3)


# Rules of the importer that hold for records of every source.


def test_megatron_argument_mapping() -> None:
    args = {
        "no_check_for_nan_in_loss_and_grad": True,
        "no_create_attention_mask_in_dataloader": True,
        "make_vocab_size_divisible_by": 3232,
        "cuda_graph_scope": "moe_router moe_preprocess",
        "cuda_graph_impl": "transformer_engine",
        "fp8_recipe": "blockwise",
        "cross_entropy_fusion_impl": "te",
        "delay_wgrad_compute": True,
        "offload_optimizer_states": True,
        "num_layers_per_virtual_pipeline_stage": 2,
    }
    run, _ = one(**record(pp=4, dp=2, precision="FP8 blockwise", other={"args": args}))
    r = run.recipe
    assert r is not None
    assert (r.check_for_nan_in_loss_and_grad, r.create_attention_mask_in_dataloader) == (False, False)
    assert r.cuda_graph_scope == ("moe_router", "moe_preprocess")
    assert (r.precision, r.fp8_recipe, r.vpp) == ("fp8", "blockwise", 4)
    assert (r.make_vocab_size_divisible_by, r.offload_optimizer_states) == (3232, True)


def test_only_tflops_are_inverted_with_the_formula_of_their_release() -> None:
    new, _ = one(**record(framework_version="Megatron v0.12.0rc3", metrics={"tflops_per_gpu": 600}))
    old, _ = one(**record(framework_version="Megatron-Core r0.8.0", metrics={"tflops_per_gpu": 600}))
    assert new.measured.derived[0] == "step_seconds from TFLOP/s (megatron-2025-04)"
    assert old.measured.derived[0] == "step_seconds from TFLOP/s (megatron-2024-04)"
    assert new.measured.step_seconds == pytest.approx(51.47e9 * 128 * 8192 / (600e12 * 8), rel=1e-3)
    assert old.measured.step_seconds == pytest.approx(57.91e9 * 128 * 8192 / (600e12 * 8), rel=1e-3)


def test_out_of_memory_rows_have_a_status_and_no_time() -> None:
    run, _ = one(**record(metrics={}, other={"result": "OOM 212 GiB", "oom_alloc_gib": 212.0}))
    assert run.problem == ""
    assert run.measured.status == "out-of-memory"
    assert run.measured.step_seconds is None


def test_unstated_precision_stays_a_refusal_where_the_gpu_has_a_choice() -> None:
    assert one(**record(precision=None))[0].problem == "precision not stated"
    both, _ = one(**record(precision=None, other={"precision_candidates": ["FP8 (TE)", "NVFP4"]}))
    assert both.problem == "precision not stated (FP8 (TE) or NVFP4)"


def test_switches_keep_what_distinguishes_rows_of_a_group() -> None:
    rows = [record(id=f"r{i}", group="g", other={"nccl_qps": i % 2, "run": "same"}) for i in range(4)]
    runs = convert(rows, "t").runs
    assert [run.switches for run in runs] == [{"nccl_qps": 0}, {"nccl_qps": 1}] * 2


def test_a_code_base_that_nobody_knows_is_projected_as_one_and_says_so() -> None:
    run, _ = one(**record(framework="Our Trainer 3", pp=3, dp=1, gpus=24, tp=8))
    assert (run.stack.framework, run.problem) == ("unknown", "")
    assert any(text.startswith("framework=unknown (Our Trainer 3") for text in run.assumed)
    assert Ours("simulate").predict(run).status == "ok"


# Axes of a mesh, switches of other trainers and what a peak counts, in records of results tables.


def test_gcd_units_and_hsdp() -> None:
    run, _ = one(
        **record(
            gpu="MI250X GCD",
            gpus=2048,
            nodes=256,
            framework="TorchTitan (fork)",
            dp=2048,
            micro_batch_size=4,
            global_batch_size=8192,
            fsdp=256,
            other={"gpu_unit": "GCD", "dp_shard": 256, "dp_replicate": 8},
        )
    )
    assert run.gpu == "mi250x"
    assert run.gpus_per_node is None
    assert run.recipe is not None
    assert run.recipe.data_parallel_shard_size == 256


MESH = SIMUMAX | {
    "framework": "MaxText (JAX)",
    "gpus": 64,
    "nodes": 8,
    "global_batch_size": 64,
    "zero": None,
    "other": {},
}


@pytest.mark.parametrize(
    ("axes", "dp", "shard"),
    [
        ({"dp": 2, "fsdp": 4, "ep": 8}, 64, 32),
        ({"dp": 1, "fsdp": 8, "ep": 8}, 64, None),
        ({"dp": None, "fsdp": 8, "ep": 8}, 64, None),
        ({"dp": 64, "fsdp": 2, "ep": 8}, 64, 16),
    ],
)
def test_axes_of_a_mesh_multiply(axes: dict[str, int | None], dp: int, shard: int | None) -> None:
    run = one(**(MESH | axes | {"metrics": {"iteration_ms": 366.6}}))[0]
    assert run.problem == ""
    assert run.workload.dp == dp
    assert run.recipe.data_parallel_shard_size == shard


def test_axes_that_make_up_other_gpus_are_refused() -> None:
    run = one(**(MESH | {"dp": 3, "fsdp": 4, "ep": 8, "metrics": {"iteration_ms": 366.6}}))[0]
    assert "is not 64 GPUs" in run.problem


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (
            {"liger_kernel": True},
            {"cross_entropy_fusion": "liger", "apply_rope_fusion": True, "bias_activation_fusion": True},
        ),
        ({"liger": "rope, rms_norm"}, {"apply_rope_fusion": True, "cross_entropy_fusion": None}),
        ({"liger_kernel": False}, {"apply_rope_fusion": None}),
        ({"fused": "fused MLP, fused cross entropy"}, {"cross_entropy_fusion": "te", "bias_activation_fusion": True}),
        ({"fused": "fused dropout-add-LN"}, {"cross_entropy_fusion": None, "bias_activation_fusion": None}),
        (
            {"optimizer": "AdamW, bf16 states"},
            {"optimizer": "adam", "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"},
        ),
        ({"optimizer_states": "bfloat16"}, {"exp_avg_dtype": "bf16"}),
        ({"optimizer": "adamw_torch_8bit"}, {"optimizer": "adam_8bit"}),
        ({"activation_checkpointing": True}, {"recompute_granularity": "full"}),
        ({"gradient_checkpointing": False}, {"recompute_granularity": "none"}),
        ({"torch_compile": "model and loss"}, {"torch_compile": True}),
        (
            {"moe_dispatcher": "hybridep"},
            {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"},
        ),
        ({"mega_moe": True}, {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "mega_moe"}),
        ({"moe": "MegaMoE fused"}, {"moe_flex_dispatcher_backend": "mega_moe", "moe_grouped_gemm": "fused"}),
        ({"ep_backend": "standard (all-to-all)"}, {"moe_token_dispatcher_type": "alltoall"}),
        ({"cuda_graphs": True}, {"cuda_graph_scope": ("full",)}),
    ],
)
def test_switches_of_other_trainers(other: dict[str, object], expected: dict[str, object]) -> None:
    run = one(**(SIMUMAX | {"recompute": None, "other": other}))[0]
    assert {name: getattr(run.recipe, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("note", "kind"),
    [
        ("memory = max_memory_allocated in MB / 1024", "allocated"),
        ("Memory is GiB of 80.", "device"),
        ("GiB of memory per GPU", None),
    ],
)
def test_what_a_peak_counts_is_read_from_its_words(note: str, kind: str | None) -> None:
    run = one(**(SIMUMAX | {"framework": "PaddleNLP", "ep": 8, "note": note}))[0]
    assert run.measured.memory_kind == kind


@pytest.mark.parametrize(
    ("memory", "version", "stated", "granularity"),
    [
        (50.0, "nvcr.io/nvidia/nemo:25.09, Megatron-Bridge 0.1.0rc4", None, "full"),
        (None, "Megatron-Bridge v0.3.1", None, "full"),
        (75.0, "Megatron-Bridge 0.1.0", None, None),  # as much as without recompute
        (50.0, "NeMo container 25.09", None, None),  # performance scripts, not the library's recipe
        (50.0, "Megatron-Bridge 0.1.0", "none", "none"),
    ],
)
def test_a_recipe_by_its_release_fills_what_a_null_leaves_open(
    memory: float | None, version: str, stated: str | None, granularity: str | None
) -> None:
    metrics = {"step_seconds": 10.7, **({"memory_gb": memory} if memory else {})}
    told = {"framework": "Megatron-Bridge", "framework_version": version, "recompute": stated, "model": "Qwen3-32B"}
    sizes = {"gpu": "H100-SXM-80GB", "gpus": 16, "tp": 4, "pp": 2, "dp": 2, "ep": 1, "global_batch_size": 64}
    run, row = one(**record(**told, **sizes, seq_length=4096, precision="BF16", metrics=metrics))
    assert run.recipe is not None
    assert run.recipe.recompute_granularity == granularity
    assert any("the recipe of qwen3_32b in Megatron-Bridge" in text for text in run.assumed) == (granularity == "full")
    assert any("taken for none" in text for text in row.doubts) == (memory == 75.0)


def test_recompute_of_a_recipe_by_release() -> None:
    found = [
        recompute_of("deepseek_v3", release).get("recompute_granularity") for release in ("0.0", "0.1", "0.5", "0.10")
    ]
    assert found == [None, "selective", "none", "none"]
