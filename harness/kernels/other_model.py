"""Compares another package's model of dense products with ours, on the same measured rows."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from harness.kernels.fit import Array
from harness.kernels.score import LARGE, Class, Score, class_of
from projector.dataclass import dataclass
from projector.errors import Unsupported
from projector.hardware.catalogue import gpu as catalogue_gpu
from projector.hardware.efficiency import load
from projector.kernels import backends


@dataclass(frozen=True)
class Comparison:
    """The mean absolute relative errors over the ``rows`` of a class that ``backend`` prices too: ``ours`` (held out
    where the score is), ``theirs``, both again over products of training (``large``), and the geometric mean of theirs
    over measured."""

    cls: Class
    rows: int
    ours: float
    theirs: float
    ours_large: float
    theirs_large: float
    bias: float


def compared(score: Score, backend: str) -> list[Comparison]:
    """Returns a line for each class of dense products on a GPU that ``backend`` knows. Raises ``InputError`` where its
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
        theirs = np.full(len(members), np.nan)
        for place, i in enumerate(members):
            try:
                theirs[place] = model.seconds(list(score.rows[i].ops)).sum()
            except Unsupported:
                continue
        ratio = theirs / score.measured[members]
        both = np.isfinite(ratio) & np.isfinite(ours[members])
        large = both & (score.flops[members] >= LARGE)
        if both.any():
            wrong = np.abs(ratio - 1)
            lines.append(
                Comparison(
                    cls=cls,
                    rows=int(both.sum()),
                    ours=_mean(ours[members], both),
                    theirs=_mean(wrong, both),
                    ours_large=_mean(ours[members], large),
                    theirs_large=_mean(wrong, large),
                    bias=math.exp(np.log(ratio[both]).mean()),
                )
            )
    return lines


def _mean(errors: Array, which: npt.NDArray[np.bool_]) -> float:
    return float(errors[which].mean()) if which.any() else math.nan
