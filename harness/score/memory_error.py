"""Error of the memory model on measured peaks, and the tolerance of the verdict that follows from it: pure functions."""

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
#: With fewer (effective) peaks the corrected level passes 95 %: one or two rows would decide.
_LEAST = 19.0
#: A source weighs as many of its peaks as there are, up to this: neither a table of fifty nor a single row is all.
_MOST = 10
#: With fewer sources none can be called odd, and no kind is narrower than all.
_SOURCES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """``error``: ln(measured / projected). ``kind``: see :func:`projector.memory.tolerance.kind`; ``counts``: what the
    source counts, ``block`` for an allocation that failed."""

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
class Judged:
    """A measured outcome beside its verdict. ``close``: too close to tell; ``right``: the better guess is what happened."""

    run_id: str
    ran: bool
    right: bool
    close: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """Peaks of one run of a ``group``, GiB, ``projected`` as the source ``counts``."""

    group: str
    counts: str
    measured: float
    projected: float


class Order(NamedTuple):
    """Which of two runs of a group needs more: tau-b, the share of the measurably different ``pairs`` in that order, and
    their number. None where all are alike."""

    group: str
    rows: int
    tau: float | None
    agreement: float | None
    pairs: int


def orders(found: Iterable[Sized]) -> list[Order]:
    """One for every group with two peaks and more that count the same, by name."""
    by = grouped(((each.group, each.counts), each) for each in found)
    made = []
    for (group, _), own in sorted(by.items()):
        measured, projected = [each.measured for each in own], [each.projected for each in own]
        if len(own) > 1:
            made.append(Order(group, len(own), tau_b(measured, projected), *agreement(measured, projected)))
    return made


def tolerances(found: Sequence[Peak]) -> dict[str, float]:
    """The tolerance of every kind with enough peaks, and of all (``other``), which is the least for a kind of few sources:
    peaks of one code say little of another's. Layers that nobody has counted (``new``)
    stand apart: their largest error, however few their peaks."""
    new = [abs(peak.error) for peak in found if peak.kind == NEW]
    found = [peak for peak in found if peak.kind != NEW]
    made = {"other": _quantile(found)} | ({NEW: max(new)} if new else {})
    for name in sorted({peak.kind for peak in found}):
        own = [peak for peak in found if peak.kind == name]
        if _effective(own) >= _LEAST:
            few = len({peak.source for peak in own}) < _SOURCES
            made[name] = max(_quantile(own), made["other"] if few else 0.0)
    return made


def held_out(found: Sequence[Peak]) -> dict[str, tuple[int, int]]:
    """By source: peaks within the tolerance that all other sources give, and its peaks."""
    made = {}
    for source in sorted({peak.source for peak in found}):
        own = [peak for peak in found if peak.source == source]
        learnt = tolerances([peak for peak in found if peak.source != source])
        inside = sum(abs(peak.error) <= learnt.get(peak.kind, learnt["other"]) for peak in own)
        made[source] = (inside, len(own))
    return made


def _quantile(found: Sequence[Peak]) -> float:
    """The conformal quantile of |error| of all sources but the oddest: the least that one source left out leaves. With
    few sources, of all; infinite where there are too few peaks."""
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
    """Rows that would say as much if all weighed the same (Kish)."""
    weight = _weights(found)
    return float(weight.sum() ** 2 / (weight**2).sum())
