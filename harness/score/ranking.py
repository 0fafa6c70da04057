"""Measures whether the projection orders the configurations of a group as the measurement does. Pure functions.

Kendall's tau-b (Kendall 1945) with pairs inside the measured noise counted as ties, the share of distinguishable pairs
that the projection orders alike, and top-1 regret: the throughput lost by running the configuration that the projection
calls best. Read as a search over its configurations, a group also has a place at which the projection puts the measured
best, and a share of the measured first three that are among the projected first three.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.score import resample
from projector.dataclass import dataclass
from projector.io.rows import grouped

if TYPE_CHECKING:
    import pandas as pd

Signs = NDArray[np.int8]
#: The ends of an interval.
Range = tuple[float, float] | None

# Relative throughput difference below which two measurements are not told apart, where a source states no
# spread. A convention of this harness, not a measurement.
NOISE = 0.01

# Projections closer than this are equal: their difference is rounding.
SAME = 1e-9

# Configurations from which on a group is a search: of three, the first three are all.
SEARCHED = 4
_FIRST = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupRanking:
    """The ranking of one group. ``tau`` and ``agreement`` are None where every measured pair is tied; ``missing``: rows
    without a projection. ``differs``: the configuration keys that change inside the group; ``unseen``: the keys among
    them that no projector sees (switches of a framework, its version); ``stated``: other keys change, too.
    ``chosen``/``best``: ids of the projected and the measured first. ``place``, ``recall``: see :func:`place`,
    :func:`recall`; None for a group of less than ``SEARCHED`` rows."""

    group: str
    rows: int
    missing: int
    tau: float | None
    agreement: float | None
    pairs: int
    regret: float
    chosen: str
    best: str
    differs: tuple[str, ...]
    stated: bool
    unseen: tuple[str, ...] = ()
    place: float | None = None
    recall: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RankingSummary:
    """The rankings of several groups: macro (mean over groups) tau, agreement and regret, and the agreement pooled over
    all pairs. ``…_range``: 90 % bootstrap interval over groups (:mod:`harness.score.resample`); None for fewer than two
    groups."""

    groups: int
    rows: int
    tau: float | None
    agreement: float | None
    pooled_agreement: float | None
    regret: float | None
    worst_regret: float | None
    worst_group: str
    tau_range: Range = None
    agreement_range: Range = None
    pooled_range: Range = None
    regret_range: Range = None
    searches: int = 0
    place: float | None = None
    recall: float | None = None


def _signs(values: ArrayLike, noise: ArrayLike) -> Signs:
    """Returns the sign of every pair i < j of positive values; 0 where they differ by no more than the noise (relative)."""
    log = np.log(np.asarray(values, dtype=float))
    spread = np.broadcast_to(np.asarray(noise, dtype=float), log.shape)
    i, j = _pairs(len(log))
    difference = log[i] - log[j]
    allowed = np.log1p(np.maximum(spread[i], spread[j]))
    return np.where(np.abs(difference) <= allowed + 1e-15, 0, np.sign(difference)).astype(np.int8)


@lru_cache(maxsize=256)
def _pairs(number: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return np.triu_indices(number, 1)


def tau_b(measured: ArrayLike, projected: ArrayLike, noise: ArrayLike = NOISE) -> float | None:
    """Returns Kendall's tau-b of two positive series. ``noise``: relative, one value or one a row (a pair takes the
    larger). None where the measurement ties every pair; 0 where only the projection does: no opinion earns nothing."""
    return _tau(_signs(measured, noise), _signs(projected, SAME))


def _tau(x: Signs, y: Signs) -> float | None:
    if not np.any(x):
        return None
    scale = math.sqrt(float(np.count_nonzero(x)) * float(np.count_nonzero(y)))
    return float(np.sum(x.astype(int) * y)) / scale if scale else 0.0


def agreement(measured: ArrayLike, projected: ArrayLike) -> tuple[float | None, int]:
    """Returns the share of measurably different pairs projected in order (a projected tie is half), and their number."""
    return _agreement(_signs(measured, NOISE), _signs(projected, SAME))


def _agreement(x: Signs, y: Signs) -> tuple[float | None, int]:
    real = x != 0
    pairs = int(real.sum())
    if not pairs:
        return None, 0
    return float(((x == y)[real] + 0.5 * (y == 0)[real]).mean()), pairs


def regret(measured: ArrayLike, projected: ArrayLike) -> float:
    """Returns 1 − measured throughput of the projected best / measured best; projected ties cost their mean."""
    m, p = np.asarray(measured, dtype=float), np.asarray(projected, dtype=float)
    first = p >= p.max() * (1 - SAME)
    return float(1.0 - m[first].mean() / m.max())


def place(measured: ArrayLike, projected: ArrayLike) -> float:
    """Returns the place of the measured best in the projected order: 1 is first; ties share their mean place."""
    m, p = np.asarray(measured, dtype=float), np.asarray(projected, dtype=float)
    best = p[int(np.argmax(m))]
    ahead, tied = np.count_nonzero(p > best * (1 + SAME)), np.count_nonzero(np.abs(p / best - 1.0) <= SAME)
    return float(ahead + (tied + 1) / 2)


def recall(measured: ArrayLike, projected: ArrayLike) -> float:
    """Returns the share of the projected first three that measure among the first three, or within noise of them."""
    m, p = np.asarray(measured, dtype=float), np.asarray(projected, dtype=float)
    least = np.sort(m)[-_FIRST] / (1.0 + NOISE)
    return float((m[np.argsort(-p, kind="stable")[:_FIRST]] >= least).mean())


def group_rankings(rows: pd.DataFrame) -> list[GroupRanking]:
    """Ranks every group of rows (one predictor, one fit) with at least two comparable rows, in order of appearance."""
    figures = rows[["measured_tgs", "projected_tgs", "rel_std"]].to_numpy(dtype=float)
    texts = zip(*(rows[name] for name in ("group", "run_id", "differs", "switches")), strict=True)
    groups = grouped(
        (group, _Member(run_id, differs, switches, measured, projected, max(NOISE, spread)))
        for (group, run_id, differs, switches), (measured, projected, spread) in zip(
            texts, figures.tolist(), strict=True
        )
        if group and not math.isnan(measured)
    )
    split = ((name, members, [m for m in members if not math.isnan(m.projected)]) for name, members in groups.items())
    return [_rank_group(name, len(members), known) for name, members, known in split if len(known) > 1]


class _Member(NamedTuple):
    """A row of a group; ``spread``: the relative one of its measurement."""

    run_id: str
    differs: Mapping[str, str]
    switches: Sequence[str]
    measured: float
    projected: float
    spread: float


def _rank_group(name: str, members: int, rows: Sequence[_Member]) -> GroupRanking:
    """Ranks one group. ``members``: number of its rows; ``rows``: its rows that were projected."""
    measured, projected, spread = (np.array(column) for column in list(zip(*rows, strict=True))[3:])
    signs = _signs(measured, spread), _signs(projected, SAME)
    share, pairs = _agreement(*signs)
    differs = differing([row.differs for row in rows])
    unseen = {key for row in rows for key in row.switches}
    return GroupRanking(
        group=name,
        rows=len(rows),
        missing=members - len(rows),
        tau=_tau(*signs),
        agreement=share,
        pairs=pairs,
        regret=regret(measured, projected),
        chosen=rows[int(np.argmax(np.round(np.log(projected), 9)))].run_id,  # the first of equal ones, on any machine
        best=rows[int(np.argmax(measured))].run_id,
        differs=differs,
        stated=bool(set(differs) - unseen),
        unseen=tuple(key for key in differs if key in unseen),
        place=place(measured, projected) if len(rows) >= SEARCHED else None,
        recall=recall(measured, projected) if len(rows) >= SEARCHED else None,
    )


def differing(configurations: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Returns the keys of configurations of which not all have the same value, in order of first appearance."""
    keys = dict.fromkeys(key for c in configurations for key in c)
    return tuple(k for k in keys if len({c.get(k, "") for c in configurations}) > 1)


