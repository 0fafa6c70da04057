"""Core attention whose sequence is split over the context-parallel group.

After NVIDIA/TransformerEngine@d0067d0da attention/dot_product_attention/context_parallel.py. The sequence is cut into
2·cp chunks and rank r holds chunks r and 2·cp−1−r, so every rank has the same share of the causal triangle.
``p2p``: a ring of cp steps, each a kernel of its own, its exchange beside the step before it. ``allgather``: keys and
values gathered, two calls. ``a2a``: heads exchanged for sequence (Ulysses). ``a2a+p2p``: the former inside, the ring
outside.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from projector.layers.attention_core import Heads, attend, core, remembering
from projector.layers.context_parallel_torch import ring
from projector.layers.local import Local
from projector.operators.part import Part
from projector.operators.types import Attention, Collective, Operator, Stream
from projector.parameter import parameter

__all__ = ["core_attention"]

_MAX_STEPS = 8  # longer rings merge consecutive steps of one kind into one operator, to bound the operator count
_CORRECTION_LAUNCHES = parameter(
    3, unit="launches", kind="derived", source="running maximum, rescale, accumulate after each ring step"
)


def core_attention(heads: Heads, lo: Local, tags: frozenset[str]) -> Part:
    """Core attention under the recipe's ``cp`` and ``cp_comm_type``."""
    return remembering(_attention(heads, lo, tags), heads, lo)


