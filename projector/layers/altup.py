"""Alternating updates (AltUp, arXiv:2301.13310), learned augmented residuals (LAuReL, arXiv:2411.07501) and embeddings
of every layer (Gemma 3n) around a layer of attention and an MLP.

Of n residual streams a layer reads one. Before the layer all streams are predicted from all; after it, all predictions
are corrected by the difference between the layer's output and the prediction of its own stream. Kernels are counted one
by one from huggingface/transformers@00aa0f5d models/gemma3n/modeling_gemma3n.py (``Gemma3nTextAltUp``,
``Gemma3nTextLaurelBlock``, ``Gemma3nTextDecoderLayer``); every tensor-parallel rank holds these modules whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from projector.errors import Unsupported
from projector.layers.linear import Linear, linear
from projector.layers.local import LayerView
from projector.layers.norms import norm
from projector.operators.module import Module, function
from projector.operators.saved import Saved
from projector.operators.types import Cost, Operator, Stream
from projector.operators.weights import Weight
from projector.parameter import parameter
from projector.size import most

_COSTS: dict[str, tuple[Cost, Cost]] = parameter(
    {
        "router": ((1.0, 1.0, 4), (1.0, 1.0, 4)),  # scale, tanh
        "predict": ((4.0, 3.0, 3), (6.0, 3.0, 6)),  # product, sum, copy; two products, sum, copy
        "correct": ((3.0, 3.0, 4), (7.0, 4.0, 8)),  # repeat, product, sum; products, sums, one gradient among zeros
        "scale": ((2.0, 2.0, 2), (5.0, 2.0, 3)),  # clone, product
        "laurel": ((5.0, 3.0, 3), (5.0, 3.0, 3)),  # two sums, division; division, two sums of gradients
        "gate": ((3.0, 2.0, 2), (5.0, 3.0, 3)),  # GELU, product
        "magnitude": ((6.0, 4.0, 9), (10.0, 6.0, 16)),  # square, mean, root, largest, product, quotient, copy
        "inputs": ((4.0, 4.0, 4), (3.0, 3.0, 3)),  # both scaled, sum, scaled
    },
    unit="times read and written, launches",
    kind="derived",
    source="modeling_gemma3n.py: one read or write of a tensor for each that a function reads or writes",
)
"""Costs of the forward and of the backward of each element-wise module."""


def with_altup(parts: tuple[Module, ...], view: LayerView) -> tuple[Module, ...]:
    """Returns ``parts`` of a layer with the model's AltUp, LAuReL and per-layer embeddings around them. Raises
    :class:`Unsupported` for per-layer embeddings over pipeline stages."""
    model = view.model
    if model.hidden_size_per_layer_input and view.recipe.pp > 1:
        raise Unsupported("embeddings of every layer over pipeline stages: stages pass on the residual alone")
    if model.laurel_rank:
        parts = tuple(module for part in parts for module in (part, *_laurel(part, view)))
    if model.altup_num_inputs:
        first, *rest = parts
        predictions = Saved(  # a view of all predictions, which it keeps
            name="input_norm.in",
            storage="altup.predictions",
            bytes=model.altup_num_inputs * view.hidden_bytes,
            input=True,
        )
        saves = (predictions, *first.saves[1:])
        parts = (*_predict(view), replace(first, saves=saves), *rest, *_correct(view))
    return (*parts, *_per_layer_embedding(view)) if model.hidden_size_per_layer_input else parts


def entry(view: LayerView) -> tuple[Module, ...]:
    """Returns the modules that fill the other streams: a product of the embedding each, scaled to its magnitude."""
    return tuple(part for i in range(1, view.model.altup_num_inputs) for part in _project(f"altup.entry{i}", "", view))


def leaving(view: LayerView) -> tuple[Module, ...]:
    """Returns the mean of the streams, each but the first through a product of its own; nothing without AltUp."""
    n = view.model.altup_num_inputs
    if not n:
        return ()
    projected = (part for i in range(1, n) for part in _project(f"altup.leaving{i}", "altup.leaving.streams", view))
    saved = Saved("altup.leaving.streams", n * view.hidden_bytes, input=True)
    return (*projected, function("altup.mean", view.hidden_bytes, (n, 1, 1), (1, n, 1), saves=(saved,)))


def embeddings(view: LayerView) -> tuple[Module, ...]:
    """Returns one narrow embedding of a token for every layer, summed with a projection of the common embedding."""
    width = view.model.num_layers * view.model.hidden_size_per_layer_input
    if not width:
        return ()
    rows, tensor = view.shard_tokens, view.act * width * view.shard_tokens
    weight = Weight("per_layer_embedding", view.model.vocab_size_per_layer_input, width, role="embedding")
    back: tuple[Operator, ...] = ()
    if view.trainable:
        dense = Stream("per_layer_embedding.bwd", "gather", 2 * tensor, view.act * weight.elements + tensor, launches=2)
        buffer = view.execution.data_parallel.grad_bytes
        back = (dense, *view.execution.fusion.added("per_layer_embedding.grad_add", weight.elements, view.act, buffer))
    table = Module(
        "per_layer_embedding",
        forward=(Stream("per_layer_embedding", "gather", tensor, tensor),),
        backward_input=back,
        weights=(weight,),
        tags=frozenset({"embedding"}),
    )
    return (
        table,
        _linear("per_layer_model_projection", view.hidden, width, "altup.embedding", view),
        norm(
            "per_layer_projection_norm",
            view,
            view.model.hidden_size_per_layer_input,
            rows * view.model.num_layers,
            branch=False,
            reads="per_layer_model_projection.out",
        ),
        _kernel("per_layer_inputs", "inputs", tensor, view),
    )


def _predict(view: LayerView) -> tuple[Module, ...]:
    """Predicts all streams from all of them, by a map of each token that the stream at hand makes."""
    n, x = view.model.altup_num_inputs, view.hidden_bytes
    coefficients = n * n
    streams = Saved("altup.streams", n * x, input=True)
    weights = Saved("altup.predict.map", view.act * coefficients * view.shard_tokens)
    mix = _kernel("altup.predict", "predict", n * x, view, saves=(streams, weights), makes=("altup.predictions", n * x))
    return (
        *_router("altup.predict", "altup.streams", view),
        _linear("altup.prediction_coefs", n, coefficients, "altup.predict.modalities", view),
        mix,
    )


def _correct(view: LayerView) -> tuple[Module, ...]:
    """Moves all predictions by what the layer added to its own, each by its share."""
    n, x = view.model.altup_num_inputs, view.hidden_bytes
    router = (replace(part, weights=()) for part in _router("altup.correct", "mlp_residual.out", view))
    innovation = Saved("altup.innovation", n * x)
    shares = Saved("altup.correct.shares", view.act * n * view.shard_tokens)
    return (
        *router,
        _linear("altup.correction_coefs", n, n, "altup.correct.modalities", view),
        _kernel("altup.correct", "correct", n * x, view, saves=(innovation, shares), makes=("altup.corrected", n * x)),
    )


def _router(name: str, reads: str, view: LayerView) -> tuple[Module, ...]:
    """Makes one number a stream for each token from the norm of a hidden state; both routers of a layer share weights."""
    n = view.model.altup_num_inputs
    scaled, squashed = f"{name}.scaled", f"{name}.modalities"
    tanh = Saved(f"{name}.tanh", 4.0 * n * view.shard_tokens)
    return (
        norm(f"{name}.norm", view, branch=False, reads=reads),
        _kernel(f"{name}.scale", "router", view.hidden_bytes, view, makes=(scaled, view.hidden_bytes)),
        _linear(f"{name}.router", view.hidden, n, scaled, view),
        Module(squashed, saves=(tanh,), makes=(Saved(squashed, view.act * n * view.shard_tokens),)),
    )


def _laurel(part: Module, view: LayerView) -> tuple[Module, ...]:
    """Adds the normed input and its narrow product to attention's residual; nothing after other modules."""
    if part.name != "attn_residual":
        return ()
    return (
        _linear("laurel_left", view.hidden, view.model.laurel_rank, "input_norm.out", view),
        _linear("laurel_right", view.model.laurel_rank, view.hidden, "laurel_left.out", view),
        norm("post_laurel_norm", view, branch=False, reads="laurel_right.out"),
        _kernel("laurel", "laurel", view.hidden_bytes, view, makes=("pre_mlp_norm.in", view.hidden_bytes)),
    )


