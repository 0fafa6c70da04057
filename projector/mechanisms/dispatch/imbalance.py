"""How unevenly a router spreads tokens: loads of experts and of expert-parallel ranks under a stated distribution.

Loads of experts within a micro-batch are taken as independent and lognormal with mean 1 and coefficient of variation
``dispersion`` (0: forced balance), to which the draw of a finite number of rows adds a variance of 1/rows. A rank with n
local experts then varies by dispersion/√n around its mean, and the fullest of ``ranks`` ranks, for which all others wait
at the exchange, lies the expected maximum of that many normal draws above it (Blom, *Statistical Estimates and
Transformed Beta-Variables*, 1958: Φ⁻¹((r − 3/8)/(r + 1/4)), within 1 % for r ≥ 2).
"""

from __future__ import annotations

from math import exp, log

from projector.mechanism import mechanism
from projector.parameter import parameter
from projector.size import each, least, most, real, root

_BLOM = parameter(
    0.375, kind="published", source="expected maximum of normal draws: Blom, Statistical Estimates, 1958", unit="ranks"
)


def _quantile(share: float) -> float:
    """The quantile of the standard normal distribution at ``share``."""
    from statistics import NormalDist  # it loads decimal and random, which nothing else here needs

    return NormalDist().inv_cdf(share)


def expected_maximum(draws: int) -> float:
    """Of so many draws from the standard normal distribution; 0 of one."""
    return _quantile((draws - _BLOM) / (draws + 1.0 - 2.0 * _BLOM))


@mechanism(off=1.0)
def fullest_rank(dispersion: float, experts: int, ranks: int, rows: float) -> float:
    """Rows of the fullest of ``ranks`` ranks over the mean, each with ``experts`` experts and ``rows`` rows on average."""
    if ranks <= 1 or dispersion <= 0.0:
        return 1.0
    spread = root(dispersion**2 / experts + 1.0 / most(rows, 1.0))
    expected = each(expected_maximum, ranks) * root(1.0 - 1.0 / ranks)
    return real(least(1.0 + spread * expected, ranks))


def expert_loads(dispersion: float, experts: int) -> tuple[float, ...]:
    """Load of each of ``experts`` experts over their mean, fullest first: the quantiles of the distribution, mean 1."""
    if dispersion <= 0.0 or experts == 1:
        return (1.0,) * experts
    sigma = root(log(1.0 + dispersion**2))
    drawn = [exp(sigma * _quantile((i + 0.5) / experts)) for i in reversed(range(experts))]
    mean = sum(drawn) / experts
    return tuple(load / mean for load in drawn)


def kept_share(dispersion: float, experts: int, capacity_factor: float) -> float:
    """Share of routed rows that experts of ``capacity_factor`` times the mean load take; the rest is dropped."""
    loads = expert_loads(dispersion, experts)
    return sum(min(load, capacity_factor) for load in loads) / experts
