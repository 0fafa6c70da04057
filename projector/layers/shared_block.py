"""A block of attention and an MLP whose weights several layers share, before a Mamba-2 mixer (Zamba2, arXiv:2411.15242).

transformers@00511f5d models/zamba2/modeling_zamba2.py (``Zamba2HybridLayer``): the layer's input beside the embedding, twice
as wide, is normed and attended to; the output, without a residual, passes a norm, a gated MLP and a projection of its layer,
and is added to what the mixer reads, not to the residual. Adapters of each use stand beside the shared products.
"""

from __future__ import annotations

from dataclasses import replace

from projector.errors import Unsupported
from projector.layers import mamba
from projector.layers.attention_core import Heads
from projector.layers.attention_gqa import ATTN, projected, rope
from projector.layers.context_parallel import core_attention
from projector.layers.linear import Linear, linear
from projector.layers.local import LayerView
from projector.layers.mlp import MLP, feed_forward
from projector.layers.norms import norm
from projector.operators.module import Module, function
from projector.operators.saved import Saved
from projector.operators.types import Stream
from projector.operators.weights import with_storage
from projector.workload.layer_kinds import SharedBlock


def mixer(m: SharedBlock, view: LayerView) -> tuple[Module, ...]:
    """Returns the modules from the layer's input to the residual addition after the Mamba-2 mixer."""
    if view.recipe.pp > 1:
        raise Unsupported(
            "layers of several pipeline stages that share their weights: no training code sums their gradients"
        )
    d, x, rank = view.model.kv_channels, view.act * view.hidden * view.shard_tokens, m.sizes.adapter_rank
    query, key, ffn = view.heads * d, view.kv_heads * d, -(-view.model.ffn_hidden_size // view.tp)
    qkv = Linear(
        "qkv",
        (query + 2 * key,) if view.execution.fusion.qkv else (query, key, key),
        2 * view.hidden,
        view.tokens,
        "column",
        after_norm=True,
        parts=(query, key, key),
        target="linear_qkv",
        reads="shared_norm.out",
        makes=(("q", query), ("k", key), ("v", key)),
    )
    proj = projected("core_attn.out", query, view)
    out = Linear("shared_out", (view.hidden,), view.hidden, view.shard_tokens, reads="fc2.out")
    fc1, *rest = feed_forward("", view.model.ffn_hidden_size, view, MLP)
    adapted = (("q", query), ("k", key), ("v", key)) if m.sizes.use_shared_attention_adapter else ()
    return (
        _joined_with_embedding(x),
        _with_shared_weights(norm("shared_norm", view, 2 * view.hidden, view.shard_tokens, branch=False, tags=ATTN), m),
        _with_shared_weights(linear(qkv, view, ATTN), m),
        *(
            part
            for name, width in adapted
            for part in _adapter(name, width, 2 * view.hidden, rank, "shared_norm.out", view)
        ),
        *rope(query + key, view, ATTN),
        core_attention(Heads(view.heads, view.kv_heads, d, d), view, ATTN | {"core_attn"}),
        _with_shared_weights(linear(proj, view, ATTN), m),
        _with_shared_weights(norm("pre_mlp_norm", view, branch=False, reads="proj.out", tags=MLP), m),
        _with_shared_weights(fc1, m),
        *_adapter("fc1", 2 * ffn, view.hidden, rank, "pre_mlp_norm.out", view),
        *(_with_shared_weights(part, m) for part in rest),
        linear(out, view, MLP),
        function("shared_add", x, (2, 1, 1), None, makes=(Saved("input_norm.in", x),)),
        *mamba.mixer(m.mamba, view),
    )


def _with_shared_weights(part: Module, m: SharedBlock) -> Module:
    """Makes the module's weights one tensor with those of every other use of the block."""
    weights = tuple(
        stored for weight in part.weights for stored in with_storage((weight,), f"shared{m.block}.{weight.name}")
    )
    return replace(part, weights=weights)


def _adapter(name: str, width: int, inputs: int, rank: int, reads: str, view: LayerView) -> tuple[Module, ...]:
    """Returns an adapter through ``rank`` beside a product of ``width`` outputs, to which its output is added."""
    down = Linear(f"{name}_a", (rank,), inputs, view.shard_tokens, reads=reads)
    up = Linear(f"{name}_b", (width,), rank, view.tokens, "column", reads=f"{name}_a.out")
    tensor = view.act * width * view.tokens
    add = Stream(f"{name}_add", "elementwise", 2 * tensor, tensor)
    gradient = view.act * inputs * view.shard_tokens
    back = Stream(f"{name}_add.bwd", "elementwise", 2 * gradient, gradient)
    return (
        linear(down, view, ATTN),
        linear(up, view, ATTN),
        Module(f"{name}_add", forward=(add,), backward_input=(back,)),
    )


def _joined_with_embedding(x: float) -> Module:
    """Joins the layer's input and the embedding; backward adds both halves of the gradient to theirs."""
    back = Stream("shared_input.bwd", "elementwise", 4 * x, 2 * x, launches=2)
    return Module(
        "shared_input",
        forward=(Stream("shared_input", "copy", 2 * x, 2 * x),),
        backward_input=(back,),
        makes=(Saved("shared_norm.in", 2 * x),),
        reads=(Saved("shared_input.in", x, input=True),),
    )
