"""What every set of fusions says."""

from __future__ import annotations

from dataclasses import dataclass

from projector.mechanisms.strategy import Strategy

__all__ = ["Fusion"]


@dataclass(frozen=True, kw_only=True)
class Fusion(Strategy):
    """``qkv``, ``gate_up``: one product makes queries, keys and values; gate and up. ``norm``, ``residual``: one kernel
    a norm; residual additions inside others. ``elementwise``: a compiler joins element-wise neighbours.
    ``attention_materialised``: scores lie in memory. ``eager_ring``: partial results of ring attention merged in fp32
    by elementary kernels, heads expanded. ``cp_a2a_keeps_output``: attention's output saved before *and* after the
    context parallel all-to-all (TE >= 2.8).

    ``wgrad_accumulation``: how a weight gradient reaches the gradient buffer: ``fused`` | ``separate`` | ``none``.
    ``dummy_wgrad``: placeholders cached per weight shape by fused accumulation: ``none`` | ``dense`` | ``all``.
    ``expert_gemm_split``: gate and up of experts are two grouped products. ``expert_bias``: of experts inside other
    kernels, else added expert by expert and concatenated again. ``loss``: cross-entropy where the recipe names none:
    ``unfused`` | ``native`` | ``te`` | ``fp32`` | ``linear``. ``loss_compiled``: ``fp32`` keeps no fp32 copies of the
    logits.
    """

    qkv: bool = True
    gate_up: bool = True
    norm: bool = True
    residual: bool = True
    elementwise: bool = False
    attention_materialised: bool = False
    eager_ring: bool = False
    cp_a2a_keeps_output: bool = True
    wgrad_accumulation: str = "fused"
    dummy_wgrad: str = "all"
    expert_gemm_split: bool = False
    expert_bias: bool = True
    loss: str = "unfused"
    loss_compiled: bool = False
