"""Modelled against measured, row by row and class by class: the models under several fits, and two baselines."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from harness.kernels import model, roofline, transfer
from harness.kernels.crossval import Progress, held_out
from harness.kernels.fit import Array
from harness.kernels.grouping import group_of
from harness.kernels.schema import Row
from harness.kernels.table import was_fitted
from projector.dataclass import dataclass
from projector.hardware.efficiency import load

#: Predictions of a row's seconds, the model first: with the constants as shipped, refitted without the row's group,
#: with constants of other GPUs only; then the roofline of three fitted constants, and that of a rule of thumb.
FITS = ("shipped", "heldout", "transfer", "roofline", "fixed")
#: FLOP from which a shape is one of training; headlines are of these.
LARGE = 1e10
CLASSES = (("< 1e10", 0.0, 1e10), ("1e10 – 1e11", 1e10, 1e11), ("1e11 – 1e12", 1e11, 1e12), ("> 1e12", 1e12, np.inf))

Key = TypeVar("Key", bound=Hashable)


class Class(NamedTuple):
    """Rows that are told apart in every table."""

    gpu: str
    kind: str
    dtype: str
    scaling: str
    family: str

    @property
    def operands(self) -> str:
        return f"{self.dtype} {self.scaling}" if self.scaling and self.scaling != self.dtype else self.dtype


@dataclass(frozen=True)
class Errors:
    """Of signed relative errors: how many, mean and median of the absolute ones, their 90th percentile, the mean signed
    one.
    """

    n: int
    mape: float
    median: float
    p90: float
    bias: float


@dataclass(frozen=True)
class Score:
    """``seconds``: prediction of each row (n,) by each of :data:`FITS`, NaN where there is none; ``how`` (n,): how the
    held-out one was made; ``constants`` (n,): what the shipped ones are; ``seen`` (n,): the shipped ones were fitted on
    figures of the row's source.
    """

    rows: tuple[Row, ...]
    measured: Array
    flops: Array
    seconds: Mapping[str, Array]
    how: tuple[str, ...]
    constants: tuple[str, ...]
    seen: npt.NDArray[np.bool_]
    large: npt.NDArray[np.bool_]

    def error(self, fit: str) -> Array:
        """Signed relative errors (n,), NaN where there is no prediction."""
        return self.seconds[fit] / self.measured - 1.0

    def members(
        self, key: Callable[[Row], Key], which: npt.NDArray[np.bool_] | None = None
    ) -> dict[Key, npt.NDArray[np.intp]]:
        """Places of the rows by ``key``, in order of the keys."""
        found: dict[Key, list[int]] = {}
        for i, row in enumerate(self.rows):
            if which is None or which[i]:
                found.setdefault(key(row), []).append(i)
        return {k: np.array(found[k]) for k in sorted(found, key=repr)}


def score(rows: Sequence[Row], cross_validate: bool = True, jobs: int = 1, progress: Progress | None = None) -> Score:
    """Predictions of every row by every fit. Without ``cross_validate`` nothing is refitted, so none is held out.

    ``progress(done, total)`` is called after each GPU that was refitted.
    """
    seconds = {
        "shipped": _shipped(rows),
        "heldout": np.full(len(rows), np.nan),
        "transfer": transfer.transferred(rows),
        "roofline": np.full(len(rows), np.nan),
        "fixed": roofline.fixed(rows),
    }
    how = ("not asked for",) * len(rows)
    if cross_validate:
        found = held_out(rows, jobs, progress)
        seconds |= {"heldout": found.seconds, "roofline": roofline.fitted(rows)}
        how = found.how
    flops = np.array([row.flops for row in rows])
    return Score(
        rows=tuple(rows),
        measured=np.array([row.measured.seconds for row in rows]),
        flops=flops,
        seconds=seconds,
        how=how,
        constants=tuple(model.constants_of(row, load(row.gpu)) for row in rows),
        seen=np.array([was_fitted(row) for row in rows], dtype=np.bool_),
        large=np.array([row.kind == "stream" or row.flops > LARGE for row in rows], dtype=np.bool_),
    )


def _shipped(rows: Sequence[Row]) -> Array:
    out = np.zeros(len(rows))
    gpus: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        gpus.setdefault(row.gpu, []).append(i)
    for name, members in gpus.items():
        out[members] = model.seconds([rows[i] for i in members], load(name))
    return out


def of_new_weights(score: Score, which: Sequence[int] | npt.NDArray[np.intp]) -> Errors | None:
    """Held-out errors of GEMMs by weight, each weight counting once with its mean absolute error, whatever the number of its
    rows: what a product of a new (n, k) should expect. None where nothing was held out.
    """
    wrong = score.error("heldout")
    weights: dict[tuple[object, ...], list[float]] = {}
    for i in which:
        if score.rows[i].kind == "gemm" and score.large[i] and np.isfinite(wrong[i]):
            weights.setdefault((class_of(score.rows[i]), *group_of(score.rows[i])), []).append(wrong[i])
    means = np.array([np.abs(each).mean() for each in weights.values()])
    found = errors(means)
    if found is None:
        return None
    return replace(found, bias=float(np.mean([np.mean(each) for each in weights.values()])))


def class_of(row: Row) -> Class:
    return Class(row.gpu, row.kind, row.dtype, row.scaling, row.measured.family)


def errors(signed: Array) -> Errors | None:
    """Statistics of the errors that there are (NaN: none); None where there is none at all."""
    known = signed[np.isfinite(signed)]
    if not len(known):
        return None
    size = np.abs(known)
    return Errors(
        n=len(known),
        mape=float(size.mean()),
        median=float(np.median(size)),
        p90=float(np.quantile(size, 0.9)),
        bias=float(known.mean()),
    )
