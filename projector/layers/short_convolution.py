"""Gated short convolution: B, C and x from one projection, a depthwise convolution of B·x, its product with C.

transformers models/lfm2/modeling_lfm2.py (``Lfm2ShortConv``); AMD-AGI/Primus@fd1eeabb lfm2_8B_A1B.yaml.
"""

from __future__ import annotations

from projector.layers.local import LayerView
from projector.layers.recurrent import Kernels, between_exchanges, mixer_chain, per_rank, projection
from projector.operators.module import Module
from projector.operators.saved import Saved
from projector.operators.weights import Weight
from projector.workload.layer_kinds import ShortConvolution

CONV = frozenset({"conv"})


def mixer(m: ShortConvolution, view: LayerView) -> tuple[Module, ...]:
    """Returns the modules of the mixer, from the input norm to the residual addition."""
    width = per_rank(view.hidden, view)
    into, out = projection("in_proj", 3 * width, view, CONV), projection("out_proj", width, view, CONV, into="conv.out")
    return mixer_chain("conv", view, (into,), (_core(m, width, view),), out, CONV)


def _core(m: ShortConvolution, width: int, view: LayerView) -> Module:
    """Returns product of two views, convolution, product with the third; both products save what they multiply."""
    kernel, row = Kernels("conv", view.recipe.seq_length, view), view.act * width
    forward = (kernel("gate_in", 2 * row, row), kernel("taps", row, row), kernel("gate_out", 2 * row, row))
    backward = (
        kernel("gate_out.bwd", 3 * row, 2 * row, launches=2),
        kernel("taps.bwd", 2 * row, row, launches=2),
        kernel("gate_in.bwd", 3 * row, 2 * row, launches=2),
        kernel("join.bwd", 3 * row, 3 * row),
    )
    before, after = between_exchanges("conv", 3 * width, width, 1, view, (forward, backward))
    return Module(
        "conv",
        forward=before,
        backward_input=after,
        weights=(Weight("conv.taps", width, m.conv_width, split="rows"),),
        saves=(
            Saved("conv.in", 3 * row * view.tokens, storage="in_proj.out", input=True),
            Saved("conv.gated", row * view.tokens),
            Saved("conv.convolved", row * view.tokens),
        ),
        makes=(Saved("conv.out", row * view.tokens),),
        tags=CONV,
    )
