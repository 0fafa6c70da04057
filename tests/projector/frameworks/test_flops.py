"""FLOP formulas against the figures that logs of the same release print (GFLOP per token)."""

from dataclasses import replace

import pytest
from asked import refusal
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled

from projector.errors import Unsupported
from projector.frameworks import flops
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload


def workload(name: str, seq: int, framework: str = "megatron-lm", date: str = "", **overrides: object) -> Workload:
    recompute = overrides.pop("recompute", None)
    recipe = Recipe(micro_batch_size=1, global_batch_size=8, seq_length=seq, recompute_granularity=recompute)  # type: ignore[arg-type]
    model = replace(zoo.load(name), **overrides)  # type: ignore[arg-type]
    return Workload(model=model, recipe=recipe, gpus=8, framework=framework, framework_date=date)


def giga(w: Workload, formula: str | None = None) -> float:
    return flops.flops_per_token(w, formula) / 1e9


@pytest.mark.parametrize(("name", "seq", "formula", "expected"), tabled("flops", "published_gflop_a_token"))
def test_published_values(name: str, seq: int, formula: str, expected: float) -> None:
    assert giga(workload(name, seq), formula) == pytest.approx(
        expected, abs=0.5 * 10 ** -len(str(expected).split(".")[1])
    )


def test_counts_that_hold_recompute() -> None:
    """InternLM-7B at 2048 tokens by the formulas, worked by hand; 2**40 is PaddleNLP's unit of TFLOP."""
    internevo = replace(zoo.load("llama2_7b"), vocab_size=103168)
    plain, again = (
        giga(replace(workload("llama2_7b", 2048, recompute=kind), model=internevo), "internevo")
        for kind in ("none", "full")
    )
    layer = (8 + 6 * 11008 / 4096) * 4096**2 + 4 * 2048 * 4096
    assert plain == pytest.approx((3 * 32 * layer + 6 * 4096 * 103168) / 1e9)
    assert again - plain == pytest.approx(32 * layer / 1e9)
    kept, full = (giga(workload("llama2_7b", 4096, recompute=kind), "paddlenlp") for kind in ("none", "full"))
    layer = 4 * 4096**2 + 2 * 4096 * 4096 + 3 * 4096 * 11008 + 11008
    assert kept == pytest.approx(6 * (32 * layer + 4096 * 32000) / 1e9 * 1e12 / 2**40)
    assert full - kept == pytest.approx(2 * 32 * layer / 1e9 * 1e12 / 2**40)


def test_deepseek_without_multi_token_prediction() -> None:
    assert giga(workload("deepseek_v3", 4096, mtp_num_layers=0)) == pytest.approx(249.81, abs=0.005)


@pytest.mark.parametrize(
    ("gated", "recompute", "expected"), [(False, None, 455.7), (False, "full", 607.6), (True, "full", 810.1)]
)
def test_bigscience_counts_recompute_and_gates(gated: bool, recompute: str | None, expected: float) -> None:
    w = workload("llama3_70b", 8192, "megatron-deepspeed", gated_linear_unit=gated, recompute=recompute)
    assert giga(w) == pytest.approx(expected, abs=0.05)


def test_nemo_code_equals_megatron_but_for_vocabulary_padding() -> None:
    w = workload("llama3_70b", 8192)
    assert giga(w, "nemo") == pytest.approx(giga(w, "megatron-2025-04"), rel=1e-3)


def test_maxtext_prints_deepseek_v3_at_its_published_rate() -> None:
    # 64 MI355X, dense matmul with capacity 1.25: 1368.8 tokens/s/device at 342.8 TFLOP/s/device.
    assert giga(workload("deepseek_v3", 4096, "maxtext", mtp_num_layers=0)) == pytest.approx(
        342.8 / 1368.8 * 1000, rel=1e-3
    )


@pytest.mark.parametrize(("framework", "date", "formula"), tabled("flops", "formulas_by_date"))
def test_formula_follows_framework_and_date(framework: str, date: str, formula: str) -> None:
    assert flops.formula_for(framework, date) == formula


@pytest.mark.parametrize(("formula", "seq_length", "tflops", "tgs"), tabled("flops", "bridge_by_release"))
def test_bridge_counts_windows_and_other_gates_late(formula: str, seq_length: int, tflops: float, tgs: float) -> None:
    """GPT-OSS-120B in NVIDIA-NeMo/Megatron-Bridge docs/performance-summary-archive.md @067f987df (25.11, 26.04, 26.06);
    the third pairs the TFLOP/s of commit 14a29340 with the tokens/s of the release cut from it."""
    assert giga(workload("gpt_oss_120b", seq_length), formula) == pytest.approx(tflops / tgs * 1000, rel=5e-3)


def test_every_framework_file_names_a_known_formula() -> None:
    from projector import frameworks

    for name in frameworks.names():
        assert flops.formula_for(name) in flops.formulas()


def test_unknown_framework_is_unsupported() -> None:
    refusal(flops.formula_for, "lightning", match="counts FLOP", kind=Unsupported)
    refusal(flops.flops_per_token, workload("llama3_8b", 2048), "guess", match="no FLOP formula", kind=Unsupported)


@given(st.sampled_from(flops.formulas()), st.floats(1.0, 2000.0))
def test_seconds_and_rate_are_inverse(formula: str, rate: float) -> None:
    w = workload("llama3_8b", 4096)
    assert flops.tflops_per_gpu(w, flops.step_seconds(w, rate, formula), formula) == pytest.approx(rate)


def test_a_window_lowers_the_count() -> None:
    full = workload("gpt_oss_120b", 8192, window_size=None)
    assert giga(workload("gpt_oss_120b", 8192)) < giga(full)
    assert giga(workload("gpt_oss_120b", 8192, window_size=8192)) == giga(full)


def test_keys_and_values_of_another_layer_are_not_counted_twice() -> None:
    whole = workload("hunyuan_large", 8192, cla_share_factor=1)
    h, kv = whole.model.hidden_size, whole.model.num_query_groups * whole.model.kv_channels
    shared = giga(workload("hunyuan_large", 8192), "megatron-2025-04")
    assert giga(whole, "megatron-2025-04") - shared == pytest.approx(6 * 32 * 2 * h * kv / 1e9)


def test_six_p_and_palm_differ_by_the_attention() -> None:
    """PaLM appendix B (arXiv:2204.02311): 6·P, and 12·L·h·S for attention."""
    w = workload("llama3_8b", 8192)
    assert flops.flops_per_token(w, "6p") == pytest.approx(6 * 8.03e9, rel=1e-3)
    attention = flops.flops_per_token(w, "palm") - flops.flops_per_token(w, "6p")
    assert attention == pytest.approx(12 * 32 * 4096 * 8192)
