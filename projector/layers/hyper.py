"""Hyper-connections: a residual of n streams, constrained to a manifold (mHC, arXiv:2512.24880).

Before a sub-layer n streams are normalised over n·h, projected to n² + 2n numbers (fp32), brought to doubly stochastic form
by Sinkhorn-Knopp and summed to one; after it the output is spread over mixed streams. Counted from NVIDIA/Megatron-LM
core/transformer/hyper_connection.py and, unfused, transformers models/deepseek_v4 (every function a kernel in fp32).
"""

from __future__ import annotations

from dataclasses import replace

from projector.layers.local import LayerView
from projector.operators.module import Module
from projector.operators.saved import Saved
from projector.operators.types import Cost, Gemm, Operator, Stream, stream
from projector.operators.weights import Weight
from projector.parameter import parameter
from projector.size import most, real

# fused: bytes of an element of the streams, read and written, launches
_MAP, _SPREAD = parameter(
    ((4.0, 0.0, 3), (2.0, 2.0, 1)),
    unit="B/element, B/element, launches",
    kind="derived",
    source="arXiv:2512.24880 §4.3: streams read to project and to sum; read and written to mix and spread",
)
_MAP_EAGER, _SPREAD_EAGER = parameter(
    ((20.0, 12.0, 90), (18.0, 18.0, 8)),
    unit="B/element, B/element, launches",
    kind="derived",
    source="in fp32: cast, square, mean, product, sum; 1 + 2·19 reductions and divisions; outer product, cast, product "
    "of matrices, sum, cast",
)
_BACKWARD = parameter(
    2.0, kind="assumed", source="an element-wise function reads its input and a gradient and writes one"
)


def with_stream_sum(part: Module, rows: int, view: LayerView) -> Module:
    """Returns ``part``, the norm of a sub-layer, behind the sum of the streams that feeds it."""
    n, name = view.model.hyper_connections, part.name
    outputs, inputs = n * n + 2 * n, n * view.hidden
    streams = real(rows) * inputs
    op, back = _stream(f"{name}.hc", _MAP if view.execution.fusion.hyper_connections else _MAP_EAGER, streams, view)
    op, back = replace(op, write=op.write + view.hidden_bytes), replace(back, read=back.read + view.hidden_bytes)
    products = _products(f"{name}.hc", outputs, inputs, rows, view)
    return replace(
        part,
        forward=(op, products[0], *part.forward),
        backward_input=(*part.backward_input, back, products[1]),
        backward_weight=(*part.backward_weight, *products[2:]),
        weights=(*part.weights, *_mapping(f"{name}.hc", outputs, inputs)),
        saves=(*part.saves, *_kept(name, streams, view)),
        makes=(*part.makes, Saved(f"{name}.in", view.hidden_bytes)),
    )


def spread(name: str, rows: int, view: LayerView, tags: frozenset[str], makes: str) -> Module:
    """Returns the module in place of a residual addition: it mixes the streams and adds the output to all of them."""
    streams = real(rows) * view.model.hyper_connections * view.hidden
    op, back = _stream(name, _SPREAD if view.execution.fusion.hyper_connections else _SPREAD_EAGER, streams, view)
    output = Saved(f"{name}.output", view.hidden_bytes)
    mixed = Saved(makes.removesuffix(".in") + ".streams", view.act * streams)
    op = replace(op, read=op.read + view.hidden_bytes)
    return Module(name, forward=(op,), backward_input=(back,), saves=(output,), makes=(mixed,), tags=tags)


def entry(view: LayerView) -> tuple[Module, ...]:
    """Returns the embedding copied to every stream."""
    n = view.model.hyper_connections
    if not n:
        return ()
    x = view.hidden_bytes
    back = Stream("hc.entry.bwd", "elementwise", n * x, x)
    return (Module("hc.entry", forward=(Stream("hc.entry", "copy", x, n * x),), backward_input=(back,)),)


def leaving(name: str, view: LayerView) -> tuple[Module, ...]:
    """Returns the weighted sum of the streams at the end of the model."""
    n = view.model.hyper_connections
    if not n:
        return ()
    streams = real(view.shard_tokens) * n * view.hidden
    op, back = _stream(name, _MAP if view.execution.fusion.hyper_connections else _MAP_EAGER, streams, view)
    products = _products(name, n, n * view.hidden, view.shard_tokens, view)
    return (
        Module(
            name,
            forward=(op, products[0]),
            backward_input=(back, products[1]),
            backward_weight=products[2:],
            weights=_mapping(name, n, n * view.hidden, scales=1),
            saves=(Saved(f"{name}.streams", view.act * streams, input=True),),
        ),
    )


def _stream(name: str, cost: Cost, elements: float, view: LayerView) -> tuple[Stream, Stream]:
    share = view.act / 2
    op = stream(name, "elementwise", elements, (share * cost[0], share * cost[1], cost[2]))
    backward = _BACKWARD * op.read, _BACKWARD * most(op.write, share * 2.0 * elements)
    return op, replace(op, name=f"{name}.bwd", read=backward[0], write=backward[1], launches=2 * op.launches)


def _products(name: str, outputs: int, inputs: int, rows: int, view: LayerView) -> tuple[Operator, ...]:
    """Returns forward, data gradient and weight gradient of the projection, in fp32 (TF32 where there is one)."""
    forward = Gemm(name, rows, outputs, inputs, dtype="tf32", out_bytes=4.0)
    dgrad = replace(forward, name=f"{name}.dgrad", n=inputs, k=outputs, layout="NN")
    wgrad = replace(forward, name=f"{name}.wgrad", m=outputs, n=inputs, k=rows, layout="NT")
    return (forward, dgrad, wgrad) if view.trainable else (forward, dgrad)


def _mapping(name: str, outputs: int, inputs: int, scales: int = 3) -> tuple[Weight, ...]:
    """Returns the weights of the projection, its biases and the scales of its parts."""
    return (Weight(name, outputs, inputs, role="router"), Weight(f"{name}.bias", outputs + scales))


def _kept(name: str, streams: float, view: LayerView) -> tuple[Saved, ...]:
    """Returns the saved streams; without fusion their fp32 copy, too."""
    saves = (Saved(f"{name}.streams", view.act * streams, input=True),)
    return saves if view.execution.fusion.hyper_connections else (*saves, Saved(f"{name}.upcast", 4.0 * streams))
