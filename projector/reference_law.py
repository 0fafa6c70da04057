"""A law of plain utilisation, which shows where a projection is far from what runs like it reach.

ln(MFU) is linear in a few sizes and switches of a run (:func:`features`); ``python -m harness calibrate`` fits the
coefficients to measured runs, every source weighing the same. The law knows nothing of kernels and networks, so it is
no projection. But a projection that lies more than a factor of e from it is either of an unusual run or wrong, and an
interval should say so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from projector.parameter import parameter

if TYPE_CHECKING:
    from projector.hardware.types import Gpu
    from projector.workload.workload import Workload

USUAL = parameter(1.0, kind="assumed", source="|ln(law / projected step)| within which a projection is not remarkable")
_PRECISIONS = {"fp8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4", "fp16": "fp16", "fp32": "fp32"}


def features(workload: Workload, gpu: Gpu) -> dict[str, float]:
    """Returns the sizes and switches of a run in which ln(MFU) is linear, by name."""
    model, recipe = workload.model, workload.recipe
    moe = model.moe is not None
    waves = workload.recipe.pp - 1
    micro_batches = max(workload.tokens_per_step / (recipe.seq_length * recipe.micro_batch_size), 1.0)
    sizes = {
        "constant": 1.0,
        "gpus": math.log2(workload.gpus) / 10,
        "tp": math.log2(recipe.tp),
        "pp": math.log2(recipe.pp),
        "cp": math.log2(recipe.cp),
        "ep": math.log2(recipe.ep),
        "hidden": math.log2(model.hidden_size / 4096),
        "sequence": math.log2(recipe.seq_length / 4096),
        "micro batch": math.log2(recipe.micro_batch_size),
        "bubble": math.log1p(waves * workload.gpus / (micro_batches * recipe.vpp * recipe.tp * recipe.cp * recipe.pp)),
        "peak": math.log(gpu.peak_of("bf16") / 1e15),
        "tokens": math.log2(max(workload.tokens_per_step / workload.gpus, 1.0) / 32768),
    }
    switches = {
        "moe": moe,
        "moe hidden": moe and model.hidden_size < 3072,
        "amd": gpu.vendor == "amd",
        "recompute": recipe.recompute_granularity == "full",
        "selective": recipe.recompute_granularity == "selective",
        "lora": recipe.lora is not None,
        "grouped queries": (model.num_query_groups or model.num_attention_heads) < model.num_attention_heads,
        _PRECISIONS.get(recipe.precision, "bf16"): True,
    }
    return sizes | {name: 1.0 for name, on in switches.items() if on}


def log_step(coefficients: Mapping[str, float], workload: Workload, gpu: Gpu, flops_per_step: float) -> float:
    """Returns ln(step seconds) by the law. ``flops_per_step``: of the model, as in MFU."""
    log_mfu = math.fsum(coefficients.get(name, 0.0) * x for name, x in features(workload, gpu).items())
    return math.log(flops_per_step / (workload.gpus * gpu.peak_of("bf16"))) - min(log_mfu, 0.0)


def excess(log_law: float, log_projected: float) -> float:
    """Returns by how much ln(law / projected step) lies outside ± :data:`USUAL`; 0 inside."""
    gap = log_law - log_projected
    return math.copysign(max(abs(gap) - USUAL, 0.0), gap) if abs(gap) > USUAL else 0.0


def words(excess: float) -> str:
    """Returns a sentence for an :func:`excess` that is not 0, else an empty text."""
    if not excess:
        return ""
    times, way = math.exp(abs(excess) + USUAL), "faster" if excess > 0 else "slower"
    return f"{times:.1f} times {way} than runs like it reach: check the configuration; the interval is wider for it"
