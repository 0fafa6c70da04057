"""What the printed TFLOP/s prove about a run whose source leaves it open: recompute that is counted, MTP layers."""

from __future__ import annotations

from dataclasses import replace

from harness.contracts.runs import Measured
from harness.evidence.ingest.record import Record
from projector.errors import Unsupported
from projector.frameworks import flops
from projector.workload.model import Model
from projector.workload.workload import Workload

# The alternatives differ by 4 % (one MTP layer of DeepSeek-V3) to 33 % (recompute); printed figures by 0.5 % at most,
# an early BigScience estimate by 3 to 4 %.
_CLOSE = 0.05


def settle(record: Record, workload: Workload, measured: Measured, mtp_stated: bool) -> Workload:
    """The workload with its open questions answered by the source's own TFLOP/s, each answer listed as assumed.

    A framework trains multi-token prediction only when asked: without a statement or proof it is 0.
    """
    if not measured.tflops_per_gpu:
        return _without_mtp(record, workload, mtp_stated)
    options = _options(workload, mtp_stated)
    if len(options) == 1:
        return workload
    proof = _closest(options, measured)
    if proof is None:
        return _without_mtp(record, workload, mtp_stated)
    if proof.recipe != workload.recipe:
        record.assume("recompute_granularity=full (the printed TFLOP/s count it)")
    if proof.model != workload.model:
        record.assume(f"mtp_num_layers={proof.model.mtp_num_layers} (the printed TFLOP/s count them)")
    return proof


def _options(workload: Workload, mtp_stated: bool) -> list[Workload]:
    models: list[Model] = [workload.model]
    if workload.model.mtp_num_layers and not mtp_stated:
        models.append(replace(workload.model, mtp_num_layers=0))
    recipes = [workload.recipe]
    if workload.recipe.recompute_granularity is None and workload.recipe.lora is None:
        recipes.append(replace(workload.recipe, recompute_granularity="full"))
    return [replace(workload, model=model, recipe=recipe) for model in models for recipe in recipes]


def _closest(options: list[Workload], measured: Measured) -> Workload | None:
    """The option whose count is nearest to the printed one; None when none is near or they all count alike."""
    printed, seconds = measured.tflops_per_gpu, measured.step_seconds
    if not printed or not seconds or any("TFLOP" in text for text in measured.derived):
        return None
    try:
        off = [abs(flops.tflops_per_gpu(option, seconds) / printed - 1) for option in options]
    except Unsupported:
        return None
    best = min(range(len(options)), key=lambda i: off[i])
    return options[best] if off[best] < _CLOSE and max(off) - off[best] > 1e-6 else None


def _without_mtp(record: Record, workload: Workload, mtp_stated: bool) -> Workload:
    if mtp_stated or not workload.model.mtp_num_layers:
        return workload
    record.assume("mtp_num_layers=0 (not stated)")
    return replace(workload, model=replace(workload.model, mtp_num_layers=0))
