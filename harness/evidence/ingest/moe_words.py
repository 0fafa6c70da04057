"""How a mixture-of-experts row routes, dispatches and multiplies, from free texts."""

from __future__ import annotations

import re

from harness.evidence.ingest.record import Record, boolean


def moe_words(record: Record) -> dict[str, object]:
    """Recipe fields from ``moe_path``, ``grouped_gemm``, ``force_load_balancing``, ``moe_routing``, ``optimizer``."""
    return {
        **_path(record),
        **_grouped(record),
        **_balance(record),
        **_data(record),
        **_optimizer(record),
        **_flash(record),
    }


def _path(record: Record) -> dict[str, object]:
    """MaxText: ``dense_matmul, capacity_factor 2`` drops tokens above the capacity and pads up to it."""
    text = record.text("other.moe_path").lower()
    if found := re.search(r"(?:capacity_factor|cf)\s*([\d.]+)", text):
        return {"moe_expert_capacity_factor": float(found[1]), "moe_pad_expert_input_to_capacity": True}
    if "deepep" in text or "dispatch backward" in text:
        fields: dict[str, object] = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
        if found := re.search(r"moe\.py v(\d)", text):
            # the third version of that code is said to be scatter-free, each earlier one has a gather more to undo
            fields["moe_dispatch_scatter_adds"] = max(0, 3 - int(found[1]))
        return fields
    # the kernel copies between GPUs of one process; with one GPU a process the exchange falls back on the library
    peers = "1-gpu" not in record.text("other.launcher").lower()
    return {"moe_all_to_all_kernel": "one_shot"} if "one-shot" in text and peers else {}


_GROUPED = (
    (r"loop|torch_mm", "loop"),
    (r"not turbo", "multi_stream"),  # Transformer Engine's, as by default
    (r"legacy", "legacy"),
    (r"turbo|group|mega", "fused"),
    (r"\bte\b|multi", "multi_stream"),
)


def _grouped(record: Record) -> dict[str, object]:
    """Turbo runs all experts in one kernel; Transformer Engine, and legacy (Megatron-Core's GroupedMLP: AMD-AGI/Primus
    examples/moe_package/README.md, "the original multi-stream version"), one GEMM each, on streams."""
    if re.search(r"^sparse_matmul(?!.*turbo)", record.text("other.moe_path").lower()):
        return {"moe_grouped_gemm": "masked"}
    text = record.text("grouped_gemm", "other.moe").lower()
    if "dense_matmul" in text:
        return {}
    for pattern, name in _GROUPED:
        if re.search(pattern, text):
            return {"moe_grouped_gemm": name}
    return {}


def _data(record: Record) -> dict[str, object]:
    """Tokens drawn at random or read from text, which a router spreads less evenly; only text is worth packing."""
    if (mock := boolean(record.get("other.mock_data", "other.args.mock_data"))) is not None:
        return {"mock_data": mock}
    text = record.text("other.dataset").lower()
    if not text:
        return {"mock_data": False} if boolean(record.values.get("other.packing")) else {}
    return {"mock_data": bool(re.search(r"synthetic|mock|random|dummy", text))}


def _balance(record: Record) -> dict[str, object]:
    stated = record.get("other.force_load_balancing", "other.load_balancing", "other.moe_routing", "other.routing")
    if stated is None:
        real = "real routing" in str(record.values.get("other.dataset", ""))
        return {"moe_router_force_load_balancing": False} if real else {}
    if (flag := boolean(stated)) is not None:
        return {"moe_router_force_load_balancing": flag}
    text = str(stated).lower()
    if re.search(r"force-balanced|even|uniform", text):
        return {"moe_router_force_load_balancing": True}
    if re.search(r"real|natural|none", text):
        return {"moe_router_force_load_balancing": False}
    return {}


_OPTIMIZERS = ("schedule-free", "muon", "adafactor", "lion", "adam", "sgd")


def _optimizer(record: Record) -> dict[str, object]:
    text = record.text("other.optimizer", "other.args.optimizer", "optimizer").lower()
    if bits := re.search(r"(adam|lion)\w*?_?([48])[-_ ]?bit", text):
        return {"optimizer": f"{bits[1]}_{bits[2]}bit"}
    for word in _OPTIMIZERS:
        if word in text:
            return {"optimizer": {"schedule-free": "schedule_free_adamw", "muon": "dist_muon"}.get(word, word)}
    return {}


def _flash(record: Record) -> dict[str, object]:
    text = record.text("other.attention", "flash_attn").lower()
    if re.search(r"unfused|^off|dot_product", text):
        return {"attention_backend": "unfused"}
    if re.search(r"cudnn|te\b|ck fused", text):
        return {"attention_backend": "fused"}
    if numbered := re.search(r"flash[-_ ]?attention[-_ ]?([234])\b", text):
        return {"attention_backend": f"fa{numbered[1]}"}
    return {"attention_backend": "flash"} if "flash" in text or "sdpa" in text else {}
