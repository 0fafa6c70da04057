"""Core attention whose sequence is split over the context-parallel group.

After NVIDIA/TransformerEngine@d0067d0da attention/dot_product_attention/context_parallel.py. The sequence is cut into
2·cp chunks and rank r holds chunks r and 2·cp−1−r, so every rank has the same share of the causal triangle; without a
mask every step is a whole square. ``p2p``: a ring of cp steps, each a kernel of its own, beside the exchange that the
next step waits for: keys and values joined in one buffer, cp−1 times, in the backward their gradients with them; the
first partial result is scaled, the others are added to it, in 16 bits. ``allgather``: keys and values gathered, two
calls. ``a2a``: heads exchanged for sequence (Ulysses). ``a2a+p2p``: heads exchanged inside, the ring outside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import gcd

from projector.errors import Unsupported
from projector.layers.attention_core import Heads, attention_calls, core, with_saved_tensors
from projector.layers.context_parallel_torch import ring
from projector.layers.local import LayerView
from projector.layers.quantise import quantised, received, sent
from projector.operators.module import Module
from projector.operators.types import Attention, Collective, Operator, Stream
from projector.parameter import parameter
from projector.size import most, whole

_MAX_STEPS = 8  # longer rings merge consecutive steps of one kind into one operator, to bound the operator count
_CORRECTION_LAUNCHES = parameter(
    3, unit="launches", kind="derived", source="running maximum, rescale, accumulate after each ring step"
)
_TOUCHED = parameter(
    0.75,
    kind="derived",
    source="under a mask, half of the steps behind the diagonal have results for half of the queries, or of the keys",
)


def core_attention(heads: Heads, view: LayerView, tags: frozenset[str]) -> Module:
    """Returns core attention under the recipe's ``cp`` and ``cp_comm_type``, with what it quantises and saves."""
    inputs, outputs = _elements(heads, view)
    return with_saved_tensors(quantised(_attention(heads, view, tags), inputs, outputs, view), heads, view)


def _elements(heads: Heads, view: LayerView) -> tuple[int, int]:
    """Returns the elements of queries, keys and values, and of the output, on this rank."""
    return view.tokens * (heads.heads * heads.qk + heads.kv_width), view.tokens * heads.heads * heads.v


