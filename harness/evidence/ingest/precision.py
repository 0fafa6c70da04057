"""The compute type of a run: what its text and its scaling recipe say, or the only one its GPU allows."""

from __future__ import annotations

from harness.evidence.ingest.fields import precision
from harness.evidence.ingest.record import Record
from projector import frameworks
from projector.hardware import catalogue

# What a framework's tables leave unsaid: BigScience's chronicles name bf16 where a run used DeepSpeed's new BF16_Optimizer.
_UNSAID = {"megatron-deepspeed": "fp16"}


def precision_of(record: Record, gpu: str, words: dict[str, object]) -> str | None:
    """The precision, its scaling recipe put into ``words``; None (and refused) where neither is stated."""
    text = record.text("precision")
    found = precision(text, gpu) if text else None
    if text and found is None:
        record.refuse(f"precision not understood: {text!r}")
    if found is not None:
        if found.assumed:
            record.assume(found.assumed)
        if found.recipe and found.name == "fp8":
            words.setdefault("fp8_recipe", found.recipe)
        if found.dpa is not None:
            words.setdefault("fp8_dot_product_attention", found.dpa)
        record.map("precision", found.name, text)
        return _scaled(found.name, words)
    if not text:
        return _assumed_precision(record, gpu)
    return None


def _scaled(name: str, words: dict[str, object]) -> str:
    """``fp8`` with the MX recipe is ``mxfp8``; 16-bit runs have no scaling recipe."""
    if name == "fp8" and words.get("fp8_recipe") == "mxfp8":
        name = "mxfp8"
    if name in ("bf16", "fp16", "fp32", "nvfp4", "mxfp4") or (name == "mxfp8" and words.get("fp8_recipe") == "mxfp8"):
        words.pop("fp8_recipe", None)
    return name


def _assumed_precision(record: Record, gpu: str) -> str | None:
    """Mixed precision on a device without 8-bit matrix units can only be 16-bit: bf16, or fp16 without bf16."""
    candidates = record.get("other.precision_candidates")
    if isinstance(candidates, list) and candidates:
        record.refuse("precision not stated (" + " or ".join(str(item) for item in candidates) + ")")
        return None
    peaks = catalogue.gpu(gpu).peak if catalogue.knows_gpu(gpu) else {}
    if peaks and not any("fp8" in name for name in peaks):
        usual = _UNSAID.get(frameworks.find(record.text("framework")) or "")
        kind = usual or ("bf16" if "bf16" in peaks else "fp16")
        why = "tables of this framework name bf16 where it is used" if usual else "16-bit types run at one rate"
        record.assume(f"precision={kind} (not stated; the GPU has no 8-bit matrix rate and {why})")
        return kind
    record.refuse("precision not stated")
    return None
