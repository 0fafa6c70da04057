"""Recompute, sharding and schedule from free texts, as fields of ``Recipe``."""

from __future__ import annotations

import re

from projector.intake.dialect import dialect
from projector.workload.checks import CHOICES

Words = tuple[dict[str, object], str, str]
"""Recipe fields, what was assumed, and why the text cannot be expressed (each may be empty)."""


def recompute(text: str, per_op: str = "") -> Words:
    """``full block 5 layers``, ``selective ['moe_act']``, ``none (…)``, ``recompute_layer_ids [0,1]``, …

    ``per_op``: what a framework's own per-operator policy is taken for (a module name; empty: refuse it).
    """
    words = text.lower().strip()
    if words.startswith(("not stated", "null", "unknown")):
        return {}, "", ""
    if ids := re.search(r"layer_ids\s*\[([\d,\s-]*)\]", words):
        return {"recompute_granularity": "full", "recompute_layer_ids": _ids(ids[1])}, "", ""
    if count := re.search(r"recompute_num_layers\s*=?\s*(\d+)", words):
        return _layers(int(count[1]), "block"), "", ""
    if words.startswith(("none", "no ", "off", "false")):
        return {"recompute_granularity": "none"}, "", ""
    if words.startswith(("selective", "mlp modules")):
        return _selective(words, per_op)
    if words.startswith("remat_policy") and "full" not in words:
        return _policy(text)
    if words.startswith(("full", "true", "on", "remat_policy full")):
        return _full(words), "", ""
    return {}, "", f"recompute text not understood: {text!r}"


def _policy(text: str) -> Words:
    names = dialect("maxtext").tables["policies"].get(text.lower().split()[-1])
    if names is None:
        return {}, "", f"recompute policy {text!r} has no equivalent here"
    return {"recompute_granularity": "full", "recompute_saved": tuple(names)}, "", ""


def _full(words: str) -> dict[str, object]:
    found = re.search(r"full[ ,:]+(uniform|block)[ ,:]*(\d+)?", words)
    if not found:
        return {"recompute_granularity": "full"}
    return _layers(int(found[2] or 1), found[1])


def _layers(count: int, method: str) -> dict[str, object]:
    if method == "block" and count == 0:
        return {"recompute_granularity": "none"}
    return {"recompute_granularity": "full", "recompute_method": method, "recompute_num_layers": count}


def _selective(words: str, per_op: str) -> Words:
    named = [word for word in re.findall(r"[a-z_]+", words) if word in CHOICES["recompute_modules"]]
    fields: dict[str, object] = {"recompute_granularity": "selective"}
    if named:
        fields["recompute_modules"] = tuple(dict.fromkeys(named))
    elif "attention core" in words:
        fields["recompute_modules"] = ("core_attn",)
    elif re.search(r"\bop\b|per-op|mode selective|config default", words):
        if not per_op:
            return {}, "", f"per-operator recompute is not modelled: {words!r}"
        fields["recompute_modules"] = (per_op,)
        return fields, f"recompute_modules=[{per_op}] (stands for the per-operator policy of the framework)", ""
    if "sequence parallel" in words:
        fields["sequence_parallel"] = True
    return fields, "", ""


def _ids(text: str) -> tuple[int, ...]:
    ids: list[int] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, _, last = part.partition("-")
        ids += range(int(first), int(last or first) + 1)
    return tuple(ids)


def sharding(text: str) -> Words:
    """ZeRO stages, FSDP and distributed optimizers; ``FSDP2, shard 8`` also names the shard group."""
    words = text.lower().strip()
    fields: dict[str, object] = {}
    if group := re.search(r"(?:shard|over|degree)\s+(\d+)(?= gpus|\)|$)", words):
        fields["data_parallel_shard_size"] = int(group[1])
        if group[1] == "1":
            return {"data_parallel_sharding": "no_shard"}, "", ""
    if words in ("none", "0", "ddp", "no", "false") or "no_shard" in words:
        return {"data_parallel_sharding": "no_shard"}, "", ""
    if "shard_grad_op" in words or re.search(r"(?:zero|sharding)[- ]?(stage )?2|^2$", words):
        return fields | {"data_parallel_sharding": "optim_grads"}, "", ""
    if re.search(r"distributed optimizer|(?:zero|sharding)[- ]?(stage )?1|^1$|muon", words):
        muon: dict[str, object] = {"optimizer": "dist_muon"} if "muon" in words else {}
        return fields | muon | {"data_parallel_sharding": "optim"}, "", ""
    if re.search(r"fsdp|full_shard|zero[- ]?(stage )?3|^3$", words):
        return fields | {"data_parallel_sharding": "optim_grads_params"}, "", ""
    return {}, "", f"sharding text not understood: {text!r}"


_SCHEDULES: tuple[tuple[str, str], ...] = (
    (r"no pipeline|^none$", ""),
    (r"dualpipe-?v|cut-in-half", "dualpipe-v"),
    (r"dualpipe", "dualpipe"),
    (r"zbv-formatted", "zbv-formatted"),
    (r"zbv|zb-v", "zbv"),
    (r"zbb", "zbb"),
    (r"zb-?2p|zb-?h2", "zb-h2"),
    (r"zb-?1p|zb-?h1", "zb-h1"),
    (r"v-half", "v-half"),
    (r"v-min", "v-min"),
    (r"zero[- ]bubble", "zero-bubble"),
    (r"interleaved", "interleaved"),
    (r"1f1b", "1f1b"),
    (r"gpipe", "gpipe"),
    (r"circular|looped|breadth", "looped-bfs"),
)


def schedule(text: str) -> Words:
    """The pipeline schedule, with the virtual stages and the layout that the text names (``1f1b-interleaved-vpp3``)."""
    words = text.lower()
    for pattern, name in _SCHEDULES:
        if re.search(pattern, words):
            fields: dict[str, object] = {"pipeline_schedule": name} if name else {}
            if vpp := re.search(r"vpp(\d+)", words):
                fields["vpp"] = int(vpp[1])
            if layout := re.search(r"layout (\S+)", text):
                fields["pipeline_model_parallel_layout"] = layout[1]
            if "a2a overlap" in words:
                fields["overlap_moe_expert_parallel_comm"] = True
            return fields, "", ""
    return {}, "", f"pipeline schedule not understood: {text!r}"
