"""What one switch gains: pairs of measured runs that differ in one field, measured against projected. Pure functions.

A pair is two runs of one source, model, GPU, GPU count and framework whose configurations differ in exactly one key (a
precision together with its recipe counts as one). Gains are throughput ratios, so a calibration factor cancels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from harness.contracts.results import Row, RunFacts

__all__ = ["REAL", "Pair", "Step", "Switch", "ladders", "pairs", "sign_share", "switches"]

#: Gains below this are inside what repeated measurements differ by: their sign is not asked for.
REAL = 0.02
_TOGETHER = frozenset({"precision", "fp8_recipe"})
_LABELS = frozenset({"version"})  # what a run was made with, not how
_LADDER = "-steps"  # how a group is named whose runs each keep what the run before them changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """``before``, ``after``: the values of the key ``switch``; gains are throughput of the second over the first.
    ``stated``: the key is a field that a projector sees, not a switch of the framework that no recipe field holds."""

    switch: str
    before: str
    after: str
    first: str
    second: str
    measured: float
    projected: float
    stated: bool = True

    @property
    def real(self) -> bool:
        return abs(self.measured - 1.0) > REAL

    @property
    def right(self) -> bool:
        return (self.measured - 1.0) * (self.projected - 1.0) > 0

    @property
    def error(self) -> float:
        """ln(projected gain / measured gain)."""
        return math.log(self.projected / self.measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """All pairs of one key. ``real``: those whose measured gain exceeds :data:`REAL`; ``right``: of these, projected with
    the same sign. ``spread``, ``bias``: mean absolute and mean ln(projected gain / measured gain)."""

    name: str
    pairs: int
    real: int
    right: int
    spread: float
    bias: float
    stated: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One run of a ladder over the run before it: ``changed`` keys (with their new values), throughput ratios."""

    group: str
    run: str
    changed: tuple[str, ...]
    measured: float
    projected: float

    @property
    def real(self) -> bool:
        return abs(self.measured - 1.0) > REAL

    @property
    def right(self) -> bool:
        return (self.measured - 1.0) * (self.projected - 1.0) > 0


def ladders(rows: Iterable[Row], facts: Mapping[str, RunFacts]) -> list[Step]:
    """Every step of the groups named as ladders, in the order of ``rows`` (one predictor, one fit)."""
    before: dict[str, Row] = {}
    found: list[Step] = []
    for row in rows:
        if not row.group.endswith(_LADDER) or not row.measured_tgs or not row.projected_tgs:
            continue
        last = before.get(row.group)
        before[row.group] = row
        if last is None or not last.measured_tgs or not last.projected_tgs:
            continue
        one, other = facts[last.run_id].differs, facts[row.run_id].differs
        keys = sorted(k for k in {**one, **other} if one.get(k, "") != other.get(k, "") and k not in _LABELS)
        step = Step(
            group=row.group,
            run=row.run_id,
            changed=tuple(f"{k} {other.get(k, '–')}" for k in keys),
            measured=row.measured_tgs / last.measured_tgs,
            projected=row.projected_tgs / last.projected_tgs,
        )
        found.append(step)
    return found


def pairs(rows: Iterable[Row], facts: Mapping[str, RunFacts]) -> list[Pair]:
    """Every single-key pair among ``rows`` (one predictor, one fit), sorted by switch, then by run."""
    families: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row.measured_tgs and row.projected_tgs:
            key = (facts[row.run_id].source, row.model, row.gpu, row.framework)
            families.setdefault(key, []).append(row)
    made = [pair for members in families.values() for a, b in combinations(members, 2) if (pair := _pair(a, b, facts))]
    return sorted(made, key=lambda p: (p.switch, p.first, p.second))


def _pair(a: Row, b: Row, facts: Mapping[str, RunFacts]) -> Pair | None:
    if not (a.measured_tgs and b.measured_tgs and a.projected_tgs and b.projected_tgs):
        return None
    one, other = facts[a.run_id].differs, facts[b.run_id].differs
    different = {k for k in {**one, **other} if one.get(k, "") != other.get(k, "")}
    if different & _LABELS:
        return None
    name = "precision" if different == _TOGETHER else next(iter(different)) if len(different) == 1 else ""
    if not name:
        return None
    return Pair(
        switch=name,
        before=one.get(name, "–"),
        after=other.get(name, "–"),
        first=a.run_id,
        second=b.run_id,
        measured=b.measured_tgs / a.measured_tgs,
        projected=b.projected_tgs / a.projected_tgs,
        stated=name not in {*facts[a.run_id].switches, *facts[b.run_id].switches},
    )


def switches(found: Sequence[Pair]) -> list[Switch]:
    """One summary a switch, by name."""
    by: dict[str, list[Pair]] = {}
    for pair in found:
        by.setdefault(pair.switch, []).append(pair)
    return [_summary(name, members) for name, members in sorted(by.items())]


def _summary(name: str, members: Sequence[Pair]) -> Switch:
    errors = [p.error for p in members]
    return Switch(
        name=name,
        pairs=len(members),
        real=sum(p.real for p in members),
        right=sum(p.real and p.right for p in members),
        spread=math.fsum(map(abs, errors)) / len(errors),
        bias=math.fsum(errors) / len(errors),
        stated=all(p.stated for p in members),
    )


def sign_share(found: Sequence[Switch]) -> tuple[float | None, float | None]:
    """Share of real pairs of stated fields with the right sign: over all pairs, and as the mean over switches."""
    real = [s for s in found if s.real and s.stated]
    if not real:
        return None, None
    whole = sum(s.right for s in real) / sum(s.real for s in real)
    return whole, math.fsum(s.right / s.real for s in real) / len(real)
