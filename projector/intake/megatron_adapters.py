"""Low-rank adapters as Primus' fine-tuning of Megatron-LM words them."""

from __future__ import annotations

from collections.abc import Mapping

from projector.intake.values import Reader

#: What is adapted where nothing says (AMD-AGI/Primus@fd1eeabb primus/backends/megatron/peft/lora.py; Megatron-Bridge alike).
LORA_TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")


def adapters(args: Reader) -> dict[str, object]:
    """Adapters of Primus' SFT trainer (primus/configs/modules/megatron/sft_trainer.yaml)."""
    given = args.raw("lora")
    if not isinstance(given, Mapping) or not given.get("enabled", True) or not given:
        return {}
    targets = given.get("target_modules") or LORA_TARGETS
    names = [str(item) for item in targets] if isinstance(targets, (list, tuple)) else [str(targets)]
    switches = {key: given[key] for key in ("share_expert_adapters", "normalize_moe_lora") if key in given}
    return {"lora": {"dim": given.get("dim", 32), "targets": names, **switches}}
