"""Switches that a recipe may state and no model here reads, so that a projection says so instead of hiding it."""

from __future__ import annotations

from collections.abc import Mapping

from projector.workload.recipe import Recipe

__all__ = ["UNMODELLED", "unmodelled"]

UNMODELLED: Mapping[str, object] = {}
"""Field: the value that changes nothing. None at present: every field of a recipe has a mechanism."""


def unmodelled(recipe: Recipe) -> tuple[str, ...]:
    """``field=value (no effect here)`` for each such switch that ``recipe`` sets away from its default."""
    stated = ((name, getattr(recipe, name), neutral) for name, neutral in UNMODELLED.items())
    return tuple(f"{name}={value} (no effect here)" for name, value, neutral in stated if value not in (None, neutral))
