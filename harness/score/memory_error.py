"""The error of the memory model on measured peaks, and the tolerance of the verdict that follows from it. Pure
functions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.calibrate import weights
from harness.score.ranking import agreement, tau_b
from projector.dataclass import dataclass
from projector.io.rows import grouped
from projector.memory.tolerance import NEW

LEVEL = 0.9
#: Least effective peaks of a tolerance: with fewer the corrected level passes 95 %, and one or two rows would decide.
_LEAST = 19.0
#: A source weighs as many peaks as it has, up to this: a table of fifty does not outweigh all others.
_MOST = 10
#: With fewer sources none is left out as the oddest, and a kind has no narrower tolerance than all peaks together.
_SOURCES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A measured peak beside the projected one. ``error``: ln(measured / projected). ``kind``: see
    :func:`projector.memory.tolerance.kind`; ``counts``: what the source counts, ``block`` for an allocation that failed.
    """

    run_id: str
    source: str
    gpu: str
    family: str
    kind: str
    counts: str
    error: float

    @property
    def cell(self) -> tuple[str, str, str]:
        return self.source, self.gpu, self.family


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOutcome:
    """A measured outcome beside its verdict. ``close``: too close to tell; ``right``: the likelier verdict came true."""

    run_id: str
    ran: bool
    right: bool
    close: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """The peaks of one run of a ``group`` in GiB, ``projected`` as the source ``counts``."""

    group: str
    counts: str
    measured: float
    projected: float


class Order(NamedTuple):
    """How well the peaks of a group are ordered: tau-b, the share of the measurably different ``pairs`` that are
    projected in the measured order, and the number of these pairs. None where no measured peaks differ."""

    group: str
    rows: int
    tau: float | None
    agreement: float | None
    pairs: int


def orders(found: Iterable[Sized]) -> list[Order]:
    """Returns the order of every group with at least two peaks that count the same, sorted by group."""
    by = grouped(((run.group, run.counts), run) for run in found)
    ordered = []
    for (group, _), runs in sorted(by.items()):
        measured, projected = [run.measured for run in runs], [run.projected for run in runs]
        if len(runs) > 1:
            ordered.append(Order(group, len(runs), tau_b(measured, projected), *agreement(measured, projected)))
    return ordered


def tolerances(found: Sequence[Peak]) -> dict[str, float]:
    """Returns the tolerance of every kind with enough peaks, and of all peaks (``other``), which is the least for a kind
    of few sources: peaks of one code say little of another's. Layers that nobody has counted (``new``) stand apart:
    their largest error, however few their peaks."""
    new = [abs(peak.error) for peak in found if peak.kind == NEW]
    found = [peak for peak in found if peak.kind != NEW]
    by_kind = {"other": _quantile(found)} | ({NEW: max(new)} if new else {})
    for name in sorted({peak.kind for peak in found}):
        of_kind = [peak for peak in found if peak.kind == name]
        if _effective(of_kind) >= _LEAST:
            few_sources = len({peak.source for peak in of_kind}) < _SOURCES
            by_kind[name] = max(_quantile(of_kind), by_kind["other"] if few_sources else 0.0)
    return by_kind


def held_out(found: Sequence[Peak]) -> dict[str, tuple[int, int]]:
    """Returns by source the number of peaks within the tolerance that all other sources give, and of all its peaks."""
    by_source = {}
    for source in sorted({peak.source for peak in found}):
        peaks = [peak for peak in found if peak.source == source]
        learnt = tolerances([peak for peak in found if peak.source != source])
        inside = sum(abs(peak.error) <= learnt.get(peak.kind, learnt["other"]) for peak in peaks)
        by_source[source] = (inside, len(peaks))
    return by_source


def _quantile(found: Sequence[Peak]) -> float:
    """Returns the conformal quantile of |error| of all sources but the oddest: the least that one source left out
    leaves. With few sources, of all; infinite where there are too few peaks."""
    sources = {peak.source for peak in found}
    if len(sources) < _SOURCES:
        return _conformal(found)
    return min(_conformal([peak for peak in found if peak.source != source]) for source in sources)


def _conformal(found: Sequence[Peak]) -> float:
    level = LEVEL * (1.0 + 1.0 / _effective(found)) if found else math.inf
    if level > 1.0:
        return math.inf
    return weights.quantile(np.abs([peak.error for peak in found]), _weights(found), level)


def _weights(found: Sequence[Peak]) -> NDArray[np.float64]:
    count = Counter(peak.source for peak in found)
    return np.array([min(count[peak.source], _MOST) / count[peak.source] for peak in found])


def _effective(found: Sequence[Peak]) -> float:
    """Returns the number of peaks of equal weight that would say as much (Kish)."""
    weight = _weights(found)
    return float(weight.sum() ** 2 / (weight**2).sum())
