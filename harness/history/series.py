"""Groups recordings into series: the same suite, predictor and settings at version after version, and the figures of
each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from harness.contracts import frame
from harness.contracts.results import Row, RunFacts
from harness.history.store import Recorded, Recording
from harness.score import accuracy, drift, ranking
from projector.dataclass import dataclass
from projector.io.rows import grouped
from projector.io.table import values

if TYPE_CHECKING:
    import pandas as pd

#: The mark behind the label of a version whose suite or measured runs are others than before.
OTHER = "*"
#: Least move of the error that counts: a tenth of a point.
MOVED = 0.001


@dataclass(frozen=True, kw_only=True)
class Version:
    """One version in a series: its rows of one suite, predictor and fit, each run once. ``other_runs``: the suite or its
    measured runs are not those of the version before."""

    recording: Recording
    rows: tuple[Row, ...]
    facts: Mapping[str, RunFacts]
    other_runs: bool = False

    @property
    def label(self) -> str:
        return self.recording.label + (OTHER if self.other_runs else "")

    @cached_property
    def frame(self) -> pd.DataFrame:
        return frame.of(self.rows, self.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The versions of a suite, predictor and settings. ``beside``: suites that were evaluated together with this one, so
    that its calibration saw their rows."""

    suite: str
    predictor: str
    settings: tuple[tuple[str, str], ...]
    beside: tuple[str, ...]
    versions: tuple[Version, ...] = ()

    @property
    def title(self) -> str:
        beside = f", evaluated with {', '.join(self.beside)}" if self.beside else ""
        stated = "".join(f", {name}={value}" for name, value in self.settings)
        return f"{self.suite}, {self.predictor}{beside}{stated}"


#: The figures of one version by name.
Figures = Mapping[str, Any]


def versions(recorded: Iterable[Recorded]) -> tuple[Recorded, ...]:
    """Returns recordings in the order in which the code was made; of an evaluation recorded twice the later one."""
    last = {version.recording.key: version for version in recorded}
    return tuple(sorted(last.values(), key=lambda version: version.recording.order))


def series(recorded: Iterable[Recorded]) -> tuple[Series, ...]:
    """Returns every suite × predictor × settings, in order of first appearance. The rows are of one fit."""
    lines: dict[Series, list[Version]] = {}
    for version in versions(recorded):
        recording = version.recording
        settings = tuple((name, str(value)) for name, value in sorted(recording.settings.items()))
        for (suite, predictor), rows in grouped(((r.suite, r.predictor), r) for r in version.rows).items():
            beside = tuple(sorted(name for name in recording.suites if name != suite))
            begun = Series(suite=suite, predictor=predictor, settings=settings, beside=beside)
            line = lines.setdefault(begun, [])
            other = bool(line) and line[-1].recording.suites.get(suite) != recording.suites.get(suite)
            line.append(Version(recording=recording, rows=tuple(rows), facts=version.facts, other_runs=other))
    return tuple(replace(begun, versions=tuple(line)) for begun, line in lines.items())


def figures(found: Sequence[Version], tolerance: float) -> tuple[Figures, ...]:
    """Returns the figures of every version, fractions, None where its rows define none: ``macro``, ``plain``, ``median`` of
    |error|; ``tau``: mean Kendall tau-b over groups; ``inside``: share of measurements inside their interval, macro; and
    against the version before the rows that ``moved``, ``broken`` by more than the tolerance, ``lost`` their projection."""
    drifts = [_drift(was, now, tolerance) for was, now in pairwise(found)]
    nothing = dict.fromkeys(("moved", "broken", "lost"), 0)
    return tuple({**_figures(v), **moved} for v, moved in zip(found, [nothing, *drifts], strict=True))


def _drift(was: Version, now: Version, tolerance: float) -> dict[str, int]:
    fit = now.rows[0].fit if now.rows else "heldout"
    difference = drift.compare(was.frame, now.frame, fit, tolerance)
    moved = {m.run_id for m in difference.moved if abs(m.after - m.before) > MOVED}
    broken = {m.run_id for m in difference.broken}
    return {"moved": len(moved), "broken": len(broken), "lost": len(difference.lost)}


def _figures(version: Version) -> Figures:
    errors, covered = accuracy.summarise(version.frame), accuracy.coverage(version.frame)
    order = ranking.summary(ranking.group_rankings(version.frame))
    told = values(errors, "rows compared coverage macro=macro_mape plain=mape median")
    return {**told, "tau": order.tau, "inside": covered.macro if covered else None}
