"""What the error of a set of rows is made of: cells, bias against scatter, terms of the step, conditions. Pure functions.

Everything is computed from held-out rows in r = ln(projected / measured TGS), which is positive where the projection is
too fast; the size of an error is |r|, so that one row that is six times off does not stand for everything. Macro: every
(model family × GPU × framework) cell weighs the same. Ablations say how much would be left if something were known;
what they promise is an upper bound, except where it says held out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.calibrate.calibration import weighted_median
from harness.contracts.results import Row
from harness.contracts.runs import BREAKDOWN
from harness.score import accuracy, resample

__all__ = ["Ablation", "Cell", "Condition", "Split", "Term", "ablations", "cells", "conditions", "per_key", "terms"]

Array = NDArray[np.float64]

#: Parts of the step whose error is told apart.
PARTS: Mapping[str, tuple[str, ...]] = {
    "compute": ("compute_s",),
    "host": ("host_s",),
    "bubble": ("bubble_s",),
    "tp communication": ("tp_s",),
    "ep communication": ("ep_s",),
    "dp communication": ("dp_s",),
    "pp and cp communication": ("pp_s", "cp_s"),
    "optimizer and rest": ("optimizer_s", "other_s"),
}
# Prior standard deviation of the relative error of a part, and of what a row is off in ln: a part of which rows hold
# little cannot then take the blame for much.
_PART_SD, _ROW_SD = 0.3, 0.15
# Siblings have the same fault where they are off the same way by at least half as much.
_ALIKE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """``points``: what the cell adds to macro MAPE; ``bias``: mean of r; ``scatter``: its standard deviation inside.

    ``siblings``: mean r, without this cell, of the other cells of its family, GPU and framework; None: there are none.
    """

    family: str
    gpu: str
    framework: str
    rows: int
    mape: float
    points: float
    bias: float
    scatter: float
    largest_part: str
    largest_share: float
    siblings: Mapping[str, float | None]

    @property
    def fault(self) -> str:
        """Where to look: which kin is off the same way, or nothing but the cell itself."""
        if self.rows == 1 and not self._alike:
            return "one row alone: its source, or a switch that it does not state"
        if self.scatter > abs(self.bias):
            return "scatter: what differs between its rows"
        if not self._alike:
            return "this cell alone: how its rows were run"
        return "the whole " + ", ".join(self._alike)

    @property
    def _alike(self) -> tuple[str, ...]:
        kin = ((name, value) for name, value in self.siblings.items() if value is not None)
        return tuple(name for name, value in kin if value * self.bias > 0 and abs(value) >= _ALIKE * abs(self.bias))


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Macro mean |r| of the rows of one key: as it is, with the key's own median taken out, and with every cell's."""

    key: str
    rows: int
    cells: int
    bias: float
    error: float
    without_bias: float
    without_cells: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """Macro mean |r| once the median of every value of a key (GPU, framework, …) is known. ``values``: how many."""

    name: str
    values: int
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A part of the step. ``theta``: the relative error of its time that explains r best; ``saved``: macro mean |r| less
    with it corrected, in sample; ``held_out``: the same, each family by a fit that did not see it.
    """

    name: str
    share: float
    rows: int
    theta: float
    error: float
    saved: float
    held_out: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Macro MAPE of rows with and without a property; ``points``: what those with it add; ``range``: 90 %, by cells."""

    name: str
    rows: int
    cells: int
    mape: float
    range: tuple[float, float] | None
    bias: float
    others: float | None
    points: float


@dataclass(frozen=True, slots=True)
class _Known:
    rows: Sequence[Row]
    r: Array
    weight: Array

    def macro(self, r: Array) -> float:
        return float(np.average(np.abs(r), weights=self.weight))


def _known(rows: Sequence[Row]) -> _Known:
    some = accuracy.comparable(rows)
    count = Counter(accuracy.cell(row) for row in some)
    r = np.array([math.log1p(row.error or 0.0) for row in some])
    return _Known(some, r, np.array([1.0 / count[accuracy.cell(row)] for row in some]))


def cells(rows: Sequence[Row]) -> list[Cell]:
    """Every cell, what adds most to macro MAPE first."""
    grouped = accuracy.by(accuracy.comparable(rows), accuracy.cell)
    means = {cell: _mean([math.log1p(row.error or 0.0) for row in members]) for cell, members in grouped.items()}
    made = [_cell(cell, members, means, len(grouped)) for cell, members in grouped.items()]
    return sorted(made, key=lambda c: (-c.points, c.family, c.gpu, c.framework))


