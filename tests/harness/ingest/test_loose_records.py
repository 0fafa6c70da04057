"""Real records of every source family, converted and checked field by field."""

import pytest
from loose_cases import SIMUMAX, one, record

from projector.workload.lora import LoRA


def test_simumax() -> None:
    run, report = one(**SIMUMAX)
    assert run.problem == ""
    assert (run.gpu, run.gpus, run.stack.framework, run.stack.date) == ("b200", 8, "megatron-lm", "2026-01")
    assert run.source.revision == "4dcaae513ba7"
    assert (run.model.name, run.model.num_layers, run.model.vocab_size) == ("deepseek_v2", 4, 102401)
    assert run.model.moe.moe_layer_freq == (0, 1, 1, 1)
    r = run.recipe
    assert (r.ep, r.recompute_granularity, r.data_parallel_sharding) == (8, "none", "optim")
    assert (r.cross_entropy_fusion, r.attention_backend, r.grad_reduce_in_bf16) == ("te", "fused", False)
    assert (r.make_vocab_size_divisible_by, r.moe_expert_capacity_factor) == (128, 1.0)
    assert run.measured.step_seconds == pytest.approx(0.3666)
    assert (run.measured.peak_memory_gib, run.measured.memory_kind) == (45.63, "allocated")
    assert any("NullTokenizer" in text for text in report.mapped)


def test_megatron_bridge_arguments() -> None:
    other = {
        "container": "NeMo 26.04", "recompute_granularity": "selective", "recompute_modules": ["mla_up_proj"],
        "cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ["attn", "moe_router", "moe_preprocess"],
        "moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep", "grad_reduce_in_fp32": False,
        "use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16",
        "pipeline_model_parallel_layout": "Et*4|(t*4|)*14tmL", "mtp_num_layers": 1,
        "moe_routing": "force-balanced, token-dropless", "optimizer": "adam",
    }  # fmt: skip
    run, _ = one(
        **record(
            model="DeepSeekV3", gpu="GB200", gpus=256, framework="Megatron-Bridge / NeMo",
            framework_version="NeMo container 26.04", precision="MXFP8", seq_length=4096, global_batch_size=4096, pp=4,
            ep=64, etp=1, dp=64, vpp=4, recompute="selective ['mla_up_proj']", other=other,
            metrics={"tokens_per_s_per_gpu": 4500.0, "tflops_per_gpu": 1170.0},
        )
    )  # fmt: skip
    assert run.problem == ""
    r = run.recipe
    assert (r.precision, r.fp8_recipe, r.vpp) == ("mxfp8", None, 4)
    assert r.pipeline_model_parallel_layout == "Et*4|(t*4|)*14tmL"
    assert r.recompute_modules == ("mla_up_proj",)
    assert r.cuda_graph_scope == ("attn", "moe_router", "moe_preprocess")
    assert (r.moe_token_dispatcher_type, r.moe_flex_dispatcher_backend) == ("flex", "hybridep")
    assert (r.grad_reduce_in_bf16, r.exp_avg_dtype, r.moe_router_force_load_balancing) == (True, "bf16", True)
    assert run.model.mtp_num_layers == 1
    assert run.measured.step_seconds == pytest.approx(4096 * 4096 / 256 / 4500)
    assert run.measured.derived == ("step_seconds from tgs",)


def test_layout_with_other_chunk_count_is_dropped_and_doubted() -> None:
    other = {"pipeline_model_parallel_layout": "Et|(tt|)*14tL"}
    run, report = one(**record(pp=2, dp=4, vpp=2, other=other))
    assert run.recipe.pipeline_model_parallel_layout is None
    assert "layout has 16 chunks" in report.doubts[0]


def test_a_dense_model_whose_record_states_experts_has_them() -> None:
    """FlagPerf's Qwen1.5 1.8B, upcycled to eight experts: the name alone is that of the dense model."""
    arch = {"experts": 8, "topk": 2, "moe_ffn": 5504}
    upcycled, _ = one(**record(model="Qwen1.5 1.8B upcycled to 8 experts top-2", arch=arch))
    dense, _ = one(**record(model="Qwen1.5 1.8B"))
    assert (upcycled.model.moe.num_experts, upcycled.model.moe.moe_layer_freq) == (8, (1,) * 24)
    assert dense.model.moe is None
    nameless, _ = one(**record(model="Qwen1.5 1.8B", arch={"experts": 8}))
    assert "moe_router_topk" in nameless.problem


