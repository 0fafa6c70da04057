"""Mamba-1: a projection, a causal convolution, step sizes and states of each token, the selective scan, a projection back.

state-spaces/mamba@01887ed7 mamba_ssm/ops/selective_scan_interface.py (``MambaInnerFn``: the backward makes the
convolution and the step sizes anew), csrc/selective_scan (a program a sequence and channel, 2048 tokens a step, state after
state); with norms transformers models/jamba/modeling_jamba.py, whose parts are functions of their own. Tensor parallelism
splits channels: the product that reads them all is summed over it (vLLM model_executor/layers/mamba/mamba_mixer.py).
"""

from __future__ import annotations

from dataclasses import replace

from projector.errors import Unsupported
from projector.layers.linear import Linear, linear
from projector.layers.local import LayerView
from projector.layers.norms import norm
from projector.layers.recurrent import Kernels, mixer_chain, per_rank, projection
from projector.operators.module import Module
from projector.operators.saved import Saved
from projector.operators.types import Collective, Operator
from projector.operators.weights import Weight
from projector.parameter import parameter
from projector.workload.layer_kinds import Mamba1

MAMBA = frozenset({"mamba"})
_CHUNK = parameter(
    2048, unit="tokens", kind="derived", source="128 threads of 16 (csrc/selective_scan, kNThreads, kNItems)"
)
_FLOPS, _BACKWARD = parameter(
    (9.0, 2.5),
    unit="FLOP/state, times",
    kind="derived",
    source="state-spaces/mamba benchmarks of the selective scan: 9·B·L·D·N forward; backward: the states anew, gradients of "
    "step, input, B and C",
)


def mixer(m: Mamba1, view: LayerView) -> tuple[Module, ...]:
    """Returns the modules of the mixer, from the input norm to the residual addition."""
    if view.recipe.cp > 1:
        raise Unsupported("context parallelism of a selective scan: no training code divides its sequence")
    d, narrow = per_rank(m.inner, view), m.dt_rank + 2 * m.state_dim
    sizes = (("dt_norm", m.dt_rank), ("b_norm", m.state_dim), ("c_norm", m.state_dim)) if m.norms else ()
    makes = tuple((f"{name}.in", width) for name, width in sizes)
    x_proj = Linear("x_proj", (narrow,), d, view.tokens, reads="mamba_conv.out", makes=makes)
    dt_proj = Linear(
        "dt_proj", (d,), m.dt_rank, view.tokens, bias=True, reads="dt_norm.out" if m.norms else "x_proj.out"
    )
    steps = _marked_split(linear(dt_proj, view, MAMBA), "rows")
    if not m.norms:
        # neither the convolution's output nor the step sizes are kept: the backward makes both again
        again = (replace(op, name=f"{op.name}.again") for op in steps.forward)
        steps = replace(steps, backward_input=(*again, *steps.backward_input), makes=())
    inner = (
        _convolution(m, d, view),
        _with_sums(_marked_split(linear(x_proj, view, MAMBA), "columns"), narrow, view, kept=m.norms),
        *(norm(name, view, width, view.tokens, branch=False, tags=MAMBA) for name, width in sizes),
        steps,
        _scan(m, d, view),
    )
    out = projection("out_proj", d, view, MAMBA, into="mamba_scan.out")
    if not m.norms:  # the scan's backward makes the gated output again
        out = replace(out, saves=tuple(saved for saved in out.saves if saved.storage != "mamba_scan.out"))
    return mixer_chain("mamba", view, (projection("in_proj", 2 * d, view, MAMBA),), inner, out, MAMBA)


def _marked_split(part: Module, side: str) -> Module:
    """Marks matrix and bias as cut over tp on ``side``; their messages stand elsewhere."""
    return replace(part, weights=tuple(replace(weight, split=side) for weight in part.weights))


def _with_sums(part: Module, width: int, view: LayerView, *, kept: bool) -> Module:
    """Adds the sum over the channels of all ranks, forward, and the sum of the gradients that they make, backward."""
    part = part if kept else replace(part, saves=(), makes=(Saved("x_proj.out", view.act * width * view.tokens),))
    if view.tp == 1:
        return part
    nbytes = view.act * width * view.tokens
    reduce, reduce_gradient = (
        Collective(f"x_proj.{suffix}", "all_reduce", "tp", nbytes) for suffix in ("ar", "grad_ar")
    )
    return replace(part, forward=(*part.forward, reduce), backward_input=(reduce_gradient, *part.backward_input))


def _convolution(m: Mamba1, d: int, view: LayerView) -> Module:
    kernel, row = Kernels("mamba_conv", _CHUNK, view), view.act * d
    forward: tuple[Operator, ...] = (kernel("fwd", row, row),)
    again = () if m.norms else (kernel("again", row, row),)
    return Module(
        "mamba_conv",
        forward=forward,
        backward_input=(*again, kernel("bwd", 2 * row, row, launches=2)),
        weights=(
            Weight("mamba_conv.weight", d, m.conv_width, split="rows"),
            Weight("mamba_conv.bias", d, split="rows"),
        ),
        saves=(Saved("mamba_conv.in", 2 * row * view.tokens, storage="in_proj.out", input=True),),
        makes=(Saved("mamba_conv.out", row * view.tokens),),
        tags=MAMBA,
    )


def _scan(m: Mamba1, d: int, view: LayerView) -> Module:
    """Returns the scan with step sizes, skip and gate; it saves its inputs, its output before the gate, chunk states."""
    kernel, row, states = Kernels("mamba_scan", _CHUNK, view), view.act * d, view.act * m.state_dim
    work, steps, token = _FLOPS * d * m.state_dim, m.state_dim, view.tokens
    forward = kernel("fwd", 3 * row + 2 * states, 2 * row, work, serial="element")
    backward = kernel("bwd", 6 * row + 2 * states, 4 * row + 8.0 * m.state_dim, _BACKWARD * work, serial="element")
    forward, backward = (replace(op, steps=op.steps * steps) for op in (forward, backward))
    vectors = (Weight("mamba_scan.A_log", d, m.state_dim, split="rows"), Weight("mamba_scan.D", d, split="rows"))
    saved_sizes = {"mamba_scan.ungated": row, "mamba_scan.states": 8.0 * d * m.state_dim / _CHUNK}
    reads = {"in_proj.out": 2 * row, "x_proj.out": view.act * (m.dt_rank + 2 * m.state_dim)}
    if m.norms:
        reads = {"in_proj.out": 2 * row, "mamba_conv.out": row, "dt_proj.out": row}
        reads |= {"b_norm.out": states, "c_norm.out": states}
    return Module(
        "mamba_scan",
        forward=(forward,),
        backward_input=(backward,),
        weights=vectors,
        saves=(
            *(Saved(f"mamba_scan.{name}", size * token, storage=name, input=True) for name, size in reads.items()),
            *(Saved(name, size * token) for name, size in saved_sizes.items()),
        ),
        makes=(Saved("mamba_scan.out", row * token),),
        tags=MAMBA,
    )