def _cell(
    cell: tuple[str, str, str], members: Sequence[Row], means: Mapping[tuple[str, str, str], float], count: int
) -> Cell:
    mape = _mean([abs(row.error or 0.0) for row in members])
    r = [math.log1p(row.error or 0.0) for row in members]
    share = {part: _mean([_share(row, names) for row in members]) for part, names in PARTS.items()}
    largest = max(share, key=lambda part: share[part])
    kin = {
        name: [mean for other, mean in means.items() if other != cell and other[i] == cell[i]]
        for i, name in enumerate(("family", "GPU", "framework"))
    }
    return Cell(
        family=cell[0],
        gpu=cell[1],
        framework=cell[2],
        rows=len(members),
        mape=mape,
        points=mape / count,
        bias=means[cell],
        scatter=float(np.std(r)),
        largest_part=largest,
        largest_share=share[largest],
        siblings={name: _mean(found) if found else None for name, found in kin.items()},
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _share(row: Row, names: Sequence[str]) -> float:
    parts = row.breakdown
    whole = math.fsum(parts.get(name, 0.0) for name in BREAKDOWN)
    return math.fsum(parts.get(name, 0.0) for name in names) / whole if whole > 0.0 else 0.0


def per_key(rows: Sequence[Row], key: Callable[[Row], str]) -> list[Split]:
    """Bias against scatter of every value of ``key``, the largest error first."""
    made = []
    for value, members in accuracy.by(accuracy.comparable(rows), key).items():
        known = _known(members)
        bias = weighted_median(known.r, known.weight)
        made.append(
            Split(
                key=value,
                rows=len(members),
                cells=len({accuracy.cell(row) for row in members}),
                bias=bias,
                error=known.macro(known.r),
                without_bias=known.macro(known.r - bias),
                without_cells=known.macro(_centred(known, accuracy.cell)),
            )
        )
    return sorted(made, key=lambda s: (-s.error, s.key))


def ablations(rows: Sequence[Row]) -> list[Ablation]:
    """What would be left if the bias of all, of every GPU, framework, family, cell were known (in sample)."""
    known = _known(rows)
    keys: dict[str, Callable[[Row], Hashable]] = {
        "nothing": lambda _: None,
        "GPU": lambda row: row.gpu,
        "framework": lambda row: row.framework,
        "family": lambda row: row.family,
        "precision": lambda row: row.precision,
        "GPU and framework": lambda row: (row.gpu, row.framework),
        "cell": accuracy.cell,
    }
    made = []
    for name, key in keys.items():
        left = known.r if name == "nothing" else _centred(known, key)
        made.append(Ablation(name=name, values=len({key(row) for row in known.rows}), error=known.macro(left)))
    return made


def _centred(known: _Known, key: Callable[[Row], Hashable]) -> Array:
    places: dict[Hashable, list[int]] = {}
    for i, row in enumerate(known.rows):
        places.setdefault(key(row), []).append(i)
    left = known.r.copy()
    for found in places.values():
        left[found] -= weighted_median(known.r[found], known.weight[found])
    return left


def terms(rows: Sequence[Row]) -> list[Term]:
    """Which part of the step carries the error: r regressed on the shares, one prior for all parts."""
    known = _known([row for row in rows if row.breakdown])
    if not known.rows:
        return []
    x = np.array([[_share(row, names) for names in PARTS.values()] for row in known.rows])
    families = np.array([row.family for row in known.rows], dtype=object)
    theta, error = _ridge(x, known.r, known.weight)
    predicted = np.zeros_like(x)
    for family in dict.fromkeys(families.tolist()):
        mine = families == family
        if not mine.all():
            fitted, _ = _ridge(x[~mine], known.r[~mine], known.weight[~mine])
            predicted[mine] = x[mine] * fitted
    now = known.macro(known.r)
    made = [
        Term(
            name=name,
            share=float(np.average(x[:, i], weights=known.weight)),
            rows=int((x[:, i] > 0.0).sum()),
            theta=float(theta[i]),
            error=float(error[i]),
            saved=now - known.macro(known.r - x[:, i] * theta[i]),
            held_out=now - known.macro(known.r - predicted[:, i]),
        )
        for i, name in enumerate(PARTS)
    ]
    return sorted(made, key=lambda t: -t.saved)


def _ridge(x: Array, r: Array, weight: Array) -> tuple[Array, Array]:
    """θ and its standard error; rows far off count less (Huber, at one and a half of the usual error)."""
    scale = _ROW_SD
    robust = weight.copy()
    theta = error = np.zeros(x.shape[1])
    for _ in range(10):
        precision = (x * robust[:, None]).T @ x / scale**2 + np.eye(x.shape[1]) / _PART_SD**2
        try:
            covariance = np.linalg.inv(precision)
        except np.linalg.LinAlgError:  # rows of a damaged file, whose parts are anything but shares
            return theta, error
        theta, error = covariance @ (x.T @ (robust * r)) / scale**2, np.sqrt(np.diag(covariance))
        left = np.abs(r - x @ theta)
        robust = weight * np.minimum(1.0, 1.5 * scale / np.maximum(left, 1e-12))
    return theta, error


def conditions(rows: Sequence[Row], tests: Mapping[str, Callable[[Row], bool]]) -> list[Condition]:
    """Rows with a property against rows without, what adds most first; properties of no row are left out."""
    known = accuracy.comparable(rows)
    whole = len({accuracy.cell(row) for row in known})
    count = Counter(accuracy.cell(row) for row in known)
    made = []
    for name, holds in tests.items():
        chosen = [row for row in known if holds(row)]
        rest = [row for row in known if not holds(row)]
        if not chosen:
            continue
        by_cell = [_mean([abs(row.error or 0.0) for row in m]) for m in accuracy.by(chosen, accuracy.cell).values()]
        made.append(
            Condition(
                name=name,
                rows=len(chosen),
                cells=len(by_cell),
                mape=_mean(by_cell),
                range=resample.of_mean(by_cell),
                bias=accuracy.macro((accuracy.cell(row), row.error or 0.0) for row in chosen),
                others=accuracy.macro((accuracy.cell(row), abs(row.error or 0.0)) for row in rest) if rest else None,
                points=math.fsum(abs(row.error or 0.0) / count[accuracy.cell(row)] for row in chosen) / whole,
            )
        )
    return sorted(made, key=lambda c: -c.points)