def _attention(heads: Heads, lo: Local, tags: frozenset[str]) -> Part:
    cp = lo.recipe.cp
    if cp == 1:
        return core(heads, lo, tags)
    how = lo.recipe.cp_comm_type or "p2p"
    if how == "p2p" and heads.window is not None:
        how = "allgather"  # the ring has no sliding window
    if how == "a2a":
        return _ulysses(heads, lo, cp, 1, tags)
    if how == "a2a+p2p":
        inner = gcd(cp, heads.kv_heads)
        return _ulysses(heads, lo, inner, cp // inner, tags)
    if how in ("allgather", "all_gather"):
        return _gathered(heads, lo, cp, tags)
    return _ring(heads, lo, cp, tags)


def _ring_steps(cp: int) -> list[tuple[bool, int]]:
    """(full queries on half of the keys?, how many steps): what follows the diagonal step, averaged over the ranks."""
    full, half = (cp - 1) - (cp - 1) // 2, (cp - 1) // 2
    if cp <= _MAX_STEPS:
        return [(i % 2 == 0, 1) for i in range(cp - 1)]
    each = _MAX_STEPS // 2
    steps = []
    for whole, total in ((True, full), (False, half)):
        steps += [
            (whole, total // each + (i < total % each)) for i in range(each) if total // each + (i < total % each)
        ]
    return steps


def _ring(heads: Heads, lo: Local, cp: int, tags: frozenset[str]) -> Part:
    """Ring attention over ``cp`` ranks, each with ``seq_length/cp`` tokens of every sequence."""
    seq, eager = lo.recipe.seq_length // cp, lo.execution.fusion.eager_ring
    if eager:  # repeat_kv comes before the ring (torchtitan models/llama3/model)
        heads = replace(heads, kv_heads=heads.heads)
    keys = lo.act * lo.batch * seq * heads.kv_width
    out = lo.batch * seq * heads.heads * heads.v
    first = attend("core_attn.step0", heads, lo, seq_q=seq, seq_k=seq)
    calls: list[tuple[Attention, Attention]] = [first]
    for i, (whole, count) in enumerate(_ring_steps(cp), start=1):
        q, k = (seq, seq // 2) if whole else (seq // 2, seq)
        calls.append(attend(f"core_attn.step{i}", heads, lo, seq_q=q, seq_k=k, causal=False, batch=count))
    sizes = [max(1, call[0].batch // lo.batch) for call in calls]
    if eager:
        return ring(calls, sizes, (out, keys / lo.act), lo, tags)
    forward: list[Operator] = []
    backward: list[Operator] = []
    for i, (call, size) in enumerate(zip(calls, sizes, strict=True)):
        into = sizes[i + 1] if i + 1 < len(sizes) else 0
        if into:
            forward.append(_send(f"cp.send{i}", keys * into, call[0].name, into))
        forward.append(call[0])
        # backward sends keys and values cp−1 times and their gradients cp times
        backward.append(_send(f"cp.grad_send{i}", keys * (into + size), call[1].name, max(1, into)))
        backward.append(call[1])
    steps = cp - 1
    forward.append(
        Stream(
            name="cp.correct",
            kind="elementwise",
            read=(4.0 + lo.act) * out * steps,  # partial output read, fp32 sum updated
            write=4.0 * out * steps,
            launches=_CORRECTION_LAUNCHES * steps,
        )
    )
    sums = keys * steps + lo.act * lo.batch * seq * heads.heads * heads.qk * steps
    backward.append(
        Stream(
            name="cp.grad_sum",
            kind="elementwise",
            read=2.0 * sums,
            write=sums,
            launches=_CORRECTION_LAUNCHES * steps,
        )
    )
    return Part(name="core_attn", forward=tuple(forward), backward_input=tuple(backward), tags=tags)


def _send(name: str, nbytes: float, beside: str, launches: int) -> Collective:
    return Collective(name=name, kind="send_recv", group="cp", bytes=nbytes, hides_behind=(beside,), launches=launches)


def _gathered(heads: Heads, lo: Local, cp: int, tags: frozenset[str]) -> Part:
    """Keys and values of the whole sequence on every rank; the two chunks of a rank attend in two calls."""
    seq, chunk = lo.recipe.seq_length, lo.recipe.seq_length // (2 * cp)
    low = cp // 2  # any rank has the same area; this one is in the middle
    calls = [
        attend(f"core_attn.chunk{i}", heads, lo, seq_q=chunk, seq_k=(c + 1) * chunk)
        for i, c in enumerate((low, 2 * cp - 1 - low))
    ]
    gathered = lo.act * lo.batch * seq * heads.kv_width
    copy = Stream(name="cp.reorder", kind="copy", read=gathered, write=gathered, launches=2)
    gather = Collective(name="cp.ag", kind="all_gather", group="cp", bytes=gathered, launches=2)
    scatter = Collective(name="cp.grad_rs", kind="reduce_scatter", group="cp", bytes=gathered, launches=2)
    return Part(
        name="core_attn",
        forward=(gather, copy, *(call[0] for call in calls)),
        backward_input=(
            replace(gather, name="cp.grad_ag"),
            replace(copy, name="cp.grad_reorder", read=2 * gathered, write=2 * gathered, launches=4),
            *(call[1] for call in calls),
            scatter,
        ),
        tags=tags,
    )


def _ulysses(heads: Heads, lo: Local, inner: int, outer: int, tags: frozenset[str]) -> Part:
    """Heads split over ``inner`` ranks that then see their common sequence; a ring over ``outer`` ranks around it."""
    query, output = heads.heads * heads.qk, heads.heads * heads.v
    inputs, outputs = lo.act * lo.tokens * (query + heads.kv_width), lo.act * lo.tokens * output
    mine = replace(heads, heads=max(1, heads.heads // inner), kv_heads=max(1, heads.kv_heads // inner))
    inside = core(mine, lo, tags) if outer == 1 else _ring(mine, lo, outer, tags)
    if inner == 1:
        return inside

    def exchange(name: str, nbytes: float, tensors: int) -> tuple[Operator, ...]:
        return (
            Stream(name=f"{name}.reorder", kind="copy", read=2 * nbytes, write=2 * nbytes, launches=2 * tensors),
            Collective(name=name, kind="all_to_all", group="cp", bytes=nbytes, launches=tensors),
        )

    return Part(
        name="core_attn",
        forward=(*exchange("cp.a2a_in", inputs, 3), *inside.forward, *exchange("cp.a2a_out", outputs, 1)),
        backward_input=(
            *exchange("cp.a2a_grad_out", outputs, 1),
            *inside.backward_input,
            *exchange("cp.a2a_grad_in", inputs, 3),
        ),
        tags=tags,
    )