def summary(groups: Sequence[GroupRanking]) -> RankingSummary:
    """Returns the macro figures over groups; None where no group defines them."""
    taus = [g.tau for g in groups if g.tau is not None]
    shares = [(g.agreement, g.pairs) for g in groups if g.agreement is not None]
    pairs = sum(n for _, n in shares)
    worst = max(groups, key=lambda g: g.regret, default=None)
    return RankingSummary(
        groups=len(groups),
        rows=sum(g.rows for g in groups),
        tau=_mean(taus),
        agreement=_mean([a for a, _ in shares]),
        pooled_agreement=math.fsum(a * n for a, n in shares) / pairs if pairs else None,
        regret=_mean([g.regret for g in groups]),
        worst_regret=worst.regret if worst else None,
        worst_group=worst.group if worst and worst.regret > 0 else "",
        tau_range=resample.of_mean(taus),
        agreement_range=resample.of_mean([a for a, _ in shares]),
        pooled_range=resample.of_ratio([a * n for a, n in shares], [n for _, n in shares]),
        regret_range=resample.of_mean([g.regret for g in groups]),
        searches=sum(g.place is not None for g in groups),
        place=_mean([g.place for g in groups if g.place is not None]),
        recall=_mean([g.recall for g in groups if g.recall is not None]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
