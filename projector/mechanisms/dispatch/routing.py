"""How many rows the experts of one rank receive, and how many ranks and nodes one token reaches."""

from __future__ import annotations

from functools import partial
from math import comb

from projector.dataclass import dataclass
from projector.mechanisms.dispatch.imbalance import fullest_rank, kept_share
from projector.operators.rank import Rank
from projector.size import ceil, each, least, most
from projector.workload.model import MoE

# quantised grouped GEMMs need rows per expert in multiples (core/fp8_utils.py, get_align_size_for_quantization)
_ROW_ALIGNMENT = {"mxfp8": 32, "mxfp4": 32, "nvfp4": 32}
_FP8_ALIGNMENT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """Routing seen by the fullest rank: ``tokens`` here, ``sent`` copies of them, ``received`` copies for local experts
    over the whole expert-tensor group, ``rows`` the same as executed (padded), ``experts`` local ones. ``held``: rows of
    the buffers that copies and element-wise kernels go through; under static shapes (XLA) a dropless layer must hold
    the worst case, though the products skip what is empty: every token of every rank as often as it may choose among the
    experts of one (AI-Hypercomputer/maxtext MaxText/layers/moe.py, ``max_local_experts_per_tok``).

    ``fixed``: shapes do not depend on the router (every expert padded to its capacity), so the host never waits.
    """

    tokens: int
    sent: int
    received: int
    rows: int
    held: int
    experts: int
    fixed: bool


def routed(moe: MoE, lo: Rank, uneven: float, static_shapes: bool) -> Routed:
    """How many rows this rank sends and computes, from top-k, capacity factor and the padding of quantised GEMMs.

    ``uneven``: coefficient of variation of the loads of experts.
    """
    recipe, tokens = lo.recipe, lo.shard_tokens
    sent, fixed = ceil(tokens * moe.computed_topk), False
    experts = most(1, moe.num_experts // recipe.ep)
    fullest = fullest_rank(uneven, experts, recipe.ep, sent)
    if (factor := recipe.moe_expert_capacity_factor) is not None:
        fixed = bool(recipe.moe_pad_expert_input_to_capacity)
        if fixed:
            sent = ceil(tokens * moe.computed_topk / moe.num_experts * factor) * moe.num_experts
            fullest = 1.0
        else:
            sent = ceil(sent * kept_share(uneven, moe.num_experts, factor))
            fullest = least(fullest, factor)
    received = ceil(sent * fullest) * recipe.etp
    rows = received
    if lo.quantised:
        unit = _ROW_ALIGNMENT.get(lo.cast_recipe, _FP8_ALIGNMENT)
        rows = ceil(received / experts / unit) * unit * experts
    worst = ceil(tokens * least(moe.computed_topk, experts)) * recipe.etp * recipe.ep
    held = worst if static_shapes and not fixed else rows
    return Routed(
        tokens=tokens,
        sent=sent,
        received=received,
        rows=rows,
        held=held,
        experts=experts,
        fixed=fixed,
    )


def distinct_destinations(moe: MoE, blocks: int) -> float:
    """Expected number of distinct blocks, of ``blocks`` equal blocks of experts (ranks, nodes), that a token reaches.

    Uniform routing: B·(1 − C(E−E/B, k)/C(E, k)). Group-limited routing first
    draws ``moe_router_group_topk`` groups (hypergeometric over the groups inside a block) and then k experts inside them.
    """
    return each(partial(_distinct_destinations, moe), blocks)


def _distinct_destinations(moe: MoE, blocks: int) -> float:
    experts, topk = moe.num_experts, round(moe.computed_topk)
    block = experts / blocks
    groups = moe.moe_router_num_groups or 1
    chosen = least(moe.moe_router_group_topk or groups, groups)
    group = experts // groups
    inside = most(1, round(block / group))  # whole groups of a block, or 1 when the block is a part of one group
    in_one = least(block, group)
    pool = chosen * group
    miss = 0.0
    for hit in range(least(inside, chosen) + 1):
        share = comb(inside, hit) * comb(groups - inside, chosen - hit) / comb(groups, chosen)
        miss += share * _none_of(pool, round(hit * in_one), topk)
    return blocks * (1.0 - miss)


def _none_of(pool: int, block: int, topk: int) -> float:
    """Probability that ``topk`` draws without replacement from ``pool`` all miss ``block`` of them."""
    return comb(pool - block, topk) / comb(pool, topk) if topk <= pool else 0.0
