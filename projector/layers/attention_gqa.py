"""Grouped-query (and multi-head) self-attention: norm, QKV, rotary embedding, core attention, output projection.

Kernel list counted from NVIDIA/Megatron-LM@d98e8a64dd core/transformer/{attention,transformer_layer}.py.
"""

from __future__ import annotations

from dataclasses import replace

from projector.errors import Unsupported
from projector.layers.attention_core import Heads
from projector.layers.context_parallel import core_attention
from projector.layers.linear import Linear, linear
from projector.layers.local import LayerView
from projector.layers.norms import norm, residual, sandwich
from projector.operators.module import Module, function
from projector.operators.saved import Saved
from projector.operators.types import Operator, Stream
from projector.operators.weights import Weight
from projector.parameter import parameter
from projector.size import real, whole
from projector.workload.layer_kinds import Attention as AttentionKind
from projector.workload.model import LayerKind, Model

ATTN = frozenset({"attn"})
UP = ATTN | {"mla_up_proj"}
QKV = ATTN | {"qkv_linear", "qkv_proj"}
_UNFUSED_ROPE_LAUNCHES, _UNFUSED_ROPE_BYTES, _STRIDED_ROPE_BYTES = parameter(
    (14, 18.0, 10.0),
    unit="launches, B/element",
    kind="derived",
    source="both tensors: slice, neg, cat, 2 mul, add, cat; of halves of heads, and broadcast: neg (2), 2 mul (8)",
)


def applies(model: Model) -> bool:
    return model.mla is None


def attention(kind: LayerKind, view: LayerView) -> tuple[Module, ...]:
    """Returns the attention half of a layer of ``kind``, from its input norm to the residual addition."""
    model, d = view.model, view.model.kv_channels
    query, key = view.heads * d, view.kv_heads * d
    bias = model.add_bias_linear
    gate = (query,) if model.attention_output_gate else ()
    reuses = isinstance(kind.mixer, AttentionKind) and kind.mixer.reuses_kv
    kv_widths = () if reuses else (key,) if model.attention_k_eq_v else (key, key)
    widths = (query, *gate, *kv_widths)
    rotated_keys = 0 if reuses and model.num_kv_shared_layers else key
    qkv = Linear(
        "qkv",
        (sum(widths),) if view.execution.fusion.qkv else widths,
        view.hidden,
        view.tokens,
        "column",
        bias=bias or model.add_qkv_bias,
        after_norm=True,
        parts=widths,
        target="linear_qkv",
        reads="input_norm.out",
        makes=(("q", query), *(() if reuses else (("k", key), ("v", key))), *(("attn_gate", width) for width in gate)),
    )
    proj = projected("attn_gate.out" if gate else "core_attn.out", query, view, bias)
    heads = Heads(view.heads, view.kv_heads, d, d, window=kind.window)
    core = core_attention(heads, view, ATTN | {"core_attn", "context"})
    # products of keys and values that no layer uses, but that are trained along: Gemma 3n's layers hold them
    # (huggingface/transformers@00aa0f5d models/gemma3n/modeling_gemma3n.py, Gemma3nTextAttention)
    weight = Weight("unused_kv", 2 * key, view.hidden, role="linear", split="rows")
    unused = [Module("unused_kv", weights=(weight,))] * bool(view.model.num_kv_shared_layers)
    return (
        norm("input_norm", view, tags=ATTN | {"attn_norm"}),
        *(
            _projections(qkv, query, key, view)
            if not reuses
            else (linear(qkv, view, QKV), *unused, _received_kv(key, view))
        ),
        *_qk_norm(query, rotated_keys, view),
        *rope(query + rotated_keys, view, ATTN | {"qkv_proj"}),
        _without_shared_kv(core, view) if reuses else core,
        *_relative_positions(view),
        *[Module("sinks", weights=(Weight("sinks", view.heads, split="rows"),))] * view.model.attention_sinks,
        *((gated(query, view, "attn_gate"),) if gate else ()),
        linear(proj, view, ATTN | {"attn_proj", "out_proj"}),
        *sandwich("post_attn_norm", view, ATTN, "proj.out"),
        residual("attn_residual", view, ATTN, "pre_cross_norm.in" if kind.cross else "pre_mlp_norm.in"),
    )


def projected(reads: str, width: int, view: LayerView, bias: bool = False) -> Linear:
    """Returns the linear from the ``width`` outputs of attention, storage ``reads``, to the hidden states."""
    return Linear("proj", (view.hidden,), width, view.tokens, "row", bias, target="linear_proj", reads=reads)


