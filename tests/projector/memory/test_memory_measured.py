"""Peaks that were measured: every SimuMax B200 row, stage by stage, and a Megatron-LM MoE run with virtual stages."""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path
from typing import Any

import pytest
import yaml
from memory_cases import GIB, deepseek_v3, from_row, gpu, llama, recipe, resolved

from projector.frameworks import resolve
from projector.memory.plan import plan
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

MIB = 2.0**20


@pytest.fixture(scope="module")
def b200_rows() -> list[dict[str, Any]]:
    path = Path(__file__).resolve().parents[4] / "shared" / "corpus" / "nvidia.yaml"
    if not path.is_file():
        pytest.skip("the raw third-party material (../shared) is not on this machine")
    rows = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return [row for row in rows if row["id"].startswith("simumax-b200-")]


def _stages(row: dict[str, Any]) -> list[float]:
    """Highest measured peak of every pipeline stage, bytes (the ranks of one stage are consecutive)."""
    by_rank = {int(rank): mib * MIB for rank, mib in row["other"]["peak_alloc_mb_by_rank"].items()}
    per_stage = len(by_rank) // row["pp"]
    return [max(by_rank[rank] for rank in range(s * per_stage, (s + 1) * per_stage)) for s in range(row["pp"])]


def test_every_b200_row_is_within_a_tenth_of_a_percent(b200_rows: list[dict[str, Any]]) -> None:
    assert len(b200_rows) >= 28
    errors = []
    for row in b200_rows:
        measured = _stages(row)
        planned = plan(from_row(row), gpu())
        assert planned.allocated == max(rank.allocated for rank in planned.ranks)
        errors += [abs(rank.allocated / peak - 1) for rank, peak in zip(planned.ranks, measured, strict=True)]
        assert planned.allocated / GIB == pytest.approx(row["metrics"]["memory_gb"], rel=0.005)
    assert statistics.mean(errors) < 0.0005
    assert max(errors) < 0.001


def test_reserved_memory_of_the_b200_rows(b200_rows: list[dict[str, Any]]) -> None:
    pairs = [
        (plan(from_row(row), gpu()).reserved, row["other"]["real_reserved_gib"] * GIB)
        for row in b200_rows
        if row["other"].get("real_reserved_gib")
    ]
    assert pairs
    assert statistics.mean(abs(planned / measured - 1) for planned, measured in pairs) < 0.012
    assert max(abs(planned / measured - 1) for planned, measured in pairs) < 0.03


@pytest.mark.parametrize(("granularity", "measured_gib"), [("none", 67.09), ("full", 58.74)])
def test_deepseek_with_virtual_stages_and_mtp(granularity: str, measured_gib: float) -> None:
    """Megatron-LM pull request 6311: 14 layers and one prediction module on 64 H100, ``Ett|(tt|)*6mL``; three dense
    layers, balanced routing and fp32 moments are assumptions."""
    how = recipe(
        global_batch_size=256,
        seq_length=2048,
        pp=4,
        vpp=2,
        ep=16,
        pipeline_model_parallel_layout="Ett|(tt|)*6mL",
        cross_entropy_fusion="none",
        recompute_granularity=granularity,
        recompute_method="uniform",
        recompute_num_layers=1,
    )
    planned = plan(resolved(deepseek_v3(14, mtp=1), how, 64), gpu("hopper", 79.0))
    assert planned.allocated / GIB == pytest.approx(measured_gib, rel=0.006)
    assert planned.fits
    assert planned.ranks.index(max(planned.ranks, key=lambda r: r.allocated)) == (2 if granularity == "none" else 3)


