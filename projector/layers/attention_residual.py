"""Attention residuals (Kimi K3): a sub-layer reads a softmax mixture of the running sum and of earlier checkpoints of it.

One checkpoint is kept every ``attn_res_block_size`` layers. A mixer normalises its candidates, weighs them by a vector and
sums them, in fp32. AMD-AGI/Primus@fd1eeabb primus/backends/megatron/core/transformer/kimi_k3/attention_residual.py and
NVIDIA-NeMo/Megatron-Bridge@067f987df models/kimi/kimi_k3_pipeline.py; mixers are replicated over the tensor-parallel group.
"""

from __future__ import annotations

from dataclasses import replace

from projector.layers.local import Local
from projector.operators.part import Part
from projector.operators.saved import Saved
from projector.operators.types import Stream
from projector.operators.weights import Weight
from projector.parameter import parameter

_PASSES, _LAUNCHES = parameter(
    (2.0, 1),
    unit="reads of a candidate, launches",
    kind="derived",
    source="once for the scores, once for the sum; compiled it is one kernel",
)
_EAGER_BYTES, _EAGER_LAUNCHES = parameter(
    ((14.0, 12.0), 9),
    unit="B/element read and written, launches",
    kind="derived",
    source="in fp32: cast, square and mean, scale, product with the vector, softmax, product with the weights, sum",
)
_BACKWARD = parameter(2.0, kind="assumed", source="reads candidates and their gradients, writes the gradients")


def mixed(part: Part, rows: int, lo: Local) -> Part:
    """``part``, the norm of a sub-layer, behind the mixture that feeds it."""
    before = mixer(f"{part.name}.mix", lo.model.residual_candidates, rows, lo)
    return replace(
        part,
        forward=(*before.forward, *part.forward),
        backward_input=(*part.backward_input, *before.backward_input),
        weights=(*part.weights, *before.weights),
        saves=(*part.saves, *before.saves),
        makes=(*part.makes, *before.makes),
    )


def mixer(name: str, candidates: int, rows: int, lo: Local) -> Part:
    """Of ``candidates`` tensors of ``rows`` tokens one. It saves the running sum, the weights, and of the bank, which is one
    tensor in ``attn_res_block_size`` layers, its share."""
    elements = float(rows) * lo.hidden
    if lo.compiled:
        read, write, launches = _PASSES * lo.act * candidates * elements, lo.act * elements, _LAUNCHES
    else:
        share = candidates * elements * lo.act / 2
        read, write, launches = _EAGER_BYTES[0] * share, _EAGER_BYTES[1] * share, _EAGER_LAUNCHES
    back = lo.act * candidates * elements
    bank = lo.act * elements / max(1, lo.model.attn_res_block_size)
    return Part(
        name=name,
        forward=(Stream(name=name, kind="elementwise", read=read, write=write, launches=launches),),
        backward_input=(
            Stream(
                name=f"{name}.bwd",
                kind="elementwise",
                read=_BACKWARD * read,
                write=_BACKWARD * max(write, back),
                launches=2 * launches,
            ),
        ),
        weights=(Weight(name=name, rows=2 * lo.hidden),),
        saves=(
            Saved(name=f"{name}.sum", bytes=lo.act * elements, input=True),
            Saved(name=f"{name}.weights", bytes=4.0 * candidates * rows),
            Saved(name=f"{name}.bank", storage="residual_bank", bytes=bank, input=True),
        ),
        makes=(Saved(name=name.removesuffix(".mix") + ".in", bytes=lo.act * elements),),
    )
