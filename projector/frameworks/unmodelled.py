"""Switches that a recipe may state and no model here reads, so that a projection says so instead of hiding it."""

from __future__ import annotations

from projector.workload.recipe import Recipe

__all__ = ["UNMODELLED", "unmodelled"]

UNMODELLED = {
    "delay_wgrad_compute": False,
    "create_attention_mask_in_dataloader": True,
}
"""Field: the value that changes nothing (the default of Megatron-LM arguments.py)."""


def unmodelled(recipe: Recipe) -> tuple[str, ...]:
    """``field=value (no effect here)`` for each such switch that ``recipe`` sets away from its default."""
    stated = ((name, getattr(recipe, name), neutral) for name, neutral in UNMODELLED.items())
    return tuple(f"{name}={value} (no effect here)" for name, value, neutral in stated if value not in (None, neutral))
