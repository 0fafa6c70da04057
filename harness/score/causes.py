"""Decomposes the error of a set of rows: cells, bias against scatter, terms of the step, conditions. Pure functions.

Everything is computed from held-out rows in r = ln(projected / measured TGS), which is positive where the projection is
too fast; the size of an error is |r|, so that one row that is six times off does not stand for everything. Macro: every
(model family × GPU × framework) cell weighs the same. Ablations say how much would be left if something were known; what
they promise is an upper bound, except where it says held out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.calibrate import weights
from harness.contracts import frame
from harness.contracts.frame import CELL
from harness.contracts.runs import BREAKDOWN
from harness.score import resample
from projector.dataclass import dataclass

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

#: Parts of the step to which error is attributed, with their columns.
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
# Prior standard deviations of a part's relative error and of a row's r: a part that is a small share of the steps
# cannot then explain a large error.
_PART_SD, _ROW_SD = 0.3, 0.15
# Cells share a fault where the others err the same way by at least half as much.
_ALIKE = 0.5


#: The keys for which a bias may be known, with their columns.
KEYS: Mapping[str, Sequence[str]] = {
    "GPU": ["gpu"],
    "framework": ["framework"],
    "family": ["family"],
    "precision": ["precision"],
    "GPU and framework": ["gpu", "framework"],
    "cell": ["cell"],
}


@dataclass(frozen=True, eq=False)
class _Known:
    rows: pd.DataFrame
    r: Array
    weight: Array

    @classmethod
    def of(cls, rows: pd.DataFrame) -> _Known:
        """Returns the rows that have an error."""
        compared = rows[rows["error"].notna()].reset_index(drop=True)
        return cls(compared, np.log1p(compared["error"].to_numpy(dtype=float)), weights.by_cell(compared["cell"]))

    def macro(self, r: Array) -> float:
        return float(np.average(np.abs(r), weights=self.weight))

    def centred(self, by: Sequence[str]) -> Array:
        """Returns r less the weighted median of r over the rows that share its values of the columns ``by``."""
        residuals = self.r.copy()
        for _, group in frame.parts(self.rows, by):
            places = group.index.to_numpy()
            residuals[places] -= weights.median(self.r[places], self.weight[places])
        return residuals


def _shares(rows: pd.DataFrame) -> Array:
    """Returns the share of each of :data:`PARTS` in the seconds of a step, a column each; zeros without a breakdown."""
    seconds = dict(zip(BREAKDOWN, np.nan_to_num(rows[list(BREAKDOWN)].to_numpy(dtype=float)).T, strict=True))
    whole = sum(seconds.values(), np.zeros(len(rows)))
    parts = np.column_stack([sum((seconds[name] for name in names), np.zeros(len(rows))) for names in PARTS.values()])
    share: Array = np.divide(parts, whole[:, None], out=np.zeros_like(parts), where=whole[:, None] > 0.0)
    return share


def cells(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns every cell, the one that adds most to macro MAPE first. ``points``: what the cell adds to macro MAPE;
    ``bias``: mean of r; ``scatter``: the standard deviation of r inside the cell; ``of_family``, ``of_gpu``,
    ``of_framework``: mean r of the other cells of the same family, GPU or framework, NaN where there are none;
    ``fault``: where to look."""
    known = _Known.of(rows)
    _, first, at, count = np.unique(known.rows["cell"], return_index=True, return_inverse=True, return_counts=True)

    def mean(values: Array) -> Array:
        return np.asarray(np.bincount(at, values) / count, dtype=np.float64)

    bias, mape = mean(known.r), mean(np.abs(known.rows["error"].to_numpy(dtype=float)))
    share = np.column_stack([mean(part) for part in _shares(known.rows).T])
    largest = share.argmax(axis=1)
    table = known.rows[list(CELL)].iloc[first].reset_index(drop=True)
    table = table.assign(
        rows=count,
        mape=mape,
        bias=bias,
        scatter=np.sqrt(mean((known.r - bias[at]) ** 2)),
        largest_part=np.array(list(PARTS))[largest],
        largest_share=share.max(axis=1),
        points=mape / len(table),
        **{f"of_{level}": _others(bias, table[level]) for level in CELL},
    )
    return table.assign(fault=[_fault(cell) for cell in frame.lines(table)]).sort_values(
        ["points", *CELL], ascending=[False, True, True, True]
    )


def _fault(cell: Any) -> str:
    """Returns where to look for the fault: the family, GPU or framework that errs the same way, or the cell itself."""
    kin = {"family": cell.of_family, "GPU": cell.of_gpu, "framework": cell.of_framework}
    sharing = [name for name, r in kin.items() if r * cell.bias > 0 and abs(r) >= _ALIKE * abs(cell.bias)]
    if cell.rows == 1 and not sharing:
        return "one row alone: its source, or a switch that it does not state"
    if cell.scatter > abs(cell.bias):
        return "scatter: what differs between its rows"
    return f"the whole {', '.join(sharing)}" if sharing else "this cell alone: how its rows were run"


