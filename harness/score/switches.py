"""Measures the gain of one switch: pairs of measured runs that differ in one field, measured against projected. Pure
functions. A pair is two runs of one source, model, GPU, GPU count and framework whose configurations differ in exactly
one key (a precision together with its recipe counts as one). Gains are throughput ratios, so a calibration factor
cancels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from harness.contracts import frame
from projector.dataclass import dataclass

if TYPE_CHECKING:
    import pandas as pd

#: Smaller gains lie within the scatter of repeated measurements: their sign is not judged.
REAL = 0.02
_TOGETHER = frozenset({"precision", "fp8_recipe"})
_LABELS = frozenset({"version"})  # keys that name the software, not a setting
_LADDER = "-steps"  # ends the name of a group whose runs each keep what the run before them changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The throughput of a second run over a first one, measured and projected."""

    measured: float
    projected: float

    @property
    def real(self) -> bool:
        return abs(self.measured - 1.0) > REAL

    @property
    def right(self) -> bool:
        return (self.measured - 1.0) * (self.projected - 1.0) > 0

    @property
    def error(self) -> float:
        """Returns ln(projected gain / measured gain)."""
        return math.log(self.projected / self.measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair(Gain):
    """Two runs that differ in one key. ``before``, ``after``: the values of the key ``switch``. ``stated``: the key is a
    field that a projector sees, not a switch of the framework that no recipe field holds."""

    switch: str
    before: str
    after: str
    first: str
    second: str
    stated: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Gain):
    """One run of a ladder over the run before it; ``changed``: the keys that changed, with their new values."""

    group: str
    run: str
    changed: tuple[str, ...]


def ladders(rows: pd.DataFrame) -> list[Step]:
    """Returns every step of the groups named as ladders, in the order of ``rows`` (one predictor, one fit)."""
    before: dict[str, Any] = {}
    steps: list[Step] = []
    for row in frame.lines(usable(rows[rows["group"].str.endswith(_LADDER)])):
        last, before[row.group] = before.get(row.group), row
        if last is not None:
            keys = sorted(different(last, row) - _LABELS)
            changed = tuple(f"{k} {row.differs.get(k, '–')}" for k in keys)
            steps.append(Step(group=row.group, run=row.run_id, changed=changed, **gain(last, row)))
    return steps


def pairs(rows: pd.DataFrame) -> list[Pair]:
    """Returns every single-key pair among ``rows`` (one predictor, one fit), sorted by switch, then by run."""
    single = [
        pair
        for first, second in twos(usable(rows), ["source", "model", "gpu", "framework"])
        if (pair := _pair(first, second))
    ]
    return sorted(single, key=lambda p: (p.switch, p.first, p.second))


def twos(rows: pd.DataFrame, by: Sequence[str]) -> Iterator[tuple[Any, Any]]:
    """Yields every two rows with equal values in the columns ``by``, the earlier first."""
    for _, members in frame.parts(rows, by):
        yield from combinations(frame.lines(members), 2)


def usable(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows with a measured and a projected throughput."""
    return rows[((rows["measured_tgs"] > 0.0) & (rows["projected_tgs"] > 0.0)).to_numpy(dtype=bool)]


def different(first: Any, second: Any) -> set[str]:
    """Returns the keys in which the configurations of two rows differ."""
    ours, theirs = first.differs, second.differs
    return {key for key in {**ours, **theirs} if ours.get(key, "") != theirs.get(key, "")}


def gain(first: Any, second: Any) -> dict[str, float]:
    """Returns the fields of a :class:`Gain` of the row ``second`` over the row ``first``."""
    names = ("measured", "projected")
    return {name: getattr(second, f"{name}_tgs") / getattr(first, f"{name}_tgs") for name in names}


def _pair(first: Any, second: Any) -> Pair | None:
    changed = different(first, second)
    if changed == _TOGETHER:
        changed = {"precision"}
    if len(changed) != 1 or changed & _LABELS:
        return None
    (name,) = changed
    return Pair(
        switch=name,
        before=first.differs.get(name, "–"),
        after=second.differs.get(name, "–"),
        first=first.run_id,
        second=second.run_id,
        stated=name not in {*first.switches, *second.switches},
        **gain(first, second),
    )


def switches(found: Sequence[Pair]) -> pd.DataFrame:
    """Returns a line for each switch, by name: its ``pairs``; the ``real`` ones, whose measured gain exceeds
    :data:`REAL`; of these the ``right`` ones, projected with the same sign; mean absolute (``spread``) and mean
    (``bias``) ln(projected / measured gain); ``stated``: a field that a projector sees."""
    lines = [(p.switch, p.real, p.real and p.right, abs(p.error), p.error, p.stated) for p in found]
    by_switch = frame.table(lines, ("name", "real", "right", "spread", "bias", "stated")).groupby("name")
    return by_switch.agg(
        pairs=("bias", "size"),
        real=("real", "sum"),
        right=("right", "sum"),
        spread=("spread", "mean"),
        bias=("bias", "mean"),
        stated=("stated", "all"),
    )


def sign_share(found: pd.DataFrame) -> tuple[float | None, float | None]:
    """Returns the share of real pairs of stated fields with the right sign: over all pairs, and mean over switches."""
    real = found[(found["real"] > 0) & found["stated"]]
    if real.empty:
        return None, None
    return float(real["right"].sum() / real["real"].sum()), float((real["right"] / real["real"]).mean())
