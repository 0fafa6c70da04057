"""Attention residuals (Kimi K3): a sub-layer reads a softmax mixture of the running sum and of its earlier checkpoints.

One checkpoint is kept every ``attn_res_block_size`` layers. A mixer normalises its candidates, weighs them by a vector and
sums them, in fp32. AMD-AGI/Primus@fd1eeabb primus/backends/megatron/core/transformer/kimi_k3/attention_residual.py and
NVIDIA-NeMo/Megatron-Bridge@067f987df models/kimi/kimi_k3_pipeline.py; mixers are replicated over the tensor-parallel group.
"""

from __future__ import annotations

from dataclasses import replace

from projector.layers.local import LayerView
from projector.operators.module import Module, function
from projector.operators.saved import Saved
from projector.operators.weights import Weight
from projector.parameter import parameter
from projector.size import most, real

_PASSES, _LAUNCHES = parameter(
    (2.0, 1),
    unit="reads of a candidate, launches",
    kind="derived",
    source="once for the scores, once for the sum; compiled it is one kernel",
)
_EAGER, _EAGER_BACK, _EAGER_SAVED = parameter(
    ((28.0, 18.0, 4.0, 6.0, 15), (64.0, 46.0, 10.0, 4.0, 24), 8.0),
    unit="B/element of candidates read, written, of their mixture read, written, launches; B/element",
    kind="derived",
    source="operators of eager_attn_res_mix and of its gradient, one by one: candidates joined, in fp32 squared, averaged, "
    "scaled, times the vector, summed, weighed; autograd saves them in fp32, plain and scaled (AMD-AGI/Primus@a42a5280 "
    "primus/backends/megatron/core/transformer/kimi_k3/attn_res_kernels/_eager/reference.py)",
)
_BACKWARD = parameter(2.0, kind="assumed", source="reads candidates and their gradients, writes the gradients")


def with_mixture(part: Module, rows: int, view: LayerView) -> Module:
    """Returns ``part``, the norm of a sub-layer, behind the mixture that feeds it."""
    before = mixer(f"{part.name}.mix", view.model.residual_candidates, rows, view)
    return replace(
        part,
        forward=(*before.forward, *part.forward),
        backward_input=(*part.backward_input, *before.backward_input),
        weights=(*part.weights, *before.weights),
        saves=(*part.saves, *before.saves),
        makes=(*part.makes, *before.makes),
    )


def mixer(name: str, candidates: int, rows: int, view: LayerView) -> Module:
    """Returns the module that mixes ``candidates`` tensors of ``rows`` tokens into one. It saves the running sum, the
    weights, and its share of the bank of checkpoints, which is one tensor in ``attn_res_block_size`` layers."""
    elements = real(rows) * view.hidden
    all_candidates = candidates * elements
    if view.compiled:
        forward = _PASSES * view.act * all_candidates, view.act * elements, _LAUNCHES
        backward = _BACKWARD * forward[0], _BACKWARD * view.act * all_candidates, 2 * _LAUNCHES
    else:
        forward, backward = (
            (read * all_candidates + own_read * elements, write * all_candidates + own_write * elements, launches)
            for read, write, own_read, own_write, launches in (_EAGER, _EAGER_BACK)
        )
    bank = view.act * elements / most(1, view.model.attn_res_block_size)
    return function(
        name,
        1,
        forward,
        backward,
        weights=(Weight(name, 2 * view.hidden),),
        saves=(
            Saved(f"{name}.sum", view.act * elements, input=True),
            Saved(f"{name}.weights", 4.0 * candidates * rows),
            Saved(f"{name}.bank", bank, storage="residual_bank", input=True),
            *(() if view.compiled else (Saved(f"{name}.candidates", _EAGER_SAVED * all_candidates),)),
        ),
        makes=(Saved(name.removesuffix(".mix") + ".in", view.act * elements),),
    )