def _others(means: Array, kin: pd.Series[Any]) -> Array:
    """Returns for every cell the mean over the other cells of the same ``kin``; NaN where there are none."""
    _, at, count = np.unique(kin.to_numpy(dtype=str), return_inverse=True, return_counts=True)
    others, sums = (count - 1)[at], np.bincount(at, means)[at] - means
    mean: Array = np.divide(sums, others, out=np.full(len(means), np.nan), where=others > 0)
    return mean


def per_key(rows: pd.DataFrame, key: str) -> pd.DataFrame:
    """Returns the macro mean |r| of every value of a column, the largest first: as it is (``error``), with the median of
    the value's rows taken out (``without_bias``), and with the median of every cell taken out (``without_cells``)."""
    figures_by_value = []
    for (value,), members in frame.parts(rows[rows["error"].notna()], [key]):
        known = _Known.of(members)
        bias = weights.median(known.r, known.weight)
        figures = (known.macro(known.r), known.macro(known.r - bias), known.macro(known.centred(["cell"])))
        figures_by_value.append((value, len(members), members["cell"].nunique(), bias, *figures))
    names = ("key", "rows", "cells", "bias", "error", "without_bias", "without_cells")
    return frame.table(figures_by_value, names).sort_values(["error", "key"], ascending=[False, True])


def ablations(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns for each of :data:`KEYS` the macro mean |r| (``error``) if each value's median were known, in sample."""
    known = _Known.of(rows)
    errors = [("nothing", 1, known.macro(known.r))]
    errors += [
        (name, len(known.rows.drop_duplicates(list(by))), known.macro(known.centred(by))) for name, by in KEYS.items()
    ]
    return frame.table(errors, ("name", "values", "error"))


def terms(rows: pd.DataFrame) -> pd.DataFrame:
    """Regresses r on the shares of the parts in a step, with one prior for all parts, to find the part that carries the
    error. ``theta``, ``error``: the relative error of the part's time that explains r best, and its standard error;
    ``saved``: the fall of macro mean |r| with that error corrected, in sample; ``held_out``: the same, each family by a
    fit that did not see it."""
    known = _Known.of(rows[rows[list(BREAKDOWN)].notna().any(axis=1)])
    x = _shares(known.rows)
    figures = []
    if len(x):
        theta, error = _ridge(x, known.r, known.weight)
        predicted = np.zeros_like(x)
        for family in known.rows["family"].unique():
            out = (known.rows["family"] == family).to_numpy(dtype=bool)
            if not out.all():
                predicted[out] = x[out] * _ridge(x[~out], known.r[~out], known.weight[~out])[0]
        now = known.macro(known.r)
        for i, name in enumerate(PARTS):
            share, used = float(np.average(x[:, i], weights=known.weight)), int((x[:, i] > 0.0).sum())
            after = (known.macro(known.r - x[:, i] * theta[i]), known.macro(known.r - predicted[:, i]))
            figures.append((name, share, used, float(theta[i]), float(error[i]), now - after[0], now - after[1]))
    names = ("name", "share", "rows", "theta", "error", "saved", "held_out")
    return frame.table(figures, names).sort_values("saved", ascending=False, kind="stable")


def _ridge(x: Array, r: Array, weight: Array) -> tuple[Array, Array]:
    """Returns θ and its standard error; rows far off count less (Huber, at one and a half of the usual error)."""
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
        residual = np.abs(r - x @ theta)
        robust = weight * np.minimum(1.0, 1.5 * scale / np.maximum(residual, 1e-12))
    return theta, error


def conditions(rows: pd.DataFrame, tests: Mapping[str, pd.Series[bool]]) -> pd.DataFrame:
    """Compares rows that have a property (a mask of ``rows``) with rows that lack it, the property that adds most first.
    A property of no row is left out. ``mape``: macro, with its bootstrap interval over cells (``range``; None for one
    cell); ``points``: what the rows add to macro MAPE; ``others``: macro MAPE of the rows that lack it, NaN where there
    are none."""
    known = rows[rows["error"].notna()]
    size, cell = known["error"].abs(), known["cell"]
    weight = weights.by_cell(cell) / cell.nunique()
    figures = []
    for name, holds in tests.items():
        mask = holds[known.index].to_numpy(dtype=bool)
        if mask.any():
            by_cell = weights.means(size[mask], cell[mask]).tolist()
            bias = weights.macro(known["error"][mask], cell[mask])
            others = np.nan if mask.all() else weights.macro(size[~mask], cell[~mask])
            points = float((size * weight)[mask].sum())
            mape = float(np.mean(by_cell))
            figures.append((name, int(mask.sum()), len(by_cell), mape, resample.of_mean(by_cell), bias, others, points))
    names = ("name", "rows", "cells", "mape", "range", "bias", "others", "points")
    return frame.table(figures, names).sort_values("points", ascending=False, kind="stable")
