"""Context parallelism by the length of each document: of packed documents each runs on as many ranks as it needs.

NVIDIA/Megatron-LM@00c51e13 megatron/core/datasets/data_schedule.py (``DefaultDynamicCPScheduler``) and
data_schedule_utils.py (``dcp_gpus_needed``): a document runs on the smallest power of two of ranks of which none holds more
than ``max_seqlen_per_dp_cp_rank`` tokens. The scheduler fills the ranks of dp·cp with documents until their work is alike:
of every sample a rank does 1/cp: of ``n`` documents on ``g`` ranks each, its part of n·g/cp.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from projector.errors import Unsupported
from projector.layers.attention_core import Heads
from projector.layers.local import Local
from projector.operators.part import Part
from projector.operators.types import Attention, Collective, Operator, Stream
from projector.size import most, whole

Split = Callable[[Heads, Local, frozenset[str]], Part]


def ranks_of(length: int, most: int) -> int:
    """Ranks of a document of ``length`` tokens, ``most`` on each."""
    return 1 << (-(-length // most) - 1).bit_length()


def by_length(split: Split, heads: Heads, lo: Local, tags: frozenset[str]) -> Part:
    """``split``: attention of a recipe whose one document is its sequence. Raises :class:`Unsupported` where no lengths are
    stated or latent attention would be split (megatron/core/transformer/multi_latent_attention.py refuses it, too)."""
    recipe = lo.recipe
    if not recipe.document_lengths:
        raise Unsupported("dynamic context parallelism: nobody states document_lengths, by which it chooses ranks")
    if lo.model.mla is not None:
        raise Unsupported("dynamic context parallelism of latent attention: Megatron-Core refuses it")
    forward: list[Operator] = []
    backward: list[Operator] = []
    seen: set[int] = set()
    for length, number in sorted(Counter(recipe.document_lengths).items(), reverse=True):
        ranks = ranks_of(length, recipe.seq_length // recipe.cp)
        whole = -(-length // (2 * ranks)) * 2 * ranks if ranks > 1 else length  # padded to two parts of each rank
        alone = replace(recipe, seq_length=whole, document_lengths=None, cp=ranks, dynamic_context_parallel=None)
        one = split(heads, replace(lo, recipe=alone, tokens=lo.batch * whole // ranks), tags)
        share, calls = number * ranks / recipe.cp, ranks not in seen
        seen.add(ranks)
        forward += [_part_of(op, length, share, calls) for op in one.forward]
        backward += [_part_of(op, length, share, calls) for op in one.backward_input]
    return Part(name="core_attn", forward=tuple(forward), backward_input=tuple(backward), tags=tags)


def _part_of(op: Operator, length: int, share: float, calls: bool) -> Operator:
    """``op`` ``share`` times over. Documents on as many ranks are one call (``calls``: this one counts it); of attention a
    share is one of its heads, which run beside one another as documents do."""
    named = {"name": f"{op.name}.{length}", **({} if calls else {"launches": 0})}
    if isinstance(op, Attention):
        if share == int(share):
            return replace(op, batch=op.batch * whole(share), **named)  # type: ignore[arg-type]
        heads, keys = (most(1, round(each * share)) for each in (op.heads, op.kv_heads))
        return replace(op, heads=heads, kv_heads=keys, **named)  # type: ignore[arg-type]
    if isinstance(op, Collective):
        beside = tuple(f"{name}.{length}" for name in op.hides_behind)
        return replace(op, bytes=op.bytes * share, hides_behind=beside, **named)  # type: ignore[arg-type]
    if isinstance(op, Stream):
        return replace(op, read=op.read * share, write=op.write * share, **named)  # type: ignore[arg-type]
    return op
