"""Keys and values that an earlier layer made (cross-layer attention, arXiv:2405.12981; Hunyuan-Large, arXiv:2411.02265).

isLinXu/Source-Code-Reading@ea2cac9f source/LLM/Hunyuan-Large/models/modeling_hunyuan.py (the published modeling file): a
layer hands on what its two products gave, before rotation and norms; each layer rotates and norms the keys for itself and
reads the values as they are.
"""

from __future__ import annotations

from dataclasses import replace

from projector.errors import Unsupported
from projector.layers.local import Local
from projector.operators.part import Part
from projector.operators.saved import Saved
from projector.operators.types import Stream

__all__ = ["received", "without_values"]


def received(key: int, lo: Local) -> Part:
    """Keys and values, each ``key`` elements of a token, of the layer that made them: its replay does not make them again,
    and backward adds this layer's two gradients to those that are there. Raises :class:`Unsupported` under context
    parallelism."""
    if lo.recipe.cp > 1:
        raise Unsupported("keys and values of another layer under context parallelism: no training code exchanges them")
    each = lo.act * key * lo.tokens
    add = Stream(name="shared_kv.grad_add", kind="elementwise", read=4 * each, write=2 * each, launches=2)
    reads = tuple(Saved(name=f"shared_kv.{name}", bytes=each, input=True) for name in ("k", "v"))
    makes = tuple(Saved(name=name, bytes=each) for name in ("k", "v"))
    return Part(name="shared_kv", backward_input=(add,), reads=reads, makes=makes, tags=frozenset({"attn"}))


def without_values(core: Part, lo: Local) -> Part:
    """Core attention whose values the layer that made them has saved; a narrowed copy is this layer's own."""
    if lo.recipe.fp8_dot_product_attention:
        return core
    return replace(core, saves=tuple(each for each in core.saves if each.tensor != "v"))
