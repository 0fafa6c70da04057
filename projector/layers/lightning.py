"""Lightning attention: linear attention with a fixed decay of each head, a norm over all heads and a sigmoid gate.

Kernels of fla-org/flash-linear-attention@bc3b101d fla/ops/simple_gla (states, output; both again backward), modules of
transformers models/minimax; context parallelism exchanges as for the other recurrences.
"""

from __future__ import annotations

from projector.layers.local import LayerView
from projector.layers.recurrent import Kernels, between_exchanges, gated_norm, mixer_chain, per_rank, projection
from projector.operators.module import Module
from projector.operators.saved import Saved
from projector.operators.types import Operator
from projector.workload.layer_kinds import Lightning

LIGHTNING = frozenset({"lightning", "attn"})


def mixer(m: Lightning, view: LayerView) -> tuple[Module, ...]:
    """Returns the modules of the mixer, from the input norm to the residual addition."""
    inner = per_rank(m.num_heads, view) * m.head_dim
    inputs = (projection("qkv", 3 * inner, view, LIGHTNING), projection("gate", inner, view, LIGHTNING))
    after = gated_norm(inner, inner, view, LIGHTNING, gate="gate.out")
    out = projection("out_proj", inner, view, LIGHTNING, into="gated_norm.out")
    return mixer_chain("lightning", view, inputs, (_core(m, inner, view), after), out, LIGHTNING)


def _core(m: Lightning, inner: int, view: LayerView) -> Module:
    """Returns the activation of queries, keys and values, and the recurrence; it saves both inputs."""
    kernel, row = Kernels("lightning", m.chunk, view), view.act * inner
    # half of two products of a chunk; a product of states
    inside, outer = (2.0 * m.chunk * inner, 2.0 * m.head_dim * inner)
    states = view.act * inner * m.head_dim / m.chunk
    forward: tuple[Operator, ...] = (
        kernel("silu", 3 * row, 3 * row),
        kernel("states", 2 * row, states, outer, serial="scale"),
        kernel("output", 3 * row + states, row, inside + outer),
    )
    backward: tuple[Operator, ...] = (
        kernel("states_again", 2 * row, states, outer, serial="scale"),
        kernel("states.bwd", 2 * row, states, outer, serial="scale"),
        kernel("output.bwd", 4 * row + 2 * states, 3 * row, 2 * inside + inside / 2 + 3 * outer, launches=2),
        kernel("silu.bwd", 6 * row, 3 * row),
    )
    forward, backward = between_exchanges("lightning", 3 * inner, inner, 1, view, (forward, backward))
    tokens = view.tokens
    return Module(
        "lightning",
        forward=forward,
        backward_input=backward,
        saves=(
            Saved("lightning.in", 3 * row * tokens, storage="qkv.out", input=True),
            Saved("lightning.qkv", 3 * row * tokens),
        ),
        makes=(Saved("gated_norm.in", row * tokens),),
        tags=LIGHTNING,
    )