def test_bigscience_recompute_follows_from_its_flop_count() -> None:
    sizes = {"layers": 72, "hidden": 14336, "heads": 64, "kv_heads": 64, "ffn": 57344, "vocab": "~250k (250680 class)"}
    run, _ = one(
        id="bs", gpu="A100-SXM-80GB", gpus=384, framework="Megatron-DeepSpeed", model="GPT 181B (BLOOM prequel)",
        framework_version="bigscience fork, Feb 2022 (02-25)", arch=sizes, seq_length=2048, micro_batch_size=1,
        global_batch_size=2016, tp=8, pp=2, vpp=1, cp=1, ep=1, dp=24, zero="DeepSpeed ZeRO stage 1",
        schedule="1F1B (DeepSpeed pipe engine)", note="Memory = nvidia-smi max on first/last node.",
        metrics={"iteration_ms": 145450.0, "tflops_per_gpu": 109.11, "memory_gb": 65.0},
    )  # fmt: skip
    assert run.problem == ""
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
    exports = {
        "FP8_AMAX_HISTORY": "4", "FP8_DPA": "1", "FP8_ACTIVATION": "True", "SP": "0", "TP_COMM_OVERLAP": "True",
        "OVERLAP_PARAM_GATHER": "True", "FULL_CUDA_GRAPH": "0", "LAYER_CUDA_GRAPH": "1",
    }  # fmt: skip
    run, _ = one(
        **record(
            id="mlperf", gpu="B200", framework="NeMo / Megatron-Core (MLPerf)", model="Llama2-70B LoRA",
            framework_version="NVIDIA NeMo Framework Release 25.04; MLPerf training v5.0", precision="FP8 (TE)",
            other={"config_exports": exports, "step_time_s_median_by_run": [0.9450, 0.9449, 0.9543]},
            global_batch_size=8, metrics={"iteration_ms": 945.0, "memory_gb": 82.3},
        )
    )  # fmt: skip
    r = run.recipe
    assert r.lora == LoRA(dim=16, targets=("linear_qkv", "linear_proj"))
    assert (r.fp8_recipe, r.fp8_dot_product_attention, r.cuda_graph_scope) == ("delayed", True, ("full",))
    assert (r.activation_func_fp8_input_store, r.sequence_parallel) == (True, False)
    assert (run.stack.framework, run.stack.date, run.measured.memory_kind) == ("mlperf", "2025-04", "allocated")
    assert run.measured.rel_std == pytest.approx(0.0057, abs=1e-4)
    assert any("lora targets" in text for text in run.assumed)


def test_maxtext_moe_paths() -> None:
    base = record(
        gpu="MI355X", gpus=64, framework="MaxText (JAX)", model="DeepSeek-V3 671B", seq_length=4096, micro_batch_size=7,
        global_batch_size=448, dp=None, ep=8, fsdp=8, recompute="full (remat_policy full)",
    )  # fmt: skip
    dropping, _ = one(**base, other={"moe_path": "dense_matmul, capacity_factor 1.25 (drops tokens)"})
    deepep, _ = one(**(base | {"deepep": True, "grouped_gemm": "turbo"}), other={"moe_path": "same, moe.py v3"})
    assert dropping.recipe.moe_expert_capacity_factor == 1.25
    assert dropping.recipe.moe_pad_expert_input_to_capacity is True
    assert (deepep.recipe.moe_token_dispatcher_type, deepep.recipe.moe_grouped_gemm) == ("flex", "fused")
    for words, name in (("legacy grouped gemm", "legacy"), ("turbo grouped gemm", "fused")):
        legacy, _ = one(**(base | {"grouped_gemm": words}))
        assert legacy.recipe.moe_grouped_gemm == name
    assert deepep.recipe.moe_expert_capacity_factor is None
    assert dropping.recipe.data_parallel_sharding == "optim_grads_params"
    assert dropping.model.mtp_num_layers == 0
    assert "mtp_num_layers=0 (not stated)" in dropping.assumed
    assert dropping.switches["moe_path"].startswith("dense_matmul")  # type: ignore[attr-defined]


def test_torchtitan_local_batch_and_float8() -> None:
    run, _ = one(
        **record(
            framework="torchtitan",
            source="benchmarks/llama3_h100_202412_torchtitan.md @b5bcd76c66d0 (measured 2024-12; torch 1963fc8)",
            gpu="H100-SXM-96GB-HBM2e-500W", gpus=512, model="Llama3.1-405B", precision="float8 (linear)",
            micro_batch_size=None, global_batch_size=64, tp=8, pp=8, dp=8, zero="FSDP2",
            other={"local_batch_size": 8, "async_tp": True, "torch_compile": True},
            metrics={"tokens_per_s_per_gpu": 100.0, "memory_gb": 75.3},
        )
    )  # fmt: skip
    assert (run.recipe.micro_batch_size, run.recipe.fp8_recipe) == (1, "tensorwise")
    assert (run.recipe.tp_comm_overlap, run.recipe.torch_compile) == (True, True)
    assert (run.stack.date, run.measured.memory_kind) == ("2024-12", "reserved")


def test_primus_steps() -> None:
    run, _ = one(
        **record(
            gpu="MI355X", framework="Primus/Megatron-LM",
            framework_version="rocm/megatron-lm:v25.10, ROCm 7.1, PyTorch 2.9.0", model="DeepSeek-V2-Lite 16B",
            seq_length=4096, micro_batch_size=12, global_batch_size=768, ep=8, recompute="none (recompute_num_layers 0)",
            deepep=True, sync_free_stage=1, grouped_gemm="legacy grouped gemm (script default LEGACY_GG=True)",
            other={"numa_binding": True, "loss_fusion": "te", "force_load_balancing": True, "manual_gc": True},
            metrics={"tokens_per_s_per_gpu": 40000.0, "memory_pct_of_288": 92.18},
        )
    )  # fmt: skip
    r = run.recipe
    assert (run.stack.framework, run.stack.date) == ("primus", "2025-10")
    assert (r.numa_binding, r.sync_free_stage, r.cross_entropy_fusion, r.manual_gc) == (True, 1, "te", True)
    assert (r.moe_token_dispatcher_type, r.moe_flex_dispatcher_backend) == ("flex", "deepep")
    assert (r.recompute_granularity, r.moe_router_force_load_balancing) == ("none", True)
    assert run.measured.peak_memory_gib == pytest.approx(0.9218 * 288, abs=1e-3)
