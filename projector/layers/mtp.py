"""Multi-token prediction: one extra depth (NVIDIA/Megatron-LM core/transformer/multi_token_prediction.py).

A depth is the embedding again, two norms, a projection of both to the hidden width, one whole layer, and the output
layer and loss again with shared weights.
"""

from __future__ import annotations

from dataclasses import replace

from projector.layers import hyper
from projector.layers.embedding import embed
from projector.layers.head import output
from projector.layers.linear import Linear, linear
from projector.layers.local import LayerView
from projector.layers.norms import norm
from projector.operators.module import Module, function
from projector.operators.saved import Saved
from projector.operators.types import Collective, Operator
from projector.operators.weights import borrowed
from projector.parameter import parameter

MTP = frozenset({"mtp"})
_ROLL_LAUNCHES = parameter(6, unit="launches", kind="derived", source="ids, labels and mask moved by one token")


def depth(layer: tuple[Module, ...], view: LayerView) -> tuple[Module, ...]:
    """Returns one prediction depth around ``layer`` (the kind of the last decoder layer), without its output layer."""
    ids = 8.0 * view.tokens
    joined = 2 * view.act * view.hidden * view.shard_tokens
    makes = (Saved("mtp.concat.out", joined),)
    width, reads = -(-view.hidden // view.tp), "mtp.concat.out"
    project = Linear("mtp.eh_proj", (width,), 2 * view.hidden, view.tokens, "column", target="eh_proj", reads=reads)
    return (
        function("mtp.roll", ids, (3, 3, _ROLL_LAUNCHES), None, "copy", tags=MTP),
        *(replace(part, weights=borrowed(part.weights), backward_transient=None) for part in embed(view)),
        norm("mtp.enorm", view, branch=False, tags=MTP),
        norm("mtp.hnorm", view, branch=False, tags=MTP),
        function("mtp.concat", joined, (1, 1, 1), (1, 1, 2), "copy", makes=makes, tags=MTP),
        linear(project, view, MTP),
        *_gathered_width(view),
        *hyper.entry(view),
        *layer,
    )


def loss(view: LayerView) -> tuple[Module, ...]:
    """Returns the output layer and the loss of one depth, which use the model's weights."""
    return tuple(replace(part, weights=borrowed(part.weights)) for part in output(view))


def _gathered_width(view: LayerView) -> tuple[Module, ...]:
    """Gathers the projection's output, split by columns, so that the layer sees the whole width."""
    if view.tp == 1:
        return ()
    nbytes = view.act * view.hidden * view.tokens
    gather: tuple[Operator, ...] = (Collective("mtp.gather", "all_gather", "tp", nbytes),)
    back: tuple[Operator, ...] = ()
    if view.sp:
        back = (Collective("mtp.gather.bwd", "all_gather", "tp", nbytes),)
    return (Module("mtp.gather", forward=gather, backward_input=back, tags=MTP),)
