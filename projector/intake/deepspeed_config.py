"""A DeepSpeed configuration in Megatron-DeepSpeed's arguments: ZeRO stage, batch sizes, precision, offload.

DeepSpeed configuration JSON: https://www.deepspeed.ai/docs/config-json/.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from projector.errors import InputError, Problem
from projector.intake.aliases import renamings
from projector.intake.shell.unknown import MARK, Unknown, Unknowns, is_known
from projector.intake.values import section

#: Sections that change what a step does, and that nothing models.
ASIDE = (
    "compression_training",
    "progressive_layer_drop",
    "sparse_attention",
    "curriculum_learning",
    "amp",
    "elasticity",
)
#: Settings inside sections that may change seconds or bytes, that nothing models, and that are off as these.
_INSIDE: Mapping[str, tuple[str, ...]] = {
    "zero_optimization": (
        *("offload_param", "zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients"),
        *("zero_quantized_nontrainable_weights", "mics_shard_size", "mics_hierarchical_params_gather"),
    ),
    "activation_checkpointing": ("partition_activations", "cpu_checkpointing"),
    "data_types": ("grad_accum_dtype",),
    "tensor_parallel": ("autotp_size",),
}
_OFF: tuple[object, ...] = (None, 0, 1, -1, "none", {})  # as numbers; true is 1 and not off


def arguments(text: str, where: str, unknowns: Unknowns) -> tuple[dict[str, object], dict[str, tuple[Unknown, ...]]]:
    """(arguments that the JSON ``text`` states, those whose value only the run knows)."""
    if not MARK.sub("", text).strip():
        held = "; ".join(str(item) for item in unknowns.within(text)) or "an empty file"
        raise InputError([Problem(where, "", held, "a DeepSpeed configuration that the script states")])
    try:
        content = json.loads(re.sub(rf"([:\[,]\s*)({MARK.pattern})", r'\1"\2"', text))
    except (ValueError, RecursionError) as error:
        raise InputError([Problem(where, "", str(error)[:120], "a DeepSpeed configuration in JSON")]) from None
    if not isinstance(content, Mapping):
        raise InputError([Problem(where, "", type(content).__name__, "a DeepSpeed configuration in JSON")])
    zero = section(content, "zero_optimization")
    found: dict[str, object] = {name: content.get(key) for key, name in renamings("deepspeed").items()}
    found["zero_stage"] = zero.get("stage", 0)
    found["gradient_accumulation_steps"] = content.get("gradient_accumulation_steps")
    for name in ("bf16", "fp16"):
        part = content.get(name) or (content.get("bfloat16") if name == "bf16" else None)
        if isinstance(part, Mapping) and part.get("enabled") in (True, "true", "True"):
            found[name] = True
    offload = zero.get("offload_optimizer")
    if (isinstance(offload, Mapping) and offload.get("device") not in (None, "none")) or zero.get(
        "cpu_offload"
    ) is True:
        found["optimizer_cpu_offload"] = True
    found |= {name: True for name in ASIDE if '"enabled": true' in json.dumps(content.get(name)).lower()}
    found |= inside(content)
    unknown = {
        name: unknowns.within(value) for name, value in found.items() if isinstance(value, str) and not is_known(value)
    }
    known = {name: value for name, value in found.items() if name not in unknown and value not in (None, "auto")}
    return known, unknown


def inside(content: Mapping[str, object]) -> dict[str, object]:
    """Settings of sections of DeepSpeed's configuration that may change seconds or bytes and that nothing models."""
    return {
        f"{part}.{name}": value
        for part, names in _INSIDE.items()
        for name in names
        if ((value := section(content, part).get(name)) is True or value not in _OFF)
        and section({name: value}, name).get("device") != "none"
    }
