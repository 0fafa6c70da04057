"""Alternating updates (AltUp, arXiv:2301.13310), learned augmented residuals (LAuReL, arXiv:2411.07501) and embeddings of
every layer (Gemma 3n) around a layer of attention and an MLP.

Of n streams a layer reads one: all are predicted from all before it and corrected by what it made of that one after it.
Counted kernel by kernel from huggingface/transformers@00aa0f5d models/gemma3n/modeling_gemma3n.py (``Gemma3nTextAltUp``,
``Gemma3nTextLaurelBlock``, ``Gemma3nTextDecoderLayer``); every tensor-parallel rank holds these modules whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from projector.errors import Unsupported
from projector.layers.linear import Linear, linear
from projector.layers.local import Local
from projector.layers.norms import norm
from projector.operators.part import Part
from projector.operators.saved import Saved
from projector.operators.types import Operator, Stream
from projector.operators.weights import Weight
from projector.parameter import parameter
from projector.size import most

Cost = tuple[float, float, int]
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
"""Forward and backward of each element-wise module."""


def around(parts: tuple[Part, ...], lo: Local) -> tuple[Part, ...]:
    """``parts`` of a layer with what of the three its model has."""
    model = lo.model
    if model.hidden_size_per_layer_input and lo.recipe.pp > 1:
        raise Unsupported("embeddings of every layer over pipeline stages: stages pass on the residual alone")
    if model.laurel_rank:
        parts = tuple(each for part in parts for each in (part, *_laurel(part, lo)))
    if model.altup_num_inputs:
        first, *rest = parts
        whole = Saved(  # a view of all predictions, which it keeps
            name="input_norm.in",
            storage="altup.predictions",
            bytes=model.altup_num_inputs * lo.hidden_bytes,
            input=True,
        )
        alone = (whole, *first.saves[1:])
        parts = (*_predicted(lo), replace(first, saves=alone), *rest, *_corrected(lo))
    return (*parts, *_embedded(lo)) if model.hidden_size_per_layer_input else parts


def entry(lo: Local) -> tuple[Part, ...]:
    """Returns the embedding in every stream: through a product of each but the first, brought to its magnitude."""
    return tuple(each for i in range(1, lo.model.altup_num_inputs) for each in _turned(f"altup.entry{i}", "", lo))


def leaving(lo: Local) -> tuple[Part, ...]:
    """The mean of the streams, each but the first through a product of its own."""
    n = lo.model.altup_num_inputs
    if not n:
        return ()
    turned = (each for i in range(1, n) for each in _turned(f"altup.leaving{i}", "altup.leaving.streams", lo))
    x = lo.hidden_bytes
    back = Stream("altup.mean.bwd", "elementwise", x, n * x)
    mean = Stream("altup.mean", "elementwise", n * x, x)
    saved = Saved("altup.leaving.streams", n * x, input=True)
    return (*turned, Part("altup.mean", forward=(mean,), backward_input=(back,), saves=(saved,)))


def embeddings(lo: Local) -> tuple[Part, ...]:
    """Returns one narrow embedding of a token for every layer, summed with a projection of the common one."""
    width = lo.model.num_layers * lo.model.hidden_size_per_layer_input
    if not width:
        return ()
    rows, tensor = lo.shard_tokens, lo.act * width * lo.shard_tokens
    weight = Weight("per_layer_embedding", lo.model.vocab_size_per_layer_input, width, role="embedding")
    back: tuple[Operator, ...] = ()
    if lo.trainable:
        dense = Stream("per_layer_embedding.bwd", "gather", 2 * tensor, lo.act * weight.elements + tensor, launches=2)
        buffer = lo.execution.data_parallel.grad_bytes
        back = (dense, *lo.execution.fusion.added("per_layer_embedding.grad_add", weight.elements, lo.act, buffer))
    table = Part(
        "per_layer_embedding",
        forward=(Stream("per_layer_embedding", "gather", tensor, tensor),),
        backward_input=back,
        weights=(weight,),
        tags=frozenset({"embedding"}),
    )
    return (
        table,
        _linear("per_layer_model_projection", lo.hidden, width, "altup.embedding", lo),
        norm(
            "per_layer_projection_norm",
            lo.model.hidden_size_per_layer_input,
            rows * lo.model.num_layers,
            lo,
            branch=False,
            reads="per_layer_model_projection.out",
        ),
        _part("per_layer_inputs", "inputs", tensor, lo),
    )


def _predicted(lo: Local) -> tuple[Part, ...]:
    """All streams from all of them, by a map of each token that the stream at hand makes."""
    n, x = lo.model.altup_num_inputs, lo.hidden_bytes
    mapped = n * n
    streams = Saved("altup.streams", n * x, input=True)
    weights = Saved("altup.predict.map", lo.act * mapped * lo.shard_tokens)
    mix = _part("altup.predict", "predict", n * x, lo, saves=(streams, weights), makes=("altup.predictions", n * x))
    return (
        *_routed("altup.predict", "altup.streams", lo),
        _linear("altup.prediction_coefs", n, mapped, "altup.predict.modalities", lo),
        mix,
    )


def _corrected(lo: Local) -> tuple[Part, ...]:
    """All predictions moved by what the layer added to its own, each by its share."""
    n, x = lo.model.altup_num_inputs, lo.hidden_bytes
    router = (replace(part, weights=()) for part in _routed("altup.correct", "mlp_residual.out", lo))
    innovation = Saved("altup.innovation", n * x)
    shares = Saved("altup.correct.shares", lo.act * n * lo.shard_tokens)
    return (
        *router,
        _linear("altup.correction_coefs", n, n, "altup.correct.modalities", lo),
        _part("altup.correct", "correct", n * x, lo, saves=(innovation, shares), makes=("altup.corrected", n * x)),
    )


def _routed(name: str, reads: str, lo: Local) -> tuple[Part, ...]:
    """Numbers of a token, one a stream, from the norm of a hidden state; both routers of a layer share their weights."""
    n = lo.model.altup_num_inputs
    scaled, squashed = f"{name}.scaled", f"{name}.modalities"
    tanh = Saved(f"{name}.tanh", 4.0 * n * lo.shard_tokens)
    return (
        norm(f"{name}.norm", lo.hidden, lo.shard_tokens, lo, branch=False, reads=reads),
        _part(f"{name}.scale", "router", lo.hidden_bytes, lo, makes=(scaled, lo.hidden_bytes)),
        _linear(f"{name}.router", lo.hidden, n, scaled, lo),
        Part(squashed, saves=(tanh,), makes=(Saved(squashed, lo.act * n * lo.shard_tokens),)),
    )


def _laurel(part: Part, lo: Local) -> tuple[Part, ...]:
    """After attention's residual: the normed input, and the same through a narrow product, added to it."""
    if part.name != "attn_residual":
        return ()
    return (
        _linear("laurel_left", lo.hidden, lo.model.laurel_rank, "input_norm.out", lo),
        _linear("laurel_right", lo.model.laurel_rank, lo.hidden, "laurel_left.out", lo),
        norm("post_laurel_norm", lo.hidden, lo.shard_tokens, lo, branch=False, reads="laurel_right.out"),
        _part("laurel", "laurel", lo.hidden_bytes, lo, makes=("pre_mlp_norm.in", lo.hidden_bytes)),
    )


