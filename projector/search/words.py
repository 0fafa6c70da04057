"""Puts a configuration into words, for tables and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SHARED = {"no_shard": "optimizer not sharded", "optim_grads": "ZeRO-2", "optim_grads_params": "FSDP"}


def brief(fields: Mapping[str, Any]) -> str:
    """Returns the sizes above 1, the micro-batch, the recompute, and what ranks shard beyond the optimizer's states."""
    again, shared = fields.get("recompute_granularity") or "none", fields.get("data_parallel_sharding") or ""
    parts = [_sizes(fields), f"mbs {fields['micro_batch_size']}", again if again != "none" else ""]
    return " ".join((*filter(None, parts), *([_SHARED[shared]] if shared.startswith("optim_") else [])))


def _sizes(fields: Mapping[str, Any]) -> str:
    sizes = [f"{name}{fields[name]}" for name in ("tp", "cp", "pp", "vpp", "ep", "etp") if fields.get(name, 1) > 1]
    if fields.get("tp2", 1) > 1:
        sizes.insert(0, f"grid of {fields['tp']}x{fields['tp2']},")
    return " ".join(sizes) or ("one GPU" if fields.get("gpus") == 1 else "data parallel")


def _stages(fields: Mapping[str, Any]) -> list[str]:
    """Returns how the layers stand on the stages, where they do not stand evenly."""
    if fields.get("pipeline_model_parallel_layout"):
        return ["uneven stages"]
    ends = {"first": "decoder_first_pipeline_num_layers", "last": "decoder_last_pipeline_num_layers"}
    counts = {end: fields[name] for end, name in ends.items() if fields.get(name)}
    ends_in_words = [f"{count} layer{'s' * (count > 1)} on the {end} stage" for end, count in counts.items()]
    counted = [part for part in ("embedding", "loss") if fields.get(f"account_for_{part}_in_pipeline_split")]
    return ends_in_words + ([f"{' and '.join(counted)} counted as layers"] if counted else [])


def words(fields: Mapping[str, Any]) -> str:
    """Returns a configuration in a few words: sizes above 1, then every field that is not at its plain value."""
    parts = [_sizes(fields), f"mbs {fields['micro_batch_size']}"]
    if fields.get("pp", 1) > 1:
        parts.append(str(fields["pipeline_schedule"]))
    if fields.get("fast_domain"):
        parts.append(f"domain {fields['fast_domain']}")
    parts += _stages(fields)
    again = fields.get("recompute_granularity")
    if again and again != "none":
        detail = fields.get("recompute_modules") or ()
        number = fields.get("recompute_num_layers") if fields.get("recompute_method") == "block" else None
        parts.append(
            f"{again} recompute" + (f" of {', '.join(detail)}" if detail else f" of {number}" if number else "")
        )
    dispatcher, sharing = (
        fields.get("moe_token_dispatcher_type"),
        _SHARED.get(fields.get("data_parallel_sharding") or ""),
    )
    layers, precision = fields.get("cpu_offloading_num_layers"), str(fields.get("precision", "bf16"))
    whole = fields.get("tp", 1) > 1 and fields.get("sequence_parallel") is False
    said = (
        ("optimizer on the host", fields.get("optimizer_cpu_offload")),
        ("modules on the host", fields.get("offload_modules")),
        (f"{layers} layers on the host", layers),
        (precision, precision != "bf16"),
        ("no sequence parallelism", whole),
        (str(fields.get("moe_flex_dispatcher_backend") or dispatcher), dispatcher),
        ("tp overlap", fields.get("tp_comm_overlap")),
        ("ep overlap", fields.get("overlap_moe_expert_parallel_comm")),
        ("reduce overlap", fields.get("overlap_grad_reduce")),
        ("gather overlap", fields.get("overlap_param_gather")),
        (str(sharing), sharing),
        ("gradients synchronised every micro-batch", fields.get("defer_fsdp_grad_sync") is False),
    )
    return ", ".join((*parts, *(text for text, holds in said if holds)))
