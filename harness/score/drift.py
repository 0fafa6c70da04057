"""Compares old rows with new rows: projections gained and lost, and errors that moved. Pure functions. A change passes
when no row lost its projection, none was taken out of a suite and none broke; the mean is shown, never judged, since
errors that cancel each other can make it better while a row becomes wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.contracts import frame
from harness.contracts.results import BASELINE
from harness.score import resample
from projector.dataclass import dataclass
from projector.io.rows import grouped

if TYPE_CHECKING:
    import pandas as pd

# Growth of |error| (absolute, 0.05 = five points) above which a row counts as broken, where the user states no other;
# below it a change of a model's constants is drift, and above WORSE it is shown. Conventions of this harness.
BROKEN = 0.05
WORSE = 0.01
SAME = 0.0005  # change of a source's mean that counts as none

THROUGHPUT, MEMORY = "TGS", "memory"

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """One row of both versions: signed errors before and after. ``metric``: throughput or memory. ``remeasured``: the
    measured figure itself changed, so that the growth is not the projector's alone."""

    run_id: str
    predictor: str
    before: float
    after: float
    metric: str = THROUGHPUT
    remeasured: bool = False

    @property
    def growth(self) -> float:
        """Returns the growth of the absolute error; negative where the row became better."""
        return abs(self.after) - abs(self.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The difference of two versions, rows as (predictor, run id). Rows that ``lost`` their projection (``reasons`` says
    why), were ``removed`` from a suite that ran both times, ``gained`` a projection, were ``added`` to a suite.
    ``moved``: rows by growth of their error, worst first; ``worse`` and ``broken``: the moved rows whose error grew by
    more than :data:`WORSE` and ``tolerance``. ``before``/``after``: plain mean |error| of throughput over the rows that
    both versions hold. ``only_new``: errors of rows that were not projected before."""

    lost: tuple[Key, ...]
    gained: tuple[Key, ...]
    moved: tuple[Moved, ...]
    broken: tuple[Moved, ...]
    before: float | None
    after: float | None
    only_new: tuple[Moved, ...] = ()
    removed: tuple[Key, ...] = ()
    added: tuple[Key, ...] = ()
    reasons: Mapping[Key, str] = field(default_factory=dict)
    tolerance: float = BROKEN
    fit: str = "heldout"
    may_remove: bool = False

    @property
    def worse(self) -> tuple[Moved, ...]:
        return tuple(m for m in self.moved if m.growth > WORSE)

    @property
    def passed(self) -> bool:
        return not self.lost and not self.broken and (self.may_remove or not self.removed)


def compare(
    old: pd.DataFrame, new: pd.DataFrame, fit: str = "heldout", broken: float = BROKEN, *, may_remove: bool = False
) -> Drift:
    """Returns the drift of the rows of one fit; a run that several suites select counts once. Only predictors and suites
    that were asked for both times count as lost or removed, and never the baseline: its constant follows whatever rows
    there are. ``broken``: growth of the error beyond which a row fails; ``may_remove``: removed rows are listed, and
    pass."""
    earlier, later = (rows[((rows["fit"] == fit) & (rows["predictor"] != BASELINE)).to_numpy()] for rows in (old, new))
    first, last = (rows.drop_duplicates(_KEY).set_index(_KEY) for rows in (earlier, later))
    shared = first.index[first.index.isin(last.index)]
    was, now = first.loc[shared], last.loc[shared]
    had, has = was["error"].notna().to_numpy(), now["error"].notna().to_numpy()
    moved = sorted((m for names in _FIGURES for m in _moves(was, now, *names)), key=lambda m: -m.growth)
    speed = [m for m in moved if m.metric == THROUGHPUT]
    asked = set(zip(later["suite"], later["predictor"], strict=True))
    projected = earlier[earlier["error"].notna()].set_index(_KEY)
    still_asked = [key in asked for key in zip(projected["suite"], projected.index.get_level_values(0), strict=True)]
    gone = projected.index[~projected.index.isin(last.index) & np.array(still_asked, dtype=bool)]
    return Drift(
        lost=tuple(shared[had & ~has]),
        gained=tuple(shared[~had & has]),
        moved=tuple(moved),
        broken=tuple(m for m in moved if m.growth > broken),
        before=sum(abs(m.before) for m in speed) / len(speed) if speed else None,
        after=sum(abs(m.after) for m in speed) / len(speed) if speed else None,
        only_new=tuple(_only_new(first, last)),
        removed=tuple(dict.fromkeys(gone)),
        added=tuple(last.index[~last.index.isin(first.index) & last["error"].notna().to_numpy()]),
        reasons={row.Index: _why(row) for row in frame.lines(now[had & ~has])},
        tolerance=broken,
        fit=fit,
        may_remove=may_remove,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """The effect of a change on the same ``rows``, every one of ``sources`` weighing the same: mean |error| of
    throughput ``before`` and ``after``, the 90 % ``interval`` of the change, drawn over sources (None for one source),
    and how many sources became ``better`` and ``worse`` by more than :data:`SAME`."""

    rows: int
    sources: int
    before: float
    after: float
    interval: tuple[float, float] | None
    better: int
    worse: int


def paired(moved: Sequence[Moved], source: Callable[[str], str]) -> Paired | None:
    """Compares ``moved`` rows of throughput, grouped by the ``source`` of their run id; None where there are none."""
    speed = [m for m in moved if m.metric == THROUGHPUT]
    by_source = grouped((source(m.run_id), (abs(m.before), abs(m.after))) for m in speed)
    if not by_source:
        return None
    means = np.array([np.mean(pairs, axis=0) for pairs in by_source.values()])
    change = means[:, 1] - means[:, 0]
    return Paired(
        rows=len(speed),
        sources=len(by_source),
        before=float(means[:, 0].mean()),
        after=float(means[:, 1].mean()),
        interval=resample.of_mean(change.tolist()),
        better=int((change < -SAME).sum()),
        worse=int((change > SAME).sum()),
    )


_ROUNDED = 1e-5  # of a figure that a file keeps with six digits
_KEY = ["predictor", "run_id"]
_FIGURES = ((THROUGHPUT, "error", "measured_tgs"), (MEMORY, "memory_error", "measured_memory_gib"))


def _moves(was: pd.DataFrame, now: pd.DataFrame, metric: str, error: str, measured: str) -> Iterator[Moved]:
    """Yields how the rows moved in one error, where both versions have it."""
    columns = (was.index, was[error], now[error], was[measured], now[measured])
    for (predictor, run), before, after, once, again in zip(*columns, strict=True):
        if not (math.isnan(before) or math.isnan(after)):
            yield Moved(
                run_id=run,
                predictor=predictor,
                before=before,
                after=after,
                metric=metric,
                remeasured=not (
                    math.isclose(once, again, rel_tol=_ROUNDED) or (math.isnan(once) and math.isnan(again))
                ),
            )


def _only_new(first: pd.DataFrame, last: pd.DataFrame) -> Iterator[Moved]:
    had = first.index[first["error"].notna()]
    now = last["error"].dropna()
    now = now[~now.index.isin(had)]
    for (predictor, run), error in zip(now.index, now, strict=True):
        yield Moved(run_id=run, predictor=predictor, before=0.0, after=error)


def _why(row: Any) -> str:
    if math.isnan(row.measured_tgs):
        return "nothing measured"
    return f"{row.status}: {row.reason}" if row.reason else str(row.status)
