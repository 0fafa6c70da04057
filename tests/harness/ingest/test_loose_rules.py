"""Rules of the importer that hold for records of every source; axes of a mesh, switches of other trainers, peaks."""

import pytest
from loose_cases import SIMUMAX, one, record
from tabled import tabled

from harness.evidence.ingest.loose import convert
from harness.predictors.ours import Ours
from projector.intake.primus_bridge import recompute_of


def test_megatron_argument_mapping() -> None:
    args = {
        "no_check_for_nan_in_loss_and_grad": True, "no_create_attention_mask_in_dataloader": True,
        "make_vocab_size_divisible_by": 3232, "cuda_graph_scope": "moe_router moe_preprocess",
        "cuda_graph_impl": "transformer_engine", "fp8_recipe": "blockwise", "cross_entropy_fusion_impl": "te",
        "delay_wgrad_compute": True, "offload_optimizer_states": True, "num_layers_per_virtual_pipeline_stage": 2,
    }  # fmt: skip
    run, _ = one(**record(pp=4, dp=2, precision="FP8 blockwise", other={"args": args}))
    r = run.recipe
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


MESH = SIMUMAX | {
    "framework": "MaxText (JAX)", "gpus": 64, "nodes": 8, "global_batch_size": 64, "zero": None, "other": {},
}  # fmt: skip


@pytest.mark.parametrize(("axes", "dp", "shard"), tabled("readers", "axes_of_a_mesh_multiply"))
def test_axes_of_a_mesh_multiply(axes: dict[str, int | None], dp: int, shard: int | None) -> None:
    run = one(**(MESH | axes | {"metrics": {"iteration_ms": 366.6}}))[0]
    assert run.problem == ""
    assert run.workload.dp == dp
    assert run.recipe.data_parallel_shard_size == shard


def test_axes_that_make_up_other_gpus_are_refused() -> None:
    run = one(**(MESH | {"dp": 3, "fsdp": 4, "ep": 8, "metrics": {"iteration_ms": 366.6}}))[0]
    assert "is not 64 GPUs" in run.problem


@pytest.mark.parametrize(("other", "expected"), tabled("readers", "switches_of_other_trainers"))
def test_switches_of_other_trainers(other: dict[str, object], expected: dict[str, object]) -> None:
    run = one(**(SIMUMAX | {"recompute": None, "other": other}))[0]
    assert {name: getattr(run.recipe, name) for name in expected} == expected


@pytest.mark.parametrize(("note", "kind"), tabled("readers", "what_a_peak_counts_is_read_from_its_words"))
def test_what_a_peak_counts_is_read_from_its_words(note: str, kind: str | None) -> None:
    run = one(**(SIMUMAX | {"framework": "PaddleNLP", "ep": 8, "note": note}))[0]
    assert run.measured.memory_kind == kind


@pytest.mark.parametrize(
    ("memory", "version", "stated", "granularity"),
    tabled("readers", "a_recipe_by_its_release_fills_what_a_null_leaves_open"),
)
def test_a_recipe_by_its_release_fills_what_a_null_leaves_open(
    memory: float | None, version: str, stated: str | None, granularity: str | None
) -> None:
    metrics = {"step_seconds": 10.7, **({"memory_gb": memory} if memory else {})}
    framework, _, number = version.partition(" ") if version.startswith("NeMo") else ("Megatron-Bridge", "", version)
    told = {"framework": framework, "framework_version": number, "recompute": stated, "model": "Qwen3-32B"}
    sizes = {"gpu": "H100-SXM-80GB", "gpus": 16, "tp": 4, "pp": 2, "dp": 2, "ep": 1, "global_batch_size": 64}
    run, row = one(**record(**told, **sizes, seq_length=4096, precision="BF16", metrics=metrics))
    assert run.recipe.recompute_granularity == granularity
    assert any("the recipe of qwen3_32b in" in text for text in run.assumed) == (granularity == "full")
    assert any("taken for none" in text for text in row.doubts) == (memory == 75.0)


def test_recompute_of_a_recipe_by_release() -> None:
    found = [
        recompute_of("deepseek_v3", release).get("recompute_granularity") for release in ("0.0", "0.1", "0.5", "0.10")
    ]
    assert found == [None, "selective", "none", "none"]