def _relative_positions(view: LayerView) -> tuple[Module, ...]:
    """Adds relative positions to the scores of every head: the kernel reads them, or they are added where scores are
    written; backward sums the scores' gradient over the batch and adds it to that of later layers (TransformerEngine's
    ``post_scale_bias``; transformers models/t5/modeling_t5.py)."""
    if view.model.position_embedding_type != "relative":
        return ()
    table = view.act * view.heads * real(view.recipe.seq_length) ** 2
    scores = view.batch * table if view.execution.fusion.attention_materialised else 0.0
    add = Stream("relative.add", "elementwise", table + scores, scores, launches=whole(scores > 0))
    back = Stream("relative.grad_add", "elementwise", 2 * table + scores, 2 * table, launches=2)
    return (Module("relative.add", forward=(add,), backward_input=(back,), tags=ATTN | {"core_attn"}),)


def fork(view: LayerView) -> Module:
    """Returns the backward's sum of the normed input's two gradients: of the query and of the key/value projections."""
    tensor = view.act * view.hidden * view.shard_tokens
    add = Stream("mla_inputs.grad_add", "elementwise", 2 * tensor, tensor)
    return Module("mla_inputs", backward_input=(add,), tags=ATTN)


def queries(rank: int | None, width: int, view: LayerView) -> tuple[Module, ...]:
    """Returns queries of ``width`` from a latent of ``rank`` with a norm of its own, or straight from the layer's input."""
    up = Linear(
        "q_up" if rank else "q_proj",
        (width,),
        rank or view.hidden,
        view.tokens,
        "column",
        after_norm=rank is not None,
        target="linear_q_up_proj" if rank else "linear_q_proj",
        reads="q_norm.out" if rank else "input_norm.out",
        makes=(("q", width),),
    )
    if rank is None:
        return (linear(up, view, QKV),)
    down = Linear(
        "q_down", (rank,), view.hidden, view.shard_tokens, target="linear_q_down_proj", reads="input_norm.out"
    )
    return (
        linear(down, view, ATTN | {"qkv_linear"}),
        norm("q_norm", view, rank, view.shard_tokens, branch=False, reads="q_down.out", tags=UP),
        linear(up, view, UP | {"qkv_proj"}),
    )


def _projections(qkv: Linear, query: int, key: int, view: LayerView) -> tuple[Module, ...]:
    """Makes queries, keys and values from one input: in one linear, or queries through a latent and the others apart."""
    rank = view.model.share_q_dim
    if not rank:
        return linear(qkv, view, QKV), _split(query, key, view)
    widths = (key, key)
    kv = replace(
        qkv,
        name="kv",
        outputs=(2 * key,) if view.execution.fusion.qkv else widths,
        parts=widths,
        makes=(("k", key), ("v", key)),
    )
    return fork(view), *queries(rank, query, view), linear(kv, view, QKV)


def gated(width: int, view: LayerView, gate: str, *, keeps: bool = False) -> Module:
    """Returns the output of attention, ``width`` elements of a token, times the sigmoid of storage ``gate``
    (Qwen3-Next; NVIDIA/Megatron-LM@d98e8a64dd core/transformer/attention.py, ``attention_output_gate``): one kernel
    where a compiler joins it, else two. ``keeps``: the product of two kernels keeps the sigmoid for its backward."""
    tensor, unjoined = view.act * width * view.tokens, 0 if view.compiled else 1
    return function(
        "attn_gate",
        tensor,
        (2 + unjoined, 1 + unjoined, 1 + unjoined),
        (3 + 2 * unjoined, 2 + unjoined, 1 + 2 * unjoined),
        saves=(
            Saved("attn_gate.in", tensor, storage=gate, input=True),
            Saved("attn_gate.ungated", tensor, storage="core_attn.out", input=True),
            *((Saved("attn_gate.sigmoid", tensor),) if keeps and unjoined else ()),
        ),
        makes=(Saved("attn_gate.out", tensor),),
        tags=ATTN,
    )


def _split(query: int, key: int, view: LayerView) -> Module:
    """Splits Q, K, V, views of one tensor: Q of grouped heads must be copied; backward joins the three gradients."""
    if not view.execution.fusion.qkv or view.compiled:
        return Module("split_qkv")
    q, all_three = view.act * query * view.tokens, view.act * (query + 2 * key) * view.tokens
    grouped = view.heads > view.kv_heads
    forward = (Stream("split_qkv", "copy", q, q),) if grouped else ()
    backward = Stream("split_qkv.bwd", "copy", all_three, all_three)
    return Module("split_qkv", forward=forward, backward_input=(backward,), tags=ATTN)


