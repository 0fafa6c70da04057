"""Keys and values that an earlier layer made (cross-layer attention, arXiv:2405.12981; Hunyuan-Large, arXiv:2411.02265).

isLinXu/Source-Code-Reading@ea2cac9f source/LLM/Hunyuan-Large/models/modeling_hunyuan.py (the published modeling file): a
layer hands on what its two products gave, before rotation and norms; each layer rotates and norms the keys for itself and
reads the values as they are. The last layers of Gemma 3n (``num_kv_shared_layers``) read both after norm and rotation.
"""

from __future__ import annotations

from dataclasses import replace

from projector.errors import Unsupported
from projector.layers.local import Local
from projector.operators.part import Part
from projector.operators.saved import Saved
from projector.operators.types import Stream
from projector.operators.weights import Weight


def received(key: int, lo: Local) -> Part:
    """Keys and values, each ``key`` elements of a token, of the layer that made them: its replay does not make them again,
    and backward adds this layer's two gradients to those that are there. Raises :class:`Unsupported` under context
    parallelism."""
    if lo.recipe.cp > 1:
        raise Unsupported("keys and values of another layer under context parallelism: no training code exchanges them")
    each = lo.act * key * lo.tokens
    add = Stream("shared_kv.grad_add", "elementwise", 4 * each, 2 * each, launches=2)
    reads = tuple(Saved(f"shared_kv.{name}", each, input=True) for name in ("k", "v"))
    makes = tuple(Saved(name, each) for name in ("k", "v"))
    return Part("shared_kv", backward_input=(add,), reads=reads, makes=makes, tags=frozenset({"attn"}))


def without_shared(core: Part, lo: Local) -> Part:
    """Core attention whose values, and keys if they are shared after their rotation, the layer that made them has saved; a
    narrowed copy is this layer's own."""
    if lo.recipe.fp8_dot_product_attention:
        return core
    shared = ("k", "v") if lo.model.num_kv_shared_layers else ("v",)
    return replace(core, saves=tuple(each for each in core.saves if each.tensor not in shared))


def unused(key: int, lo: Local) -> tuple[Part, ...]:
    """Products of keys and values that no layer uses, but that are trained along: Gemma 3n's layers hold them
    (huggingface/transformers@00aa0f5d models/gemma3n/modeling_gemma3n.py, ``Gemma3nTextAttention``)."""
    if not lo.model.num_kv_shared_layers:
        return ()
    weight = Weight("unused_kv", 2 * key, lo.hidden, role="linear", split="rows")
    return (Part("unused_kv", weights=(weight,)),)
