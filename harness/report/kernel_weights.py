"""The headline of a kernel score: GEMMs of weights that no fit saw."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from harness.kernels.schema import Row
from harness.kernels.score import Score, class_of, errors, of_new_weights
from harness.report.table import Column, Table, percent, signed

__all__ = ["new_weights"]


def new_weights(score: Score) -> Table:
    """The headline: GEMMs whose weight no fit saw, by GPU and operands."""
    columns = (
        *(Column(name, numeric=False) for name in ("GPU", "operands")),
        *(Column(name) for name in ("weights", "mean", "median", "p90", "bias", "rows", "by rows")),
    )
    key: Callable[[Row], tuple[str, str]] = lambda row: (row.gpu, class_of(row).operands)  # noqa: E731
    gemms = np.array([row.kind == "gemm" for row in score.rows], dtype=np.bool_) & score.large
    made = []
    for named, where in score.members(key, gemms).items():
        new, rows = of_new_weights(score, where), errors(score.error("heldout")[where])
        if new is not None and rows is not None:
            figures = (percent(new.mape), percent(new.median), percent(new.p90), signed(new.bias))
            made.append((*named, str(new.n), *figures, str(rows.n), percent(rows.mape)))
    note = (
        "Training shapes, refitted without every product of the weight, (n, k) or (k, n), whatever m and layout. Mean, "
        "median and p90 are over weights, each with the mean absolute error of its rows; the last column is over rows."
    )
    return Table(title="GEMM of a new (n, k)", columns=columns, rows=tuple(made), note=note)
