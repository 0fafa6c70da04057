"""Core attention on one rank without context parallelism."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from projector.dataclass import dataclass
from projector.errors import Unsupported
from projector.layers.local import LayerView
from projector.layers.quantise import operand_bytes, received
from projector.operators.module import Module
from projector.operators.saved import Saved
from projector.operators.types import Attention
from projector.parameter import parameter
from projector.size import most

# launches of one call, (forward, backward)
_LAUNCHES = parameter(
    {"fa2": (1, 3), "ck": (1, 3), "fa3": (1, 3), "cudnn": (1, 2), "aiter": (1, 3), "triton": (1, 3)},
    unit="launches",
    kind="derived",
    source="FlashAttention-2 and CK run dO·O, the main kernel and the conversion of dQ, and under grouped queries two sums "
    "of expanded dK, dV",
)
_MATERIALISED_LAUNCHES = parameter(
    (4, 6), unit="launches", kind="derived", source="a materialised one runs products, softmax and mask apart"
)
_DROPOUT_MASK = parameter(
    1.0,
    unit="B/score",
    kind="published",
    source="Korthikanti et al. (arXiv:2205.05198) §4, and torch: native_dropout saves a boolean mask beside its output",
)


@dataclass(frozen=True, slots=True)
class Heads:
    """Query and key/value heads of one rank and their widths; ``window``: tokens seen (None: all); ``keys``: keys
    chosen by each query (None: queries choose none)."""

    heads: int
    kv_heads: int
    qk: int
    v: int
    window: int | None = None
    keys: float | None = None

    @property
    def kv_width(self) -> int:
        """Returns the elements of keys and values of one token."""
        return self.kv_heads * (self.qk + self.v)


def _forward(
    name: str, heads: Heads, view: LayerView, *, seq_q: int, seq_k: int, causal: bool = True, batch: int = 1
) -> Attention:
    """Returns the forward attention of ``seq_q`` queries on ``seq_k`` keys, for every sequence of the micro-batch ×
    ``batch``; masked where the call is on the diagonal and the model is ``causal``."""
    materialised = view.execution.fusion.attention_materialised
    launches = _MATERIALISED_LAUNCHES if materialised else _LAUNCHES.get(view.execution.kernels.attention, (1, 3))
    return Attention(
        name=name,
        batch=view.batch * batch,
        heads=heads.heads,
        kv_heads=heads.kv_heads,
        seq_q=seq_q,
        seq_k=seq_k,
        head_dim_qk=heads.qk,
        head_dim_v=heads.v,
        causal=causal and view.model.causal,
        window=heads.window,
        dtype="fp8" if view.recipe.fp8_dot_product_attention and view.quantised else view.dtype,
        flash=not materialised,
        wide=materialised and view.execution.fusion.softmax_fp32,
        apart=materialised and view.execution.fusion.scores_apart and not view.compiled,
        dropout=materialised and bool(view.recipe.attention_dropout),
        sinks=view.model.attention_sinks,
        keys=heads.keys,
        launches=launches[0] * batch,
    )


def attention_calls(
    name: str, heads: Heads, view: LayerView, *, seq_q: int, seq_k: int, causal: bool = True, batch: int = 1
) -> tuple[Attention, Attention]:
    """Returns (forward, backward) of one attention call, the backward named ``<name>.bwd``."""
    forward = _forward(name, heads, view, seq_q=seq_q, seq_k=seq_k, causal=causal, batch=batch)
    return forward, _backward(forward, view)


def _backward(forward: Attention, view: LayerView) -> Attention:
    family = view.execution.kernels.attention
    grouped_sums = 2 if family == "fa2" and forward.heads > forward.kv_heads and forward.flash else 0
    launches = _LAUNCHES.get(family, (1, 3))[1] if forward.flash else _MATERIALISED_LAUNCHES[1]
    calls = most(1, forward.batch // view.batch)
    return replace(forward, name=f"{forward.name}.bwd", backward=True, launches=(launches + grouped_sums) * calls)


def _score_bytes(view: LayerView) -> float:
    """Returns the bytes of a score that autograd keeps where scores lie in memory (NVIDIA/Megatron-LM@00caa53a
    core/transformer/dot_product_attention.py): the fused softmax keeps its output, which is also the input of the
    product with the values. The product before it writes into a buffer and needs its factors only, and dropout of
    nothing hands its input on. Dropout of something keeps a mask, and makes the copy that the product then keeps."""
    # the softmax keeps its own output, the product what was cast
    cast = 4.0 if view.execution.fusion.softmax_fp32 else 0.0
    return cast + (2.0 * view.act + _DROPOUT_MASK if view.recipe.attention_dropout else view.act)


def core(heads: Heads, view: LayerView, tags: frozenset[str]) -> Module:
    """Returns the attention of whole sequences held by this rank."""
    seq = view.recipe.seq_length
    if view.recipe.document_lengths:
        return _packed_documents(heads, view, tags, view.recipe.document_lengths)
    forward, backward = attention_calls("core_attn", heads, view, seq_q=seq, seq_k=seq)
    return Module("core_attn", forward=(forward,), backward_input=(backward,), tags=tags)


def _packed_documents(heads: Heads, view: LayerView, tags: frozenset[str], lengths: tuple[int, ...]) -> Module:
    """Returns the attention of documents side by side in one sequence, each attending to itself: one call with the work of
    each length (NVIDIA/Megatron-LM@d98e8a64dd core/packed_seq_params.py; variable-length kernels skip what is between)."""
    if view.execution.fusion.attention_materialised:
        raise Unsupported("packed documents where scores are written to memory")
    counts = Counter(lengths)
    calls = [
        attention_calls(f"core_attn.{length}", heads, view, seq_q=length, seq_k=length, batch=number)
        for length, number in sorted(counts.items(), reverse=True)
    ]
    single = attention_calls("core_attn", heads, view, seq_q=1, seq_k=1)
    first = [tuple(replace(op, launches=usual.launches) for op, usual in zip(calls[0], single, strict=True))]
    rest = [tuple(replace(op, launches=0) for op in call) for call in calls[1:]]
    forward, backward = zip(*first, *rest, strict=True)
    return Module("core_attn", forward=forward, backward_input=backward, tags=tags)


def with_saved_tensors(
    part: Module, heads: Heads, view: LayerView, *, name: str = "core_attn", prefix: str = "", length: int | None = None
) -> Module:
    """Returns ``part`` with what attention saves, however it is computed: queries, keys and values after rotation, the
    output (one storage with the input of the projection) and the fp32 log-sum-exp, or the scores where they are
    written. ``name``: prefix of the attention's storages, ``prefix``: of its inputs'; ``length``: of key sequences
    (None: the queries'). An all-to-all context-parallel attention keeps its output before the exchange, too
    (TransformerEngine ≥ 2.8, context_parallel.py)."""
    element = operand_bytes(view) if view.recipe.fp8_dot_product_attention else view.act
    queries = view.tokens * heads.heads
    tokens = view.tokens if length is None else view.batch * length
    output = Saved(f"{name}.out", element * queries * heads.v)
    saves = [
        Saved(f"{prefix}q", element * queries * heads.qk, input=True),
        Saved(f"{prefix}k", element * tokens * heads.kv_heads * heads.qk, input=True),
        Saved(f"{prefix}v", element * tokens * heads.kv_heads * heads.v, input=True),
        output,
    ]
    if view.execution.fusion.attention_materialised:
        saves.append(Saved(f"{name}.scores", _score_bytes(view) * queries * (length or view.recipe.seq_length)))
    else:
        saves.append(Saved(f"{name}.lse", 4.0 * queries))
    if view.recipe.cp > 1 and view.recipe.cp_comm_type == "a2a" and view.execution.fusion.cp_a2a_keeps_output:
        saves.append(Saved("core_attn.out_before_a2a", received(view) * queries * heads.v))
    return replace(part, saves=tuple(saves), makes=(output,))
