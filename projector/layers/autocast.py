"""The 16-bit copies that ``torch.autocast`` makes of fp32 weights.

Autocast casts the weight of every product. The copy stays for the input's gradient; that of a trained weight also stays
in autocast's cache until the forward ends, though its layer is replayed, and its gradient is cast back to fp32 (torch
aten/src/ATen/autocast_mode.cpp, ``cached_cast``: leaves that need a gradient). What a compiler makes of a model keeps
the copies as well, but has no cache (torch _functorch/partitioners.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from projector.layers.cross_entropy import takes_output_weight
from projector.layers.local import LayerView
from projector.operators.module import Module
from projector.operators.saved import Saved
from projector.operators.types import Stream


def with_copies(parts: Iterable[Module], view: LayerView) -> tuple[Module, ...]:
    """Returns the modules ``parts`` with the casts of their weights and the copies that stay, where there are any."""
    return tuple(_with_copy(part, view) if view.cast_weight_bytes else part for part in parts)


def _with_copy(part: Module, view: LayerView) -> Module:
    """Returns ``part`` with the copies of its matrices, but of packed ones and of one that the loss multiplies by."""
    there = {"linear": view.recipe.quant_type is None, "output": not takes_output_weight(view)}
    cast = [weight for weight in part.weights if there.get(weight.role)]
    if not cast:
        return part
    elements = sum(weight.elements for weight in cast)
    wide, copy, name = view.cast_weight_bytes * elements, view.act * elements, f"{part.name}.weight"
    back = (Stream(f"{name}_grad_cast", "cast", copy, wide, launches=len(cast)),) if view.trainable else ()
    return replace(
        part,
        forward=(Stream(f"{name}_cast", "cast", wide, copy, launches=len(cast)), *part.forward),
        backward_weight=(*part.backward_weight, *back),
        saves=(*part.saves, Saved(name, copy, cached=view.trainable and not view.compiled)),
    )
