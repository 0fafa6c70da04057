"""Normalisation and the residual additions around it.

Bytes per token and element of width: a fused norm reads and writes once forward; backward reads the gradient and the
saved input and writes one gradient (Megatron-LM core/transformer/transformer_layer.py; counted from the kernels run).
"""

from __future__ import annotations

from dataclasses import replace

from projector.layers import attention_residual, hyper
from projector.layers.local import LayerView
from projector.operators.module import Module
from projector.operators.saved import Saved
from projector.operators.types import Collective, Operator, Stream, added
from projector.operators.weights import Weight
from projector.parameter import parameter

_VECTORS = {"RMSNorm": 1, "LayerNorm": 2, "NonParametricLayerNorm": 0}  # weight; weight and bias; none
_EAGER_BYTES, _EAGER_LAUNCHES = parameter(
    (34.0, 7),
    unit="B/element, launches",
    kind="assumed",
    source="bytes of the operators of an eager norm in fp32: cast up, square, mean, rsqrt, scale, cast down, weight",
)


def norm(
    name: str,
    view: LayerView,
    width: int | None = None,
    rows: int | None = None,
    *,
    branch: bool = True,
    divided: bool = True,
    reads: str = "",
    tags: frozenset[str] = frozenset(),
) -> Module:
    """Returns a norm over ``width`` of ``rows`` tokens (None: of the hidden states of the sequence-parallel shard): it saves
    its input and its statistics.

    ``branch``: its input also feeds a residual, so that backward adds two gradients. ``reads``: storage of its input
    where another module's output is that storage; its output is ``<name>.out``. ``divided``: SUMMA divides its width.
    """
    width = view.hidden if width is None else width
    rows = view.shard_tokens if rows is None else rows
    tensor = view.act * width * rows
    # a LayerNorm is one kernel everywhere (aten native_layer_norm)
    fused = view.execution.fusion.norm or view.compiled or view.model.normalization != "RMSNorm"
    if fused:
        forward = Stream(name, "norm", tensor, tensor)
        # main kernel, then the reduction of the partial weight gradients
        backward = Stream(f"{name}.bwd", "norm", 2 * tensor, tensor, launches=2)
    else:
        half = _EAGER_BYTES / 4 * tensor
        forward = Stream(name, "elementwise", half, half, launches=_EAGER_LAUNCHES)
        backward = Stream(f"{name}.bwd", "elementwise", 2 * half, 2 * half, launches=2 * _EAGER_LAUNCHES)
    backward_ops: list[Operator] = [backward]
    streams = branch and view.model.hyper_connections
    if branch and not streams:
        backward_ops.append(added(f"{name}.branch_add", tensor, folded=view.compiled))
    buffer = view.execution.data_parallel.grad_bytes
    divided = divided and view.summa
    if divided:
        width, rows = -(-width // view.tp), view.tokens
        backward_ops.insert(0, _row_statistics(f"{name}.grad_statistics", rows))
    weight = view.execution.fusion.added(f"{name}.grad_add", width, buffer, buffer) if view.trainable else ()
    # B a row, fp32: mean and deviation, or one of them
    statistics = 8.0 if view.model.normalization == "LayerNorm" else 4.0
    saves = (
        Saved(f"{name}.in", view.act * width * rows, storage=reads, input=True),
        Saved(f"{name}.statistics", statistics * rows),
    )
    part = Module(
        name,
        forward=(_row_statistics(f"{name}.statistics", rows), forward) if divided else (forward,),
        backward_input=tuple(backward_ops),
        backward_weight=weight,
        weights=vectors(name, width, view),
        saves=saves if fused else (*saves, Saved(f"{name}.upcast", 4.0 * width * rows)),
        makes=(Saved(f"{name}.out", tensor),),
        tags=tags,
    )
    if streams:
        return hyper.with_stream_sum(part, rows, view)
    return attention_residual.with_mixture(part, rows, view) if branch and view.model.attn_res_block_size else part


def _row_statistics(name: str, rows: int) -> Operator:
    """Returns the two sums of each row whose width SUMMA divides over tp, fp32 (arXiv:2410.00273, appendix)."""
    return Collective(name, "all_reduce", "tp", 8.0 * rows)


def sandwich(name: str, view: LayerView, tags: frozenset[str] = frozenset(), reads: str = "") -> tuple[Module, ...]:
    """Returns the second norm of a sub-layer, on its output, where the model has one (Gemma, Grok)."""
    return (norm(name, view, branch=False, reads=reads, tags=tags),) if view.model.sandwich_norm else ()


def vectors(name: str, width: int, view: LayerView) -> tuple[Weight, ...]:
    """Returns the weights that a normalisation over ``width`` learns."""
    number = _VECTORS.get(view.model.normalization, 1)
    return (Weight(f"{name}.weight", number * width),) if number else ()


def parallel_residual(parts: tuple[Module, ...], view: LayerView) -> tuple[Module, ...]:
    """Returns ``parts`` of a layer whose two halves read one norm and are added to the residual together (arXiv:2204.02311):
    the second norm and the first addition are gone, the gradients of both halves meet at the norm."""
    x = view.hidden_bytes
    joined = []
    for part in parts:
        if part.name in ("attn_residual", "pre_mlp_norm"):
            continue
        saves = tuple(
            saved._replace(storage="input_norm.out") if saved.storage == "pre_mlp_norm.out" else saved
            for saved in part.saves
        )
        part = replace(part, saves=saves)
        if part.name == "mlp_residual":
            part = replace(part, forward=(added("halves.add", x, folded=view.compiled), *part.forward))
        if part.name == "input_norm":
            back = added("halves.grad_add", x, folded=False)
            part = replace(part, backward_input=(back, *part.backward_input))
        joined.append(part)
    return tuple(joined)


def residual(name: str, view: LayerView, tags: frozenset[str] = frozenset(), makes: str = "") -> Module:
    """Adds the output of a sub-layer to the residual stream, on the sequence-parallel shard. ``makes``: storage of the sum.

    Compiled: one kernel with the norm that follows, which then need not read the sum again. The bias before it is added
    in the same scripted function (Megatron-LM core/fusions/fused_bias_dropout.py), by itself where nothing joins those.
    """
    if view.model.hyper_connections:
        return hyper.spread(name, view.shard_tokens, view, tags, makes or f"{name}.out")
    if view.model.attn_res_block_size:
        makes = makes.removesuffix(".in") + ".mix.sum" if makes else makes
    tensor = view.act * view.hidden * view.shard_tokens
    if view.compiled:
        op = Stream(name, "elementwise", tensor, tensor, launches=0)
    elif view.execution.fusion.residual and (view.recipe.jit_fusion or not view.model.add_bias_linear):
        op = Stream(name, "elementwise", 2 * tensor, tensor)
    else:
        op = Stream(name, "elementwise", 3 * tensor, 2 * tensor, launches=2)
    return Module(name, forward=(op,), makes=(Saved(makes or f"{name}.out", tensor),), tags=tags)
