"""The modules before the first layer of a stack, where tokens come in, and after its last, for other stacks to read."""

from __future__ import annotations

from dataclasses import replace

from projector.layers.cross_attention import ENCODED
from projector.layers.embedding import embed
from projector.layers.linear import Linear, linear
from projector.layers.local import LayerView
from projector.layers.mlp import activation
from projector.layers.norms import norm
from projector.operators.module import Module, function
from projector.operators.saved import Saved
from projector.operators.types import Stream
from projector.operators.weights import Weight, borrowed
from projector.size import real
from projector.workload.model import LayerKind
from projector.workload.towers import Vision

VISION = frozenset({"vision"})


def before_stack(kind: LayerKind, view: LayerView) -> tuple[Module, ...]:
    """Returns the modules before a stack: an encoder looks its tokens up in the decoder's table, a vision tower cuts
    images into patches; each stack with relative positions makes them once."""
    if not kind.first:
        return ()
    if isinstance(kind.tower, Vision):
        return _patches(kind.tower, view)
    words = embed(view) if kind.tower else ()
    return *(replace(part, weights=borrowed(part.weights)) for part in words), *_relative_positions(kind, view)


def after_stack(kind: LayerKind, view: LayerView) -> tuple[Module, ...]:
    """Returns the modules after a stack: the norm of an encoder, whose output stays for the keys and values of every
    layer that attends to it; the projector of a vision tower."""
    if not kind.last:
        return ()
    if isinstance(kind.tower, Vision):
        return _projector(kind.tower, view)
    part = norm("encoder_norm", view, branch=False)
    return (replace(part, saves=(*part.saves, Saved(ENCODED, view.hidden_bytes, until="weight_gradient"))),)


def frozen(parts: tuple[Module, ...], view: LayerView, *, forward_only: bool) -> tuple[Module, ...]:
    """Returns ``parts`` with frozen weights where the recipe freezes the language model; ``forward_only``: nothing
    before them is trained either, so that they save nothing."""
    if view.trainable or view.recipe.lora is not None:
        return parts
    parts = tuple(
        replace(part, weights=tuple(replace(weight, frozen=True) for weight in part.weights)) for part in parts
    )
    if not forward_only:
        return parts
    return tuple(
        replace(part, backward_input=(), backward_weight=(), saves=(), reads=(), backward_transient=None)
        for part in parts
    )


def image_placement(view: LayerView) -> tuple[Module, ...]:
    """Returns the placement of image tokens among word embeddings: a tensor of zeros, words and images written into it;
    backward reads the images' gradient out of it (NVIDIA/Megatron-LM@00caa53a megatron/core/models/multimodal/
    llava_model.py, ``_preprocess_data``)."""
    if view.model.vision is None:
        return ()
    whole = view.gathered_bytes
    images = view.act * view.hidden * view.recipe.micro_batch_size * view.recipe.images * view.model.vision.image_tokens
    forward = Stream("image_merge", "copy", whole, 2 * whole, launches=3)
    backward = Stream("image_merge.bwd", "gather", images, images)
    return (Module("image_merge", forward=(forward,), backward_input=(backward,), tags=VISION),)


def _patches(tower: Vision, view: LayerView) -> tuple[Module, ...]:
    """Returns patches through a convolution, which is a product, whole on every rank (torch's Conv2d there), the class
    token before them, learned positions, the norm. No gradient leaves it: its inputs are pixels."""
    h, rows = tower.hidden_size, view.batch * tower.patches
    patch_view = replace(view, tokens=rows, shard_tokens=rows)
    spec = Linear(
        "patches", (h,), tower.patch_elements, rows, bias=tower.patch_bias, plain=True, reads="patches.pixels"
    )
    pixels, tensor = view.act * rows * tower.patch_elements, view.act * h * view.tokens
    cut = Stream("patches.cut", "copy", pixels, pixels)
    product = linear(spec, patch_view, VISION)
    product = replace(
        product,
        forward=(cut, *product.forward),
        backward_input=(),
        weights=tuple(replace(weight, role="embedding") for weight in product.weights),
    )
    names = ("class_token", "positions") if tower.class_token else ("positions",)
    sizes = {"class_token": 1, "positions": tower.tokens}
    weights = [Weight(f"vision.{name}", sizes[name], h, role="embedding") for name in names]
    forward = Stream("vision.tokens", "elementwise", 3 * tensor, 2 * tensor, launches=len(names))
    sums = Stream("vision.tokens.bwd", "elementwise", 2 * tensor, tensor, launches=2)
    back = (sums,) if view.trainable else ()
    added = Module("vision.tokens", forward=(forward,), backward_weight=back, weights=tuple(weights), tags=VISION)
    before = norm("vision.pre_norm", view, h, view.tokens, branch=False, tags=VISION)
    return (product, added, *((before,) if tower.pre_norm else ()))


def _projector(tower: Vision, view: LayerView) -> tuple[Module, ...]:
    """Drops the class token, joins neighbours, and runs two linears with an activation (NVIDIA/Megatron-LM@00caa53a
    megatron/core/models/vision/multimodal_projector.py). It is trained whether the tower is or not."""
    n, width = view.batch * tower.image_tokens, -(-tower.projector_hidden_size // view.tp)
    after = norm("vision.post_norm", view, tower.hidden_size, view.tokens, branch=False, tags=VISION)
    last = frozen((after,), view, forward_only=True)
    tower_frozen = not view.trainable
    trained_view = replace(view, tokens=n, shard_tokens=n, recipe=replace(view.recipe, freeze_language_model=None))
    tensor = view.act * n * tower.merged
    back = None if tower_frozen else (1, 2, 2)
    first = Linear("projector.fc1", (width,), tower.merged, n, "column", bias=True, reads="projector.in")
    second = Linear(
        "projector.fc2", (tower.output_size or view.hidden,), width, n, "row", bias=True, reads="projector.act.out"
    )
    up = linear(first, trained_view, VISION)
    return (
        *(last if tower.post_norm else ()),
        function("projector.in", tensor, (1, 1, 1), back, "copy", tags=VISION),
        replace(up, backward_input=()) if tower_frozen else up,
        activation("projector.act", width, n, trained_view, VISION, reads="projector.fc1.out"),
        linear(second, trained_view, VISION),
    )


def _relative_positions(kind: LayerKind, view: LayerView) -> tuple[Module, ...]:
    """Returns a number of each head for each distance, laid out as scores (NVIDIA/Megatron-LM@00caa53a
    megatron/core/models/common/embeddings/relative_pos_embedding.py): bucketed, looked up, copied by head, kept for the
    stack."""
    if view.model.position_embedding_type != "relative":
        return ()
    pairs = real(view.recipe.seq_length) ** 2
    scores = view.act * view.heads * pairs
    name = f"relative.{kind.tower.name if kind.tower else 'decoder'}"
    forward = (
        Stream("relative.buckets", "elementwise", 64.0 * pairs, 64.0 * pairs, launches=8),
        Stream("relative", "gather", scores, scores),
        Stream("relative.copy", "copy", scores, scores),
    )
    back = Stream("relative.bwd", "gather", 2 * scores, scores, launches=2)
    table = Weight(name, view.model.relative_attention_num_buckets, view.heads, split="columns")
    kept = Saved("relative.out", scores)
    return (Module("relative", forward=forward, backward_input=(back,), weights=(table,), saves=(kept,)),)