def _torchtitan(gpus: int, sharding: str = "optim_grads_params", **fusion: Any) -> Any:
    """Llama-3-8B in torchtitan: FSDP2, two sequences of 8,192 tokens, operator-selective checkpoints."""
    how = recipe(
        micro_batch_size=2,
        global_batch_size=2 * gpus,
        seq_length=8192,
        sequence_parallel=False,
        data_parallel_sharding=sharding,
        gradient_accumulation_fusion=False,
        cross_entropy_fusion="none",
        make_vocab_size_divisible_by=1,
        recompute_granularity="selective",
        recompute_modules=("op_sac",),
        torch_compile=True,
    )
    behaviour = {
        "data_parallel": {"strategy": "fsdp2"},
        "fusion": {"loss": "fp32", "qkv": False, "gate_up": False, "wgrad_accumulation": "none"} | fusion,
    }
    return plan(resolved(llama(32), how, gpus, **behaviour), gpu("hopper", 94.0))


@pytest.mark.parametrize(
    ("gpus", "compiled_loss", "reserved_gib"),
    [(8, False, 77.0), (128, False, 62.0), (32, True, 47.96), (64, True, 46.97)],
)
def test_torchtitan_reports_reserved_memory(gpus: int, compiled_loss: bool, reserved_gib: float) -> None:
    """pytorch/torchtitan @b5bcd76c benchmarks (2024, loss in eager mode; 2025 on H200, loss compiled)."""
    planned = _torchtitan(gpus, loss_compiled=compiled_loss)
    assert planned.reserved / GIB == pytest.approx(reserved_gib, rel=0.06)


@pytest.mark.parametrize(
    ("shape", "reserved_gib"),
    [((32, 8, 16), 43.45), ((32, 4, 16), 70.2), ((32, 8, 32), 70.79), ((64, 8, 32), 63.27), ((16, 1, 4), 78.48)],
)
def test_a_loss_that_nothing_compiles_keeps_fp32_copies(shape: tuple[int, int, int], reserved_gib: float) -> None:
    """Qwen3-32B, full recompute, eager (pytorch/torchtitan@d66b72a6a, message): 18 bytes a logit where tp divides the
    vocabulary, else 14; the same with a compiler 4."""
    gpus, tp, batch = shape
    how = Recipe(micro_batch_size=batch, global_batch_size=batch * gpus // tp, seq_length=4096, tp=tp)
    how = dataclasses.replace(how, recompute_granularity="full", recompute_method="uniform", torch_compile=False)
    eager = Workload(
        model=zoo.load("qwen3_32b"), recipe=how, gpus=gpus, framework="torchtitan", framework_date="2025-09"
    )
    planned = plan(resolve(eager, "nvidia", "hopper"), gpu("hopper", 94.0))
    assert planned.reserved / GIB == pytest.approx(reserved_gib, rel=0.04)
    compiled = dataclasses.replace(eager, recipe=dataclasses.replace(how, torch_compile=True))
    logits = batch * 4096 * 151936 / tp
    least = planned.allocated - plan(resolve(compiled, "nvidia", "hopper"), gpu("hopper", 94.0)).allocated
    assert 0.8 * (10 if tp == 1 else 14) * logits <= least <= 1.05 * (10 if tp == 1 else 14) * logits


def test_reshard_after_forward_never_keeps_every_unit() -> None:
    """49.59 → 62.18 GiB (pytorch/torchtitan@5940ddeb5, message): weights of all layers but the one at hand, in bf16."""
    always = _torchtitan(8, loss_compiled=False)
    never = _torchtitan(8, loss_compiled=False, sharding="optim_grads")
    layers = 2 * 32 * 218_112_000
    assert never.allocated - always.allocated == pytest.approx(layers, rel=0.1)
    assert (never.reserved - always.reserved) / GIB == pytest.approx(62.18 - 49.59, rel=0.2)


def test_sharding_over_more_ranks_saves_what_torchtitan_measured() -> None:
    """82.4 → 67.0 GiB reserved from 8 to 128 GPUs; 16 bytes a parameter are divided."""
    few, many = _torchtitan(8), _torchtitan(128)
    parameters = few.ranks[0].parameters
    assert few.allocated - many.allocated == pytest.approx(16 * parameters * (1 / 8 - 1 / 128), rel=1e-9)
    assert (few.allocated - many.allocated) / GIB == pytest.approx(82.4 - 67.0, abs=1.5)
