"""Compares a part of a traced step with the same part of its projection: by kind of kernel, by cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from harness.trace.account import Account, Entry
from harness.trace.names import KINDS, UNKNOWN
from harness.trace.projected import Planned, Share
from harness.trace.steps import TracedPart
from projector.dataclass import dataclass
from projector.io.rows import grouped

#: The kinds of kernel of each cause.
GROUPS: Mapping[str, tuple[str, ...]] = {cause: tuple(kinds) for cause, kinds in KINDS["causes"].items()}
_WHOLE = 0.1  # relative difference of layer passes from a whole step's below which they count as whole


@dataclass(frozen=True, slots=True)
class Beside:
    """One kind or cause: seconds busy and exposed, and kernels; ``projected*``: None where no projection was asked for."""

    kind: str
    busy: float
    exposed: float
    calls: int
    projected_busy: float | None = None
    projected: float | None = None
    projected_calls: float | None = None

    @property
    def excess(self) -> float | None:
        """Returns the measured exposed seconds less the projected ones."""
        return None if self.projected is None else self.exposed - self.projected


def share_of(part: TracedPart, planned: Planned) -> Share:
    """Returns the share of a step's layer passes that the part holds, by its attention kernels."""
    if part.whole:
        return Share()
    kinds = part.kernels.kinds()
    ways = [kinds[name].way for name in part.kernels.name.tolist()]
    seen = (ways.count("forward"), ways.count("backward"))
    forward, backward = (
        min(1.0, number / whole) if whole else 0.0 for number, whole in zip(seen, planned.attention, strict=True)
    )
    if abs(forward - 1.0) < _WHOLE and abs(backward - 1.0) < _WHOLE:
        return Share(once=0.0)
    return Share(forward, backward, 0.0)


def beside(found: Account, planned: Planned | None, share: Share) -> list[Beside]:
    """Returns a line a kind, idle time last; exposed seconds add up to those of the part and of the projection."""
    costs = planned.of(share) if planned else {}
    measured = {entry.kind: entry for entry in found.entries}
    rows = []
    for kind in dict.fromkeys([*measured, *costs]):
        entry = measured.get(kind, Entry(kind, 0.0, 0.0, 0))
        cost = costs.get(kind, (0.0, 0.0, 0.0)) if planned else (None, None, None)
        rows.append(Beside(kind, entry.busy, entry.exposed, entry.calls, *cost))
    rest = None
    if planned:
        breakdown = planned.projection.breakdown
        rest = breakdown["host_s"] + breakdown["bubble_s"] if share.whole else 0.0
    return [*rows, Beside("idle", found.idle, found.idle, 0, rest, rest, 0.0 if planned else None)]


def causes(rows: Sequence[Beside]) -> list[Beside]:
    """Returns the rows added up by cause: where the trace is slower first, or longest first where nothing was projected."""
    by_cause = grouped((group_of(row.kind), astuple(row)[1:]) for row in rows)
    totals = []
    for cause in (cause for cause in GROUPS if cause in by_cause):
        columns: Any = zip(*by_cause[cause], strict=True)
        sums: Any = (None if column[0] is None else sum(column) for column in columns)
        totals.append(Beside(cause, *sums))
    return sorted(totals, key=lambda row: -(row.exposed if row.excess is None else row.excess))


def group_of(kind: str) -> str:
    head = kind.partition(":")[0]
    return next((cause for cause, kinds in GROUPS.items() if head in kinds), UNKNOWN)
