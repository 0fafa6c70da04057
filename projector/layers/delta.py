"""Gated delta rule: Gated DeltaNet (a decay of every head) and Kimi Delta Attention (a decay of every channel).

Kernels of fla-org/flash-linear-attention@bc3b101d fla/ops/{gated_delta_rule,kda}/chunk.py, counted per token and head;
modules of NVIDIA/Megatron-LM@d98e8a64dd core/ssm/gated_delta_net and AMD-AGI/Primus@fd1eeabb kimi_delta_attention.py.
"""

from __future__ import annotations

from projector.dataclass import dataclass
from projector.layers.linear import Linear, linear
from projector.layers.local import LayerView
from projector.layers.recurrent import Kernels, between_exchanges, gated_norm, mixer_chain, per_rank, projection
from projector.operators.module import Module
from projector.operators.saved import Saved
from projector.operators.types import Operator
from projector.operators.weights import Weight
from projector.parameter import parameter
from projector.workload.layer_kinds import GatedDeltaNet, KimiDelta

DELTA = frozenset({"gdn", "attn"})
_PASSES = parameter(
    (12.0, 26.0),
    kind="derived",
    source="passes over bf16 tensors as wide as a head: k, w, u, new values, q, output forward; the same anew and their "
    "gradients backward (fla/ops/gated_delta_rule/chunk.py)",
)
_SMALL = parameter(4, unit="launches", kind="derived", source="two additions, gate and reverse sum of the backward")


@dataclass(frozen=True, slots=True)
class _Rule:
    """A delta rule on one rank: heads of values, widths of a key and a value head, chunk, and bytes of the decays of a
    token; ``channels``, ``taps``: of the convolutions."""

    heads: int
    key: int
    value: int
    chunk: int
    decay: float
    channels: int
    taps: int

    @property
    def flops(self) -> float:
        """Returns the FLOP of one token in forward: scores, triangular inverse, w and u, states, output."""
        c, k, v = self.chunk, self.key, self.value
        return 2.0 * self.heads * (3 * c * k + 2 * c * v + 3 * k * v + c * c / 3)


def gated(m: GatedDeltaNet, view: LayerView) -> tuple[Module, ...]:
    """Returns a Gated DeltaNet layer's mixer, from its norm to its residual."""
    heads, keys = per_rank(m.linear_num_value_heads, view), per_rank(m.keys, view)
    values = heads * m.linear_value_head_dim
    conv = m.linear_conv_kernel_dim
    rule = _Rule(heads, m.linear_key_head_dim, m.linear_value_head_dim, m.chunk, 8.0 * heads, 2 * keys + values, conv)
    width = 2 * keys + 2 * values + 2 * heads
    vectors = tuple(Weight(f"delta.{name}", heads, split="rows") for name in ("A_log", "dt_bias"))
    core = _core(rule, width, (("in_proj", rule.channels),), vectors, view)
    after = gated_norm(values, m.linear_value_head_dim, view, DELTA, gate="delta.z")
    out = projection("out_proj", values, view, DELTA, into="gated_norm.out")
    return mixer_chain("gdn", view, (projection("in_proj", width, view, DELTA),), (core, after), out, DELTA)


def kimi(m: KimiDelta, view: LayerView) -> tuple[Module, ...]:
    """Returns a Kimi Delta Attention layer's mixer, from its norm to its residual."""
    heads, keys = per_rank(m.num_heads, view), per_rank(m.keys, view)
    values, decays = heads * m.value, heads * m.head_dim
    channels, gate_width = 2 * keys + values, (m.gate_rank or 0) if m.fused else 0
    # decays of every channel: what enters the gate in 16 bits, and their sums in fp32
    rule = _Rule(heads, m.head_dim, m.value, m.chunk, (view.act + 4.0) * decays, channels, m.conv_width)
    core_inputs: tuple[tuple[str, int], ...]
    if m.fused:
        width = channels + m.value + gate_width + heads
        inputs, core_inputs = [projection("in_proj", width, view, DELTA)], (("in_proj", width),)
    else:
        core_inputs = (("q_proj", keys), ("k_proj", keys), ("v_proj", values))
        inputs = [projection(name, width, view, DELTA) for name, width in (*core_inputs, ("b_proj", heads))]
    inputs += _low_rank("f", m.value, decays, view, fused=m.fused)
    if m.gate_rank:
        inputs += _low_rank("g", m.gate_rank, values, view, fused=m.fused, bias=m.gate_bias)
    else:
        inputs.append(projection("g_proj", values, view, DELTA))
    vectors = (Weight("delta.A_log", heads, split="rows"), Weight("delta.dt_bias", decays, split="rows"))
    core = _core(rule, channels + decays + heads, core_inputs, vectors, view)
    after = gated_norm(values, m.value, view, DELTA, gate="g_b.out" if m.gate_rank else "g_proj.out")
    out = projection("out_proj", values, view, DELTA, into="gated_norm.out")
    return mixer_chain("kda", view, inputs, (core, after), out, DELTA)


