"""Invariants of the memory plan: what must hold for every configuration."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_cases import GIB, changed, deepseek_v2, deepseek_v3, gpu, llama, recipe, resolved, tensors
from tabled import tabled

from harness.evidence import dataset
from projector import project
from projector.frameworks.types import Resolved
from projector.hardware import catalogue
from projector.layers.lower import layer
from projector.memory.plan import plan
from projector.pipeline import in_flight
from projector.pipeline.residency import shortened
from projector.workload.lora import LoRA
from projector.workload.model import decoder
from tests.workloads import workload

GPU = gpu()

recipes = st.builds(
    recipe, tp=st.sampled_from([1, 2, 4]), pp=st.sampled_from([1, 2, 4]), cp=st.sampled_from([1, 2]),
    seq_length=st.sampled_from([2048, 8192]),
    data_parallel_sharding=st.sampled_from(["no_shard", "optim", "optim_grads", "optim_grads_params"]),
    recompute_granularity=st.sampled_from(["none", "selective", "full"]),
    recompute_method=st.sampled_from(["uniform", "block"]), recompute_num_layers=st.integers(1, 3),
    precision=st.sampled_from(["bf16", "fp8", "mxfp8", "fp32"]),
    cross_entropy_fusion=st.sampled_from(["te", "native", "none"]), use_precision_aware_optimizer=st.booleans(),
)  # fmt: skip
cases = st.builds(lambda how, moe: resolved(deepseek_v3(8, 1) if moe else llama(), how, 64), recipes, st.booleans())


@given(cases)
def test_components_sum_to_the_peak_and_nothing_is_negative(case: Resolved) -> None:
    planned = plan(case, GPU)
    assert len(planned.ranks) == case.workload.recipe.pp
    for rank in planned.ranks:
        assert sum(rank.components.values()) == rank.allocated
        assert min(rank.components.values()) >= 0
        assert 0 <= rank.static <= rank.allocated
        assert rank.event
    assert planned.allocated == max(rank.allocated for rank in planned.ranks)
    assert planned.allocated <= planned.reserved <= planned.device
    assert planned.required <= planned.device


@given(cases)
def test_full_recompute_never_needs_more_saved_bytes(case: Resolved) -> None:
    none = plan(changed(case, recompute_granularity="none"), GPU)
    full = plan(changed(case, recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1), GPU)
    selective = plan(changed(case, recompute_granularity="selective", recompute_modules=("core_attn",)), GPU)
    assert full.allocated <= none.allocated * 1.0001
    assert selective.allocated <= none.allocated * 1.01


@given(cases, st.integers(1, 6))
def test_micro_batches_beyond_the_pipeline_change_nothing(case: Resolved, more: int) -> None:
    recipe_ = case.workload.recipe
    enough = case.workload.dp * (recipe_.pp + 1)
    few = plan(changed(case, global_batch_size=enough), GPU)
    many = plan(changed(case, global_batch_size=enough + more * case.workload.dp), GPU)
    assert few.allocated == many.allocated


def test_the_closed_form_of_a_dense_layer() -> None:
    """4x + 8S + 4T·n·d/t + 4T·g·d/t + 4T·n/t + 6T·f/t (Llama-3-70B, 4096 tokens: 1,073 MiB)."""
    model = llama(hidden_size=8192, ffn_hidden_size=28672, num_attention_heads=64)
    total = layer(decoder(False), resolved(model, recipe(), 8)).saved_bytes
    t, h, f, n, d, g = 4096, 8192, 28672, 64, 128, 8
    assert total == 4 * 2 * t * h + 8 * t + 4 * t * n * d + 4 * t * g * d + 4 * t * n + 6 * t * f
    assert total / 2**20 == pytest.approx(1073.0, abs=0.1)


def test_the_sizes_of_latent_attention_and_experts() -> None:
    """DeepSeek-V2 at 4096 tokens: 1,122 MiB a dense layer and 1,376 MiB a MoE layer."""
    how = recipe(ep=8, moe_expert_capacity_factor=1.0, moe_pad_expert_input_to_capacity=True)
    case = resolved(deepseek_v2(), how, 8)
    assert layer(decoder(False), case).saved_bytes / 2**20 == pytest.approx(1122, abs=1)
    assert layer(decoder(True), case).saved_bytes / 2**20 == pytest.approx(1376, abs=1)
    assert tensors(case, decoder(True))["experts.in"] == 2 * 5120 * 154 * 160


@given(cases)
def test_more_context_parallelism_never_raises_activations(case: Resolved) -> None:
    two = plan(changed(case, cp=2, cp_comm_type="p2p"), GPU)
    four = plan(changed(case, cp=4, cp_comm_type="p2p"), GPU)
    for a, b in zip(two.ranks, four.ranks, strict=True):
        assert b.components["activations"] <= a.components["activations"] * 1.0001


@pytest.mark.parametrize(
    ("sharding", "bytes_per_element"),
    [("optim", 6 + 12 / 64), ("optim_grads", 2 + 16 / 64), ("optim_grads_params", 18 / 64)],
)
def test_each_sharding_divides_what_it_says(sharding: str, bytes_per_element: float) -> None:
    rank = plan(resolved(llama(2), recipe(data_parallel_sharding=sharding), 64), GPU).ranks[0]
    names = ("weights", "gradients", "master_weights", "moments")
    assert sum(rank.components[name] for name in names) == pytest.approx(bytes_per_element * rank.parameters)


def test_low_rank_adapters_need_no_gradients_of_frozen_weights() -> None:
    rank = plan(resolved(llama(8), recipe(lora=LoRA(dim=16)), 8), GPU).ranks[0]
    assert rank.components["gradients"] < 0.01 * rank.components["weights"]
    assert rank.components["weights"] == pytest.approx(2 * rank.parameters)


def test_precision_aware_optimizer_and_cpu_offload() -> None:
    plain = plan(resolved(llama(), recipe(), 8), GPU).ranks[0].components
    narrow = (
        plan(
            resolved(
                llama(), recipe(use_precision_aware_optimizer=True, exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16"), 8
            ),
            GPU,
        )
        .ranks[0]
        .components
    )
    away = plan(resolved(llama(), recipe(optimizer_cpu_offload=True), 8), GPU).ranks[0].components
    assert narrow["moments"] == plain["moments"] / 2
    assert narrow["master_weights"] == plain["master_weights"] / 2
    assert away["moments"] == away["master_weights"] == 0
    assert away["gradients"] == plain["gradients"]


def test_fp8_weight_copies_depend_on_the_device() -> None:
    how = recipe(precision="fp8", fp8_recipe="tensorwise")
    hopper = plan(resolved(llama(), how, 8), gpu("hopper")).ranks[0].components["fp8_weight_cache"]
    blackwell = plan(resolved(llama(), how, 8), gpu("blackwell")).ranks[0].components["fp8_weight_cache"]
    assert hopper == 2 * blackwell > 0
    gathered = plan(resolved(llama(), dataclasses.replace(how, fp8_param_gather=True), 8), gpu("hopper")).ranks[0]
    plain = plan(resolved(llama(), how, 8), gpu("hopper")).ranks[0]
    assert gathered.components["weights"] + gathered.components["fp8_weight_cache"] < (
        plain.components["weights"] + plain.components["fp8_weight_cache"]
    )


def test_the_verdict_goes_both_ways() -> None:
    case = resolved(llama(32), recipe(data_parallel_sharding="optim"), 8, allocator={"reserved_over_allocated": 1.5})
    roomy, small = plan(case, gpu(usable_gib=178)), plan(case, gpu(usable_gib=40))
    assert roomy.fits
    assert roomy.status == "fits"
    assert roomy.margin_bytes > 0
    assert not small.fits
    assert small.status == "out-of-memory"
    assert small.margin_bytes == pytest.approx(roomy.margin_bytes - 138 * GIB)
    between = (roomy.required + roomy.device) / 2 / GIB
    tight = plan(case, gpu(usable_gib=between))
    assert tight.fits
    assert tight.status == "tight"


def test_tied_embeddings_exist_once_on_one_rank_and_twice_on_two() -> None:
    tied = llama(8, untie_embeddings_and_output_weights=False, vocab_size=128_000)
    table = 128_000 * 4096
    alone = plan(resolved(tied, recipe(), 8), GPU).ranks[0].parameters
    free = plan(resolved(llama(8, vocab_size=128_000), recipe(), 8), GPU).ranks[0].parameters
    assert free - alone == table
    split = plan(resolved(tied, recipe(pp=2), 8), GPU)
    assert sum(rank.parameters for rank in split.ranks) == alone + table


@pytest.mark.parametrize(("schedule", "vpp", "low", "high"), tabled("published", "memory_of_schedules_on_mi300x"))
def test_schedules_against_1f1b_as_measured_on_mi300x(schedule: str, vpp: int, low: float, high: float) -> None:
    """Device memory relative to 1F1B of Llama-2-7B and Qwen3-235B (AMD-AGI/Primus @fd1eeabb, primus_pipeline.md):
    ZB1P 1.02-1.04, interleaved 1.31, ZBV 1.09-1.11, V-half 0.86-0.98, V-min 0.73-0.87."""
    model = llama(32, num_query_groups=32, ffn_hidden_size=11008, vocab_size=32000)
    for pp in (4, 8):
        base = plan(resolved(model, recipe(pp=pp), 8), GPU).device
        other = plan(resolved(model, recipe(pp=pp, vpp=vpp, pipeline_schedule=schedule), 8), GPU).device
        assert low <= other / base <= high, pp


def test_every_sharding_plans_under_every_data_parallel_style() -> None:
    how = recipe(data_parallel_sharding="optim_grads_params")
    sizes_ = {
        style: plan(resolved(llama(8), how, 16, data_parallel={"strategy": style}), GPU).allocated
        for style in ("fsdp1", "fsdp2", "megatron_fsdp", "zero3", "xla_fsdp")
    }
    assert sizes_["fsdp1"] >= sizes_["fsdp2"]
    assert max(sizes_.values()) < 1.6 * min(sizes_.values())


# How many micro-batches are alive on a rank: closed forms of the published schedules.


@pytest.mark.parametrize(("pp", "vpp"), [(2, 2), (4, 2), (4, 4), (8, 3)])
@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_interleaved_holds_the_published_number_of_chunks(pp: int, vpp: int, rounds: int) -> None:
    """min(m·v, 2(p − r − 1) + (v − 1)·p + 1) (Megatron-LM core/pipeline_parallel/schedules.py)."""
    m = pp * rounds
    for rank, met in enumerate(in_flight("interleaved", pp, vpp, m, None, 0).ranks):
        # a forward counts itself only afterwards
        most = max(total + forward for total, forward in zip(met.alive.sum(axis=1), met.forward, strict=True))
        assert most == min(m * vpp, 2 * (pp - rank - 1) + (vpp - 1) * pp + 1)


@given(st.integers(1, 3000), st.integers(1, 16), st.sampled_from([None, 4, 24]))
def test_shortening_keeps_the_remainder(m: int, pp: int, group: int | None) -> None:
    kept = shortened(m, pp, group)
    assert kept <= m
    assert (m - kept) % (group or pp) == 0
    if kept < m:
        assert kept >= 4 * pp


# Outputs that full recompute keeps: what they cost, and the verdicts of measured runs with and without room for
# them.

NAMES = ("qkv_proj", "out_proj", "mlpwi", "mlpwo", "context")
RUNS = Path(__file__).resolve().parents[3] / "measured" / "runs" / "maxtext_dsv3_mi355x.yaml"


def peak_saving(model: str, *saved: str, **fields: object) -> float:
    stated = {"recompute_granularity": "full", "recompute_saved": saved or None, **fields}
    return project(workload(model, 64, "maxtext", **stated), catalogue.default_cluster("mi355x")).memory.required


@pytest.mark.parametrize("model", ["llama3_70b", "deepseek_v2_lite"])
def test_each_kept_output_costs_memory(model: str) -> None:
    fields = {"ep": 8} if model.startswith("deepseek") else {}
    nothing, everything = peak_saving(model, **fields), peak_saving(model, *NAMES, **fields)
    each = [peak_saving(model, name, **fields) - nothing for name in NAMES]
    assert min(each) > 0.0
    assert everything - nothing == pytest.approx(sum(each), rel=0.35)


def test_measured_policies_fit_or_not_as_they_did() -> None:
    """DeepSeek-V3 on 64 MI355X: keeping the output projection ran, every larger policy did not."""
    runs = [r for r in dataset.read(RUNS) if r.recipe is not None and r.recipe.recompute_saved]
    assert len(runs) >= 20
    cluster = catalogue.default_cluster("mi355x")
    for run in runs:
        ran = run.measured.status != "out-of-memory"
        assert project(run.workload, cluster).memory.fits == ran, run.id
