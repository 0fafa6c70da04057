"""The dense feed-forward network: gated (SwiGLU) or plain (GELU, squared ReLU), and its activation kernel."""

from __future__ import annotations

from projector.layers.linear import Linear, linear
from projector.layers.local import Local
from projector.layers.norms import norm, residual, sandwich
from projector.layers.part import Part
from projector.layers.types import Stream

__all__ = ["activation", "feed_forward", "mlp"]

MLP = frozenset({"mlp"})


def mlp(lo: Local) -> tuple[Part, ...]:
    """The feed-forward half of a dense layer, from its norm to the residual addition."""
    return (
        norm("pre_mlp_norm", lo.hidden, lo.shard_tokens, lo, tags=MLP | {"layernorm"}),
        *feed_forward("", lo.model.ffn_hidden_size, lo, MLP),
        *sandwich("post_mlp_norm", lo, MLP),
        residual("mlp_residual", lo),
    )


def feed_forward(
    prefix: str, ffn_hidden_size: int, lo: Local, tags: frozenset[str], *, after_norm: bool = True
) -> tuple[Part, ...]:
    """FC1, activation and FC2 of width ``ffn_hidden_size`` split over the tensor-parallel group.

    ``after_norm``: the norm before FC1 is fused with it (not so where a router reads the normed tensor as well).
    """
    width = -(-ffn_hidden_size // lo.tp)
    gated, bias = lo.model.gated_linear_unit, lo.model.add_bias_linear
    outputs = (width,) if not gated else (2 * width,) if lo.execution.gate_up_fused else (width, width)
    fc1 = Linear(
        name=f"{prefix}fc1",
        outputs=outputs,
        inputs=lo.hidden,
        rows=lo.tokens,
        parallel="column",
        bias=bias,
        after_norm=after_norm,
        target="linear_fc1",
    )
    fc2 = Linear(
        name=f"{prefix}fc2",
        outputs=(lo.hidden,),
        inputs=width,
        rows=lo.tokens,
        parallel="row",
        bias=bias,
        target="linear_fc2",
    )
    return (linear(fc1, lo, tags), activation(f"{prefix}act", width, lo.tokens, lo, tags), linear(fc2, lo, tags))


def activation(name: str, width: int, rows: int, lo: Local, tags: frozenset[str], *, weighted: bool = False) -> Part:
    """The activation between the two linears on ``rows`` × ``width``; ``weighted``: times the router's probability.

    Gated and fused: reads gate and up, writes one tensor (6 bytes an element in bf16); backward reads the gradient and
    both saved halves and writes both gradients (10 bytes).
    """
    tensor = lo.act * width * rows
    gated = lo.model.gated_linear_unit
    alone = not (gated or weighted or lo.model.add_bias_linear)  # a GELU without bias is one kernel in eager mode, too
    fused = bool(lo.recipe.bias_activation_fusion) or lo.compiled or alone
    inputs = 2 if gated else 1
    # eager: every elementary function is its own kernel and its own round trip
    passes, launches = (1.0, 1) if fused else (2.0, (3 if gated else 2) + 2 * weighted)
    probability = 4.0 * rows if weighted else 0.0
    return Part(
        name=name,
        forward=(
            Stream(
                name=name,
                kind="activation",
                read=passes * inputs * tensor + probability,
                write=passes * tensor,
                launches=launches,
            ),
        ),
        backward_input=(
            Stream(
                name=f"{name}.bwd",
                kind="activation",
                read=passes * (1 + inputs) * tensor + probability,
                write=passes * inputs * tensor + probability,
                launches=(launches if fused else launches + 2) + weighted,
            ),
        ),
        tags=tags,
    )