def _embedded(lo: Local) -> tuple[Part, ...]:
    """The layer's own embedding, gated by the state, added to the streams that no layer reads (without AltUp: to it)."""
    p, x, n = lo.model.hidden_size_per_layer_input, lo.hidden_bytes, most(2, lo.model.altup_num_inputs)
    narrow = lo.act * p * lo.shard_tokens
    scaled: tuple[Part, ...] = ()
    reads = "mlp_residual.out"
    if lo.model.altup_num_inputs:
        reads, kept = "altup.scaled", Saved("altup.first", x)
        part = _part("altup.scale", "scale", x, lo, saves=(kept,), makes=(reads, x))
        scaled = (replace(part, weights=(Weight("altup.correct_output_scale", lo.hidden),)),)
    gated = (
        Saved("per_layer_gate.in", narrow, storage="per_layer_gate.out", input=True),
        Saved("per_layer_gate.gelu", narrow),
        Saved("per_layer_input", narrow, input=True),
    )
    add = Stream("per_layer_add", "elementwise", n * x, (n - 1) * x)
    back = Stream("per_layer_add.bwd", "elementwise", (n - 1) * x, x)
    return (
        *scaled,
        _linear("per_layer_gate", lo.hidden, p, reads, lo),
        _part("per_layer_act", "gate", narrow, lo, saves=gated, makes=("per_layer_act.out", narrow)),
        _linear("per_layer_projection", p, lo.hidden, "per_layer_act.out", lo),
        norm("post_per_layer_norm", lo.hidden, lo.shard_tokens, lo, branch=False, reads="per_layer_projection.out"),
        Part("per_layer_add", forward=(add,), backward_input=(back,)),
    )


def _turned(name: str, reads: str, lo: Local) -> tuple[Part, ...]:
    """Returns a square product and the magnitude of another tensor; its output and its multiple are kept."""
    x = lo.hidden_bytes
    kept = (
        Saved(f"{name}.squared", x, storage=f"{name}.out", input=True),
        Saved(f"{name}.multiple", x),
    )
    return (
        _linear(name, lo.hidden, lo.hidden, reads or "altup.embedding", lo),
        _part(f"{name}.magnitude", "magnitude", x, lo, saves=kept),
    )


def _linear(name: str, inputs: int, outputs: int, reads: str, lo: Local) -> Part:
    """A product that no precision narrows, on this rank's share of the sequence."""
    return linear(Linear(name, (outputs,), inputs, lo.shard_tokens, plain=True, reads=reads), lo)


def _part(
    name: str,
    cost: str,
    tensor: float,
    lo: Local,
    *,
    saves: Iterable[Saved] = (),
    makes: tuple[str, float] | None = None,
) -> Part:
    """Element-wise functions on ``tensor`` bytes; a compiler reads and writes once, and twice in its backward."""
    forward, backward = _COSTS[cost]
    if lo.compiled:
        forward, backward = (1.0, 1.0, 1), (2.0, 1.0, 1)

    def stream(name: str, each: Cost) -> Stream:
        return Stream(name, "elementwise", each[0] * tensor, each[1] * tensor, launches=each[2])

    return Part(
        name,
        forward=(stream(name, forward),),
        backward_input=(stream(f"{name}.bwd", backward),),
        saves=tuple(saves),
        makes=(Saved(makes[0], makes[1]),) if makes else (),
    )