def _per_layer_embedding(view: LayerView) -> tuple[Module, ...]:
    """Adds the layer's own embedding, gated by the state, to the streams that no layer reads (or to the state)."""
    p, x, n = view.model.hidden_size_per_layer_input, view.hidden_bytes, most(2, view.model.altup_num_inputs)
    narrow = view.act * p * view.shard_tokens
    scaled: tuple[Module, ...] = ()
    reads = "mlp_residual.out"
    if view.model.altup_num_inputs:
        reads, kept = "altup.scaled", Saved("altup.first", x)
        part = _kernel("altup.scale", "scale", x, view, saves=(kept,), makes=(reads, x))
        scaled = (replace(part, weights=(Weight("altup.correct_output_scale", view.hidden),)),)
    gated = (
        Saved("per_layer_gate.in", narrow, storage="per_layer_gate.out", input=True),
        Saved("per_layer_gate.gelu", narrow),
        Saved("per_layer_input", narrow, input=True),
    )
    return (
        *scaled,
        _linear("per_layer_gate", view.hidden, p, reads, view),
        _kernel("per_layer_act", "gate", narrow, view, saves=gated, makes=("per_layer_act.out", narrow)),
        _linear("per_layer_projection", p, view.hidden, "per_layer_act.out", view),
        norm("post_per_layer_norm", view, branch=False, reads="per_layer_projection.out"),
        function("per_layer_add", x, (n, n - 1, 1), (n - 1, 1, 1)),
    )


def _project(name: str, reads: str, view: LayerView) -> tuple[Module, ...]:
    """Returns a square product scaled to another tensor's magnitude; its output and its multiple are kept."""
    x = view.hidden_bytes
    kept = (Saved(f"{name}.squared", x, storage=f"{name}.out", input=True), Saved(f"{name}.multiple", x))
    return (
        _linear(name, view.hidden, view.hidden, reads or "altup.embedding", view),
        _kernel(f"{name}.magnitude", "magnitude", x, view, saves=kept),
    )


def _linear(name: str, inputs: int, outputs: int, reads: str, view: LayerView) -> Module:
    """Returns a product that no precision narrows, on this rank's share of the sequence."""
    return linear(Linear(name, (outputs,), inputs, view.shard_tokens, plain=True, reads=reads), view)


def _kernel(
    name: str,
    cost: str,
    tensor: float,
    view: LayerView,
    *,
    saves: Iterable[Saved] = (),
    makes: tuple[str, float] | None = None,
) -> Module:
    """Returns element-wise functions on ``tensor`` bytes; a compiler reads and writes once, and twice in its backward."""
    costs = ((1.0, 1.0, 1), (2.0, 1.0, 1)) if view.compiled else _COSTS[cost]
    return function(name, tensor, *costs, saves=tuple(saves), makes=(Saved(*makes),) if makes else ())
