"""Mamba-2: one projection, a causal convolution, chunked state-space duality, a gated norm, a projection back.

Kernels of the fused path of state-spaces/mamba@e9594ce mamba_ssm/ops/triton/{ssd_combined,ssd_chunk_state,
ssd_state_passing,ssd_bmm,ssd_chunk_scan}.py, counted per token; sharding of NVIDIA/Megatron-LM@d98e8a64dd
core/ssm/mamba_mixer.py. Widths: d = heads · head width, G groups, N states, C chunk, all of one tensor-parallel rank.
"""

from __future__ import annotations

from projector.dataclass import dataclass
from projector.layers.local import LayerView
from projector.layers.recurrent import Kernels, between_exchanges, gated_norm, mixer_chain, per_rank, projection
from projector.operators.module import Module
from projector.operators.saved import Saved, Transient
from projector.operators.types import Operator
from projector.operators.weights import Weight
from projector.parameter import parameter
from projector.size import real
from projector.workload.layer_kinds import Mamba2

MAMBA = frozenset({"mamba"})
_SMALL_LAUNCHES = parameter(
    6, unit="launches", kind="derived", source="flips, cumulative sums and additions in the backward of ssd_combined"
)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes of one rank: channels d, B or C (G·N), heads, and bytes a token of the chunk states in fp32 and of C·Cᵀ."""

    inner: int
    grouped: int
    heads: int
    states: float
    squares: float

    @property
    def convolved(self) -> int:
        return self.inner + 2 * self.grouped

    @property
    def projected(self) -> int:
        return self.inner + self.convolved + self.heads


def mixer(m: Mamba2, view: LayerView) -> tuple[Module, ...]:
    """Returns the modules of the mixer, from the input norm to the residual addition."""
    heads, groups = per_rank(m.mamba_num_heads, view), per_rank(m.mamba_num_groups, view)
    inner = heads * m.mamba_head_dim
    states = 4.0 * inner * m.mamba_state_dim / m.chunk
    x = _Sizes(inner, groups * m.mamba_state_dim, heads, states, 4.0 * m.chunk * groups)
    into = projection("in_proj", x.projected, view, MAMBA)
    out = projection("out_proj", inner, view, MAMBA, into="gated_norm.out" if m.grouped_norm else "ssd.out")
    after = (gated_norm(inner, inner, view, MAMBA),) if m.grouped_norm else ()
    return mixer_chain("mamba", view, (into,), (_ssd(m, x, view), *after), out, MAMBA)


def _ssd(m: Mamba2, x: _Sizes, view: LayerView) -> Module:
    """Returns convolution and scan, one autograd function: it saves its input and its output before the gate."""
    forward, backward = between_exchanges(
        "ssd", x.projected, x.inner, 5, view, (tuple(_forward(m, x, view)), tuple(_backward(m, x, view)))
    )
    tensor = view.act * x.inner * view.tokens
    vectors = (Weight(f"ssd.{name}", x.heads, split="rows") for name in ("dt_bias", "A_log", "D"))
    return Module(
        "ssd",
        forward=forward,
        backward_input=backward,
        weights=(
            Weight("ssd.conv", x.convolved, m.conv_width, split="rows"),
            Weight("ssd.conv.bias", x.convolved, split="rows"),
            *vectors,
        ),
        saves=(
            Saved("ssd.in", view.act * x.projected * view.tokens, storage="in_proj.out", input=True),
            Saved("ssd.ungated", tensor),
        ),
        makes=(Saved("gated_norm.in" if m.grouped_norm else "ssd.out", tensor),),
        # states and their gradients of all chunks, in fp32
        backward_transient=Transient("ssd_backward", 2 * x.states * view.tokens),
        tags=MAMBA,
    )


def _all_but_scan(m: Mamba2, x: _Sizes, view: LayerView, suffix: str = "") -> list[Operator]:
    """Returns the forward without its last kernel; the backward computes these kernels anew."""
    kernel, act = Kernels("ssd", m.chunk, view), view.act
    return [
        kernel(f"conv{suffix}", act * x.convolved, act * x.convolved),
        kernel(f"cumsum{suffix}", act * x.heads, 8.0 * x.heads),
        kernel(f"states{suffix}", act * (x.inner + x.grouped), x.states, 2.0 * m.mamba_state_dim * x.inner),
        kernel(f"passing{suffix}", x.states, x.states / 2, serial="scale"),
        kernel(f"products{suffix}", 2 * act * x.grouped, x.squares, 2.0 * m.chunk * x.grouped),
    ]


def _forward(m: Mamba2, x: _Sizes, view: LayerView) -> list[Operator]:
    kernel, act = Kernels("ssd", m.chunk, view), view.act
    flops = (m.chunk + 2.0 * m.mamba_state_dim) * x.inner
    copied = [kernel("batch", act * x.projected, act * x.projected)] if view.batch > 1 else []
    scan = kernel("scan", 2 * act * x.inner + x.squares + x.states / 2, 2 * act * x.inner, flops)
    return [*copied, *_all_but_scan(m, x, view), scan]


def _backward(m: Mamba2, x: _Sizes, view: LayerView) -> list[Operator]:
    kernel, act, d = Kernels("ssd.bwd", m.chunk, view), view.act, x.inner
    inner, outer = m.chunk * real(d), 2.0 * m.mamba_state_dim * d  # products inside chunks; with their states
    return [
        *_all_but_scan(m, x, view, ".again"),
        kernel("gate", 3 * act * d, 2 * act * d),
        kernel("states", act * (d + x.grouped), x.states, outer),
        kernel("passing", x.states + x.states / 2, x.states, serial="scale"),
        kernel("x", act * (2 * d + x.grouped) + x.squares + x.states, act * d + 8.0 * x.heads, inner + outer),
        kernel("b", act * d + x.states, 4.0 * x.grouped, outer),
        kernel("c", act * d + x.states / 2, 4.0 * x.grouped, outer),
        kernel("products", 2 * act * d, x.squares, inner),
        kernel("pairs", 2 * (x.squares + act * x.grouped), 2 * act * x.grouped, 4.0 * m.chunk * x.grouped, launches=2),
        kernel("decay", 2 * act * d + x.squares, 4.0 * x.heads, inner),
        kernel("sums", 12.0 * x.heads, 12.0 * x.heads, launches=_SMALL_LAUNCHES),
        kernel("conv", 2 * act * x.convolved, act * x.convolved, launches=2),
    ]
