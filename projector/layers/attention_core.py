"""Core attention on one rank without context parallelism."""

from __future__ import annotations

from dataclasses import dataclass

from projector.layers.local import Local
from projector.layers.part import Part
from projector.layers.types import Attention

__all__ = ["Heads", "attend", "core"]

# kernels of one call, (forward, backward): FlashAttention-2 and CK run dO·O, the main kernel and the conversion of dQ,
# and under grouped queries two sums of expanded dK, dV; a materialised one runs products, softmax and mask apart
_LAUNCHES = {"fa2": (1, 3), "ck": (1, 3), "fa3": (1, 3), "cudnn": (1, 2), "aiter": (1, 3), "triton": (1, 3)}
_MATERIALISED_LAUNCHES = (4, 6)
_UNFUSED_BACKENDS = ("unfused", "local", "materialised")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Query and key/value heads of one rank and their widths; ``window``: tokens seen (None: all)."""

    heads: int
    kv_heads: int
    qk: int
    v: int
    window: int | None = None

    @property
    def kv_width(self) -> int:
        """Elements of keys and values of one token."""
        return self.kv_heads * (self.qk + self.v)


def _forward(
    name: str, heads: Heads, lo: Local, *, seq_q: int, seq_k: int, causal: bool = True, batch: int = 1
) -> Attention:
    """Forward attention of ``seq_q`` queries on ``seq_k`` keys, for every sequence of the micro-batch × ``batch``."""
    materialised = lo.execution.attention_materialised or lo.recipe.attention_backend in _UNFUSED_BACKENDS
    launches = _MATERIALISED_LAUNCHES if materialised else _LAUNCHES.get(lo.execution.attention_family, (1, 3))
    return Attention(
        name=name,
        batch=lo.batch * batch,
        heads=heads.heads,
        kv_heads=heads.kv_heads,
        seq_q=seq_q,
        seq_k=seq_k,
        head_dim_qk=heads.qk,
        head_dim_v=heads.v,
        causal=causal,
        window=heads.window,
        dtype="fp8" if lo.recipe.fp8_dot_product_attention and lo.quantised else lo.dtype,
        flash=not materialised,
        launches=launches[0] * batch,
    )


def attend(
    name: str, heads: Heads, lo: Local, *, seq_q: int, seq_k: int, causal: bool = True, batch: int = 1
) -> tuple[Attention, Attention]:
    """(forward, backward) of one attention call, the backward named ``<name>.bwd``."""
    forward = _forward(name, heads, lo, seq_q=seq_q, seq_k=seq_k, causal=causal, batch=batch)
    return forward, _backward(forward, lo)


def _backward(forward: Attention, lo: Local) -> Attention:
    family = lo.execution.attention_family
    grouped_sums = 2 if family == "fa2" and forward.heads > forward.kv_heads and forward.flash else 0
    launches = _LAUNCHES.get(family, (1, 3))[1] if forward.flash else _MATERIALISED_LAUNCHES[1]
    calls = max(1, forward.batch // lo.batch)
    return Attention(
        name=f"{forward.name}.bwd",
        batch=forward.batch,
        heads=forward.heads,
        kv_heads=forward.kv_heads,
        seq_q=forward.seq_q,
        seq_k=forward.seq_k,
        head_dim_qk=forward.head_dim_qk,
        head_dim_v=forward.head_dim_v,
        causal=forward.causal,
        window=forward.window,
        dtype=forward.dtype,
        backward=True,
        flash=forward.flash,
        launches=(launches + grouped_sums) * calls,
    )


def core(heads: Heads, lo: Local, tags: frozenset[str]) -> Part:
    """Attention of whole sequences held by this rank."""
    seq = lo.recipe.seq_length
    forward, backward = attend("core_attn", heads, lo, seq_q=seq, seq_k=seq)
    return Part(name="core_attn", forward=(forward,), backward_input=(backward,), tags=tags)