def _qk_norm(query: int, key: int, view: LayerView) -> tuple[Module, ...]:
    """Returns the norms of each head of queries, keys and, without a weight, values. They save what they read beside the
    rotated tensors that attention saves."""
    if not view.model.qk_layernorm:
        return ()
    d, values = view.model.kv_channels, key if view.model.v_layernorm else 0
    norms = []
    for name, width in (("q_norm", query), ("k_norm", key), ("v_norm", values)):
        part = norm(name, view, d, view.tokens * (width // d), branch=False, divided=False, tags=ATTN)
        part = replace(part, saves=tuple(saved._replace(input=False) for saved in part.saves))
        norms += [part] if name != "v_norm" else [replace(part, weights=(), backward_weight=())] if width else []
    return tuple(norms)


def rope(elements: int, view: LayerView, tags: frozenset[str]) -> tuple[Module, ...]:
    """Returns the rotary embedding of queries and keys, together ``elements`` a token; nothing for models without."""
    if view.model.position_embedding_type not in ("rope", "yarn", "mrope"):
        return ()
    forward, backward = rotary("rope", elements * view.tokens, view)
    return (Module("rope", forward=forward, backward_input=backward, tags=tags),)


def rotary(name: str, elements: int, view: LayerView) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
    """Returns (forward, backward) of the rotary embedding of queries and keys, ``elements`` in both together."""
    # Transformer Engine's kernel has no magnitude scale: Megatron falls back to the unfused form
    # (NVIDIA/Megatron-LM core/models/common/embeddings/rope_utils.py, ``mscale != 1``)
    fused = bool(view.recipe.apply_rope_fusion) and not view.model.rotary_magnitude_scaled
    each = view.act * elements
    if view.compiled or fused:
        one = Stream(name, "rope", each, each, launches=1 if view.compiled else 2)
        return (one,), (replace(one, name=f"{name}.bwd"),)
    whole, strided = _UNFUSED_ROPE_BYTES / 4 * each, _STRIDED_ROPE_BYTES / 4 * each
    rest, launches = whole - strided, _UNFUSED_ROPE_LAUNCHES // 2
    ops = (
        Stream(name, "elementwise", rest, rest, launches=launches),
        Stream(f"{name}.strided", "strided", strided, strided, launches=launches),
    )
    return ops, tuple(replace(op, name=f"{op.name}.bwd") for op in ops)


# Keys and values that an earlier layer made (cross-layer attention, arXiv:2405.12981; Hunyuan-Large, arXiv:2411.02265).
#
# isLinXu/Source-Code-Reading@ea2cac9f source/LLM/Hunyuan-Large/models/modeling_hunyuan.py (the published modeling file): a
# layer hands on what its two products gave, before rotation and norms; each layer rotates and norms the keys for itself and
# reads the values as they are. The last layers of Gemma 3n (``num_kv_shared_layers``) read both after norm and rotation.


def _received_kv(key: int, view: LayerView) -> Module:
    """Returns the keys and values, each ``key`` elements of a token, of the layer that made them: no replay makes them
    again, and backward adds this layer's two gradients to those there. Raises :class:`Unsupported` where ``cp`` > 1."""
    if view.recipe.cp > 1:
        raise Unsupported("keys and values of another layer under context parallelism: no training code exchanges them")
    tensor = view.act * key * view.tokens
    add = Stream("shared_kv.grad_add", "elementwise", 4 * tensor, 2 * tensor, launches=2)
    reads = tuple(Saved(f"shared_kv.{name}", tensor, input=True) for name in ("k", "v"))
    makes = tuple(Saved(name, tensor) for name in ("k", "v"))
    return Module("shared_kv", backward_input=(add,), reads=reads, makes=makes, tags=frozenset({"attn"}))


def _without_shared_kv(core: Module, view: LayerView) -> Module:
    """Removes from core attention's saved tensors the values, and keys if they are shared after their rotation, that
    the layer which made them has saved; a narrowed copy is this layer's own."""
    if view.recipe.fp8_dot_product_attention:
        return core
    shared = ("k", "v") if view.model.num_kv_shared_layers else ("v",)
    return replace(core, saves=tuple(saved for saved in core.saves if saved.tensor not in shared))
