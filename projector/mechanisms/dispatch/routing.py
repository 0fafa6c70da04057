"""The rows that the experts of one rank receive, and the ranks and nodes that one token reaches."""

from __future__ import annotations

from functools import partial
from math import comb, exp, log

from projector.dataclass import dataclass
from projector.mechanism import mechanism
from projector.operators.rank import Rank
from projector.parameter import parameter
from projector.size import ceil, least, most, per_row, real, root
from projector.workload.model import MoE

# How unevenly a router spreads tokens: loads of experts and of expert-parallel ranks under a stated distribution.
#
# Loads of experts within a micro-batch are taken as independent and lognormal with mean 1 and coefficient of variation
# ``dispersion`` (0: forced balance), to which the draw of a finite number of rows adds a variance of 1/rows. A rank with n
# local experts then varies by dispersion/√n around its mean, and the fullest of ``ranks`` ranks, for which all others wait
# at the exchange, lies the expected maximum of that many normal draws above it (Blom, *Statistical Estimates and
# Transformed Beta-Variables*, 1958: Φ⁻¹((r − 3/8)/(r + 1/4)), within 1 % for r ≥ 2).
_BLOM = parameter(
    0.375, kind="published", source="expected maximum of normal draws: Blom, Statistical Estimates, 1958", unit="ranks"
)


def _quantile(share: float) -> float:
    from statistics import NormalDist  # it loads decimal and random, which nothing else here needs

    return NormalDist().inv_cdf(share)


def expected_maximum(draws: int) -> float:
    """Returns the expected maximum of ``draws`` draws from the standard normal distribution; 0 for one."""
    return _quantile((draws - _BLOM) / (draws + 1.0 - 2.0 * _BLOM))


@mechanism(off=1.0)
def fullest_rank(dispersion: float, experts: int, ranks: int, rows: float) -> float:
    """Returns the rows of the fullest of ``ranks`` ranks over their mean ``rows``, each rank with ``experts`` experts."""
    if ranks <= 1 or dispersion <= 0.0:
        return 1.0
    spread = root(dispersion**2 / experts + 1.0 / most(rows, 1.0))
    expected = per_row(expected_maximum, ranks) * root(1.0 - 1.0 / ranks)
    return real(least(1.0 + spread * expected, ranks))


def expert_loads(dispersion: float, experts: int) -> tuple[float, ...]:
    """Returns the load of each of ``experts`` experts over the mean, fullest first: quantiles of the distribution."""
    if dispersion <= 0.0 or experts == 1:
        return (1.0,) * experts
    sigma = root(log(1.0 + dispersion**2))
    drawn = [exp(sigma * _quantile((i + 0.5) / experts)) for i in reversed(range(experts))]
    mean = sum(drawn) / experts
    return tuple(load / mean for load in drawn)


def kept_share(dispersion: float, experts: int, capacity_factor: float) -> float:
    """Returns the share of routed rows that experts of ``capacity_factor`` times the mean load take and do not drop."""
    loads = expert_loads(dispersion, experts)
    return sum(min(load, capacity_factor) for load in loads) / experts


# quantised grouped GEMMs need rows per expert in multiples (core/fp8_utils.py, get_align_size_for_quantization)
_ROW_ALIGNMENT = {"mxfp8": 32, "mxfp4": 32, "nvfp4": 32}
_FP8_ALIGNMENT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """Routing seen by the fullest rank: ``tokens`` here, ``sent`` copies of them, ``received`` copies for local experts
    over the whole expert-tensor group, ``rows`` the same as executed (padded), ``experts`` local ones. ``held``: rows
    of the buffers that copies and element-wise kernels go through; under static shapes (XLA) a dropless layer must hold
    the worst case, though the products skip empty rows: every token of every rank as often as it may choose among the
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


def routed(moe: MoE, view: Rank, uneven: float, static_shapes: bool) -> Routed:
    """Returns the rows that this rank sends and computes, from top-k, capacity factor and the padding of quantised GEMMs.

    ``uneven``: coefficient of variation of the loads of experts. ``moe_grouped_gemm: padded``: every local expert
    computes as many rows as the fullest (KempnerInstitute/KempnerForge@5666d0d kempnerforge/model/moe.py,
    ``grouped_expert_forward``; DeepSpeed's MoE without ``drop_tokens`` has that capacity).
    """
    recipe, tokens = view.recipe, view.shard_tokens
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
    if recipe.moe_grouped_gemm == "padded":
        rows = ceil(received / experts * fullest_rank(uneven, 1, experts, received / experts)) * experts
    if view.quantised:
        unit = _ROW_ALIGNMENT.get(view.cast_recipe, _FP8_ALIGNMENT)
        rows = ceil(rows / experts / unit) * unit * experts
    worst = ceil(tokens * least(moe.computed_topk, experts)) * recipe.etp * recipe.ep
    held = worst if static_shapes and not fixed else rows
    return Routed(tokens=tokens, sent=sent, received=received, rows=rows, held=held, experts=experts, fixed=fixed)


def distinct_destinations(moe: MoE, blocks: int) -> float:
    """Returns the expected number of ``blocks`` equal blocks of experts (ranks, nodes) that a token reaches.

    Uniform routing: B·(1 − C(E−E/B, k)/C(E, k)). Group-limited routing first draws ``moe_router_group_topk`` groups
    (hypergeometric over the groups inside a block) and then k experts inside them.
    """
    return per_row(partial(_distinct_destinations, moe), blocks)


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
        missed = pool - round(hit * in_one)  # where ``topk`` draws without replacement miss the block
        miss += share * (comb(missed, topk) / comb(pool, topk) if topk <= pool else 0.0)
    return blocks * (1.0 - miss)