def _low_rank(name: str, rank: int, width: int, view: LayerView, *, fused: bool, bias: bool = False) -> list[Module]:
    """Returns a projection through ``rank``. Its first half is whole on every rank, on its shard of the sequence,
    unless it is a part of the one input projection (``fused``)."""
    reads = "in_proj.out" if fused else f"{name}_a.out"
    up = Linear(f"{name}_b", (width,), rank, view.tokens, "column", bias=bias, reads=reads)
    if fused:
        return [linear(up, view, DELTA)]
    down = Linear(f"{name}_a", (rank,), view.hidden, view.shard_tokens, reads="input_norm.out")
    return [linear(down, view, DELTA), linear(up, view, DELTA)]


def _core(
    rule: _Rule, width: int, inputs: tuple[tuple[str, int], ...], vectors: tuple[Weight, ...], view: LayerView
) -> Module:
    """Returns convolution, norms of queries and keys, gates, and the rule. ``width``: elements of a token that
    exchanges of sequence for heads carry; ``inputs``: projections that it reads, and their elements of a token."""
    values = rule.heads * rule.value
    forward, backward = between_exchanges(
        "delta", width, values, 1, view, (_forward(rule, view), _backward(rule, view))
    )
    token = view.tokens
    saved_sizes = {
        "delta.convolved": view.act * rule.channels,
        "delta.qk": 2 * view.act * rule.heads * rule.key,
        "delta.v": view.act * values,
        "delta.decay": rule.decay + 4.0 * rule.heads,
        "delta.inverse": view.act * rule.chunk * rule.heads,
    }
    return Module(
        "delta",
        forward=forward,
        backward_input=backward,
        weights=(Weight("delta.conv", rule.channels, rule.taps, split="rows"), *vectors),
        saves=(
            *(
                Saved(f"delta.{name}", view.act * size * token, storage=f"{name}.out", input=True)
                for name, size in inputs
            ),
            *(Saved(name, size * token) for name, size in saved_sizes.items()),
        ),
        makes=(Saved("gated_norm.in", view.act * values * token), Saved("delta.z", view.act * values * token)),
        tags=DELTA,
    )


def _shared(rule: _Rule, view: LayerView) -> tuple[float, float, float]:
    """Returns the bytes of a token: q and k of all heads, the scores of chunks, the states of chunks in 16 bits."""
    qk = 2 * view.act * rule.heads * rule.key
    return qk, view.act * rule.chunk * rule.heads, view.act * rule.heads * rule.key * rule.value / rule.chunk


def _forward(rule: _Rule, view: LayerView) -> tuple[Operator, ...]:
    kernel, act = Kernels("delta", rule.chunk, view), view.act
    qk, scores, states = _shared(rule, view)
    half = _PASSES[0] / 2 * act * rule.heads * (rule.key + rule.value) / 2
    c, k, v = rule.chunk, rule.key, rule.value
    step = 4.0 * rule.heads * k * v
    return (
        kernel("conv", act * rule.channels, act * rule.channels),
        kernel("qk_norm", qk, qk),
        kernel("gates", rule.decay, rule.decay + 4.0 * rule.heads, launches=2),
        kernel("intra", half / 2 + scores, half + scores, 2.0 * rule.heads * (2 * c * k + c * v + c * c / 3)),
        kernel("states", half / 2, half / 2 + states, step, serial="product"),
        kernel("output", half + states, act * rule.heads * v, 2.0 * rule.heads * (k * v + c * k + c * v)),
    )


def _backward(rule: _Rule, view: LayerView) -> tuple[Operator, ...]:
    kernel, act = Kernels("delta.bwd", rule.chunk, view), view.act
    qk, scores, states = _shared(rule, view)
    half = _PASSES[1] / 2 * act * rule.heads * (rule.key + rule.value) / 2
    k, v = rule.key, rule.value
    step = 4.0 * rule.heads * k * v
    return (
        kernel("again", half / 4 + scores, half / 4, rule.flops / 3),
        kernel("states_again", half / 8, half / 8 + states, step, serial="product"),
        kernel("local", half / 8 + scores, half / 8, rule.flops / 4),
        kernel("states", half / 4, half / 8 + states, step + step / 2, serial="product"),
        kernel("qkw", half / 4 + 2 * states, half / 4, rule.flops),
        kernel("intra", half / 4 + scores, half / 4, rule.flops),
        kernel("gates", 2 * rule.decay, rule.decay, launches=_SMALL),
        kernel("qk_norm", 2 * qk, qk),
        kernel("conv", 2 * act * rule.channels, act * rule.channels, launches=2),
    )