def _attention(heads: Heads, view: LayerView, tags: frozenset[str]) -> Module:
    cp = view.recipe.cp
    if view.summa:  # the grid's second dimension splits the sequence
        return _gathered(heads, view, view.recipe.tp2, tags, "tp2")
    if cp == 1:
        return core(heads, view, tags)
    if view.recipe.dynamic_context_parallel:
        return by_length(_attention, heads, view, tags)
    method = view.recipe.cp_comm_type or "p2p"
    if view.recipe.document_lengths and method != "a2a":
        raise Unsupported(f"packed documents under context parallelism by {method}; a2a is modelled")
    if method == "p2p" and heads.window is not None:
        method = "allgather"  # the ring has no sliding window
    if method == "a2a":
        return _ulysses(heads, view, cp, 1, tags)
    if method == "a2a+p2p":
        inner = gcd(cp, heads.kv_heads)
        return _ulysses(heads, view, inner, cp // inner, tags)
    if method in ("allgather", "all_gather"):
        return _gathered(heads, view, cp, tags)
    return _ring(heads, view, cp, tags)


def _ring_steps(cp: int) -> list[tuple[bool, int]]:
    """Returns (full queries on half of the keys?, number of steps) after the diagonal step, averaged over the ranks."""
    full, half = (cp - 1) - (cp - 1) // 2, (cp - 1) // 2
    if cp <= _MAX_STEPS:
        return [(i % 2 == 0, 1) for i in range(cp - 1)]
    per_kind = _MAX_STEPS // 2
    steps = []
    for unmasked, total in ((True, full), (False, half)):
        steps += [
            (unmasked, total // per_kind + (i < total % per_kind))
            for i in range(per_kind)
            if total // per_kind + (i < total % per_kind)
        ]
    return steps


def _ring(heads: Heads, view: LayerView, cp: int, tags: frozenset[str]) -> Module:
    """Returns ring attention over ``cp`` ranks, each with ``seq_length/cp`` tokens of every sequence."""
    seq, eager = view.recipe.seq_length // cp, view.execution.fusion.eager_ring
    if eager and not view.model.causal:
        raise Unsupported("torch's ring of context parallelism without a causal mask")
    if eager:  # repeat_kv comes before the ring (torchtitan models/llama3/model)
        heads = replace(heads, kv_heads=heads.heads)
    keys = view.batch * seq * heads.kv_width
    out = view.batch * seq * heads.heads * heads.v
    first = attention_calls("core_attn.step0", heads, view, seq_q=seq, seq_k=seq)
    calls: list[tuple[Attention, Attention]] = [first]
    for i, (unmasked, count) in enumerate(_ring_steps(cp), start=1):
        q, k = (seq, seq) if not view.model.causal else (seq, seq // 2) if unmasked else (seq // 2, seq)
        calls.append(attention_calls(f"core_attn.step{i}", heads, view, seq_q=q, seq_k=k, causal=False, batch=count))
    sizes = [most(1, call[0].batch // view.batch) for call in calls]
    if eager:
        return ring(calls, sizes, (out, keys), view, tags)
    forward: list[Operator] = [_elementwise("cp.join", 1, view.act * keys, view.act * keys)]
    backward: list[Operator] = [_elementwise("cp.grad_join", 1, view.act * keys, view.act * keys)]
    for i, call in enumerate(calls):
        # each call runs beside the message that the next one waits for; the last gradients stay
        next_size = sizes[i + 1] if i + 1 < len(sizes) else 0
        if next_size:
            forward.append(_send(f"cp.send{i}", keys * sent(view) * next_size, call[0].name, next_size))
            backward.append(
                _send(f"cp.grad_send{i}", keys * (sent(view) + received(view)) * next_size, call[1].name, next_size)
            )
        forward.append(call[0])
        backward.append(call[1])
    touched = (cp - 1) * (_TOUCHED if view.model.causal else 1.0)
    partial, gradients = view.act * out, view.act * (keys + view.batch * seq * heads.heads * heads.qk)
    launches = _CORRECTION_LAUNCHES * (cp - 1)
    forward.append(_elementwise("cp.correct", launches, partial * (1 + 2 * touched), partial * (1 + touched)))
    backward.append(_elementwise("cp.grad_sum", launches, gradients * (1 + 2 * touched), gradients * (1 + touched)))
    return Module("core_attn", forward=tuple(forward), backward_input=tuple(backward), tags=tags)


def _elementwise(name: str, launches: int, read: float, write: float) -> Stream:
    return Stream(name, "elementwise", read, write, launches=launches)


def _send(name: str, nbytes: float, beside: str, launches: int) -> Collective:
    return Collective(name, "send_recv", "cp", nbytes, hides_behind=(beside,), launches=launches)


def _gathered(heads: Heads, view: LayerView, cp: int, tags: frozenset[str], group: str = "cp") -> Module:
    """Gathers keys and values of the whole sequence; a rank's two chunks attend in two calls, in one without a mask."""
    seq, chunk = view.recipe.seq_length, view.recipe.seq_length // (2 * cp)
    low = cp // 2  # any rank has the same area; this one is in the middle
    calls = [
        attention_calls(f"core_attn.chunk{i}", heads, view, seq_q=chunk, seq_k=(c + 1) * chunk)
        for i, c in enumerate((low, 2 * cp - 1 - low))
    ]
    if not view.model.causal:
        calls = [attention_calls("core_attn", heads, view, seq_q=seq // cp, seq_k=seq)]
    gathered = view.act * view.batch * seq * heads.kv_width
    copy = Stream("cp.reorder", "copy", gathered, gathered, launches=2)
    gather = Collective("cp.ag", "all_gather", group, gathered, launches=2)
    scatter = Collective("cp.grad_rs", "reduce_scatter", group, gathered, launches=2)
    return Module(
        "core_attn",
        forward=(gather, copy, *(call[0] for call in calls)),
        backward_input=(
            replace(gather, name="cp.grad_ag"),
            replace(copy, name="cp.grad_reorder", read=2 * gathered, write=2 * gathered, launches=4),
            *(call[1] for call in calls),
            scatter,
        ),
        tags=tags,
    )


def _ulysses(heads: Heads, view: LayerView, inner: int, outer: int, tags: frozenset[str]) -> Module:
    """Splits heads over ``inner`` ranks that then see their common sequence, with a ring over ``outer`` ranks around."""
    inputs, outputs = _elements(heads, view)
    own_heads = replace(heads, heads=most(1, heads.heads // inner), kv_heads=most(1, heads.kv_heads // inner))
    inside = core(own_heads, view, tags) if outer == 1 else _ring(own_heads, view, outer, tags)
    if inner == 1:
        return inside

    def exchange(name: str, nbytes: float, tensors: int) -> tuple[Operator, ...]:
        return (
            Stream(f"{name}.reorder", "copy", 2 * nbytes, 2 * nbytes, launches=2 * tensors),
            Collective(name, "all_to_all", "cp", nbytes, launches=tensors),
        )

    # TransformerEngine < 2.8 saves the output behind the exchange alone and brings it back beside its gradient
    output_kept = outer > 1 or view.execution.fusion.cp_a2a_keeps_output
    exchange_again = () if output_kept else exchange("cp.a2a_out_again", received(view) * outputs, 1)
    return Module(
        "core_attn",
        forward=(
            *exchange("cp.a2a_in", sent(view) * inputs, 3),
            *inside.forward,
            *exchange("cp.a2a_out", received(view) * outputs, 1),
        ),
        backward_input=(
            *exchange_again,
            *exchange("cp.a2a_grad_out", sent(view) * outputs, 1),
            *inside.backward_input,
            *exchange("cp.a2a_grad_in", received(view) * inputs, 3),
        ),
        tags=tags,
    )


# Context parallelism by the length of each document: each packed document runs on as many ranks as it needs.
#
# NVIDIA/Megatron-LM@00c51e13 megatron/core/datasets/data_schedule.py (``DefaultDynamicCPScheduler``) and
# data_schedule_utils.py (``dcp_gpus_needed``): a document runs on the smallest power of two of ranks, none of which
# holds more than ``max_seqlen_per_dp_cp_rank`` tokens. The scheduler fills the ranks of dp·cp with documents until
# their work is equal: a rank does 1/cp of every sample, thus n·g/cp of ``n`` documents on ``g`` ranks each.
Split = Callable[[Heads, LayerView, frozenset[str]], Module]


def ranks_of(length: int, most: int) -> int:
    """Returns the ranks of a document of ``length`` tokens, at most ``most`` on each."""
    return 1 << (-(-length // most) - 1).bit_length()


def by_length(split: Split, heads: Heads, view: LayerView, tags: frozenset[str]) -> Module:
    """Returns the attention of packed documents, each by ``split``, the attention of a recipe with a single document.
    Raises :class:`Unsupported` where no lengths are stated or latent attention would be split
    (megatron/core/transformer/multi_latent_attention.py refuses it, too)."""
    recipe = view.recipe
    if not recipe.document_lengths:
        raise Unsupported("dynamic context parallelism: nobody states document_lengths, by which it chooses ranks")
    if view.model.mla is not None:
        raise Unsupported("dynamic context parallelism of latent attention: Megatron-Core refuses it")
    forward: list[Operator] = []
    backward: list[Operator] = []
    degrees: set[int] = set()
    for length, number in sorted(Counter(recipe.document_lengths).items(), reverse=True):
        ranks = ranks_of(length, recipe.seq_length // recipe.cp)
        padded = -(-length // (2 * ranks)) * 2 * ranks if ranks > 1 else length  # to two equal parts on each rank
        single_recipe = replace(
            recipe, seq_length=padded, document_lengths=None, cp=ranks, dynamic_context_parallel=None
        )
        attention = split(heads, replace(view, recipe=single_recipe, tokens=view.batch * padded // ranks), tags)
        share, calls = number * ranks / recipe.cp, ranks not in degrees
        degrees.add(ranks)
        forward += [_scaled(op, length, share, calls) for op in attention.forward]
        backward += [_scaled(op, length, share, calls) for op in attention.backward_input]
    return Module("core_attn", forward=tuple(forward), backward_input=tuple(backward), tags=tags)


def _scaled(op: Operator, length: int, share: float, calls: bool) -> Operator:
    """Returns ``op`` ``share`` times over. Documents on equally many ranks are one call (``calls``: this one counts
    it); a share of attention takes that share of its heads, which run beside one another as documents do."""
    named = {"name": f"{op.name}.{length}", **({} if calls else {"launches": 0})}
    if isinstance(op, Attention):
        if share == int(share):
            return replace(op, batch=op.batch * whole(share), **named)  # type: ignore[arg-type]
        heads, keys = (most(1, round(number * share)) for number in (op.heads, op.kv_heads))
        return replace(op, heads=heads, kv_heads=keys, **named)  # type: ignore[arg-type]
    if isinstance(op, Collective):
        beside = tuple(f"{name}.{length}" for name in op.hides_behind)
        return replace(op, bytes=op.bytes * share, hides_behind=beside, **named)  # type: ignore[arg-type]
    if isinstance(op, Stream):
        return replace(op, read=op.read * share, write=op.write * share, **named)  # type: ignore[arg-type]
    return op
