"""Compares another package's model of dense products with ours, on the same measured rows."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from harness.kernels.fit import Array
from harness.kernels.schema import Row
from harness.kernels.score import LARGE, Score, class_of
from projector.errors import Unsupported
from projector.hardware.catalogue import gpu as catalogue_gpu
from projector.hardware.efficiency import load
from projector.kernels import backends
from projector.operators.types import Gemm


def compared(score: Score, backend: str) -> list[dict[str, object]]:
    """Returns a line for each class of dense products on a GPU that ``backend`` knows: the mean absolute relative errors
    over its ``rows`` that ``backend`` prices too, ``ours`` (held out where the score is) and ``theirs``, both again over
    products of training (``large``), and the geometric mean of theirs over measured. Raises ``InputError`` where its
    package is missing."""
    factory = backends.factory(backend)
    held_out = score.error("heldout")
    ours = np.abs(held_out if np.isfinite(held_out).any() else score.error("shipped"))
    lines = []
    for cls, members in score.members(class_of).items():
        if cls.kind != "gemm":
            continue
        try:
            model = factory(catalogue_gpu(cls.gpu), load(cls.gpu))
        except Unsupported:
            continue
        theirs = np.array([_seconds(model, score.rows[i]) for i in members])
        ratio = theirs / score.measured[members]
        both = np.isfinite(ratio) & np.isfinite(ours[members])
        if both.any():
            errors = {"ours": ours[members], "theirs": np.abs(ratio - 1)}
            means = {name: _mean(error, both) for name, error in errors.items()}
            large = both & (score.flops[members] >= LARGE)
            means |= {f"{name}_large": _mean(error, large) for name, error in errors.items()}
            bias = math.exp(np.log(ratio[both]).mean())
            lines.append({"cls": cls, "rows": int(both.sum()), **means, "bias": bias})
    return lines


def _seconds(model: backends.GemmBackend, row: Row) -> float:
    """Returns the seconds of a row by a model; NaN where it does not price it."""
    try:
        return float(model.seconds([op for op in row.ops if isinstance(op, Gemm)]).sum())
    except Unsupported:
        return math.nan


def _mean(errors: Array, which: npt.NDArray[np.bool_]) -> float:
    return float(errors[which].mean()) if which.any() else math.nan
