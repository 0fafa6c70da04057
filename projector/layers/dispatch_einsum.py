"""Dispatch by one-hot masks: tokens reach fixed expert slots through dense products instead of gathers.

The capacity path of GShard-style implementations (Lepikhin et al. 2020, arXiv:2006.16668 §3.2; AI-Hypercomputer/maxtext
MaxText/layers/moe.py, ``capacity_factor`` > 0): dispatch is slots[E·C, h] = mask[S, E·C]ᵀ · x[S, h] for every sequence,
combine its transpose with the routing weights in the mask. Each costs 2·S·(E·C)·h FLOP a sequence, which grows with the
square of the sequence length and exceeds the experts' own products for long ones.
"""

from __future__ import annotations

from projector.layers.local import Local
from projector.layers.part import Part
from projector.layers.routing import Routed
from projector.layers.types import Collective, Gemm, Stream

__all__ = ["einsum_dispatch_combine"]

MOE = frozenset({"moe"})


def einsum_dispatch_combine(r: Routed, lo: Local) -> tuple[tuple[Part, ...], Part]:
    """(dispatch, combine) of an expert layer whose slots are filled by mask products."""
    sequences = max(1, lo.recipe.micro_batch_size)
    length, slots = r.tokens // sequences, r.sent // sequences

    def product(name: str, m: int, n: int, k: int, layout: str) -> Gemm:
        return Gemm(name=name, m=m, n=n, k=k, batch=sequences, dtype="bf16", layout=layout, out_bytes=lo.act)

    mask = lo.act * sequences * length * slots
    dispatch = Part(
        name="moe.dispatch",
        forward=(
            Stream(name="moe.mask", kind="elementwise", read=mask, write=2 * mask, launches=6),
            product("moe.mask_in", slots, lo.hidden, length, "TN"),
            *_exchange("moe.dispatch", r, lo),
        ),
        backward_input=(
            *_exchange("moe.dispatch.bwd", r, lo),
            product("moe.mask_in.dgrad", length, lo.hidden, slots, "NN"),
        ),
        tags=MOE,
    )
    combine = Part(
        name="moe.combine",
        forward=(*_exchange("moe.combine", r, lo), product("moe.mask_out", length, lo.hidden, slots, "TN")),
        backward_input=(
            product("moe.mask_out.dgrad", slots, lo.hidden, length, "NN"),
            product("moe.mask_out.weights", length, slots, lo.hidden, "NN"),
            Stream(name="moe.mask.bwd", kind="elementwise", read=2 * mask, write=mask, launches=4),
            *_exchange("moe.combine.bwd", r, lo),
        ),
        tags=MOE,
    )
    return (dispatch,), combine


def _exchange(name: str, r: Routed, lo: Local) -> tuple[Collective, ...]:
    if lo.recipe.ep == 1:
        return ()
    return (Collective(name=name, kind="all_to_all", group="ep", bytes=lo.act * lo.hidden * r.sent),)
