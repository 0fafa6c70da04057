"""What 8-bit core attention adds around its kernels: casts, and narrower context-parallel messages.

NVIDIA/TransformerEngine@d0067d0da pytorch/attention/dot_product_attention: queries, keys and values are joined and cast as
one tensor (utils.py ``combine_and_quantize``, ``combine_and_dequantize``), the gradient of the output as another. Under
delayed scaling the kernels write 8 bits, which are widened for the linears around (backends.py ``FusedAttnFunc``); under
current scaling they write 16. MXFP8 casts each tensor in both directions, behind the exchange between ranks; any other
recipe in front of it, so that messages carry 8 bits (context_parallel.py). NVFP4 leaves attention to current scaling.
"""

from __future__ import annotations

from dataclasses import replace

from projector.layers.local import Local
from projector.layers.quantise import cast
from projector.operators.part import Part
from projector.operators.types import Stream
from projector.size import real


def _eight_bit(lo: Local) -> bool:
    return bool(lo.recipe.fp8_dot_product_attention) and lo.quantised


def _delayed(lo: Local) -> bool:
    return _eight_bit(lo) and lo.cast_recipe == "delayed"


def sent(lo: Local) -> float:
    """Bytes of an element of Q, K, V and the output's gradient in a message."""
    return 1.0 if _eight_bit(lo) and lo.cast_recipe != "mxfp8" else lo.act


def received(lo: Local) -> float:
    """Bytes of an element of the output and the gradients of Q, K, V in a message."""
    return 1.0 if _delayed(lo) else lo.act


def quantised(part: Part, inputs: int, outputs: int, lo: Local) -> Part:
    """``part``, whose Q, K, V have ``inputs`` elements on this rank and whose output ``outputs``, with its casts."""
    if not _eight_bit(lo):
        return part
    return replace(
        part,
        forward=(
            *_joined("core_attn.join", inputs, lo),
            *_narrowed("core_attn.cast", inputs, lo),
            *part.forward,
            *_widened("core_attn.out_widen", outputs, lo),
        ),
        backward_input=(
            *_narrowed("core_attn.grad_cast", outputs, lo),
            *part.backward_input,
            *_widened("core_attn.grad_widen", inputs, lo),
        ),
    )


def _joined(name: str, elements: int, lo: Local) -> tuple[Stream, ...]:
    if lo.cast_recipe == "mxfp8":
        return ()
    return (Stream(name=name, kind="copy", read=lo.act * elements, write=lo.act * elements),)


def _narrowed(name: str, elements: int, lo: Local) -> tuple[Stream, ...]:
    """Attention reads one orientation alone; current scaling passes over the tensor once more, for its maximum."""
    if lo.cast_recipe == "mxfp8":
        return cast(name, elements, lo)
    once = Stream(name=name, kind="cast", read=lo.act * elements, write=real(elements))
    return (once,) if _delayed(lo) else (replace(once, read=2 * once.read, launches=3),)


def _widened(name: str, elements: int, lo: Local) -> tuple[Stream, ...]:
    if not _delayed(lo):
        return ()
    return (Stream(name=name, kind="cast", read=real(elements), write=lo.act * elements),)
