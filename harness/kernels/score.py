"""Compares modelled with measured kernels, row by row and class by class: the models under several fits, and two
baselines."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from harness.kernels import model
from harness.kernels.crossval import Progress, held_out, transferred
from harness.kernels.fit import Array, folds_of, group_of, places
from harness.kernels.schema import Loaded, Row
from harness.kernels.table import was_fitted
from projector.dataclass import dataclass
from projector.hardware.catalogue import gpu as catalogue_gpu
from projector.hardware.efficiency import load
from projector.io import csv_file
from projector.kernels.traffic import unique_bytes

#: Predictions of a row's seconds, the model first: with the constants as shipped, refitted without the row's group,
#: with constants of other GPUs only; then the roofline of three fitted constants, and that of a rule of thumb.
FITS = ("shipped", "heldout", "transfer", "roofline", "fixed")
#: FLOP from which a shape is one of training; headlines count only these.
LARGE = 1e10
CLASSES = (("< 1e10", 0.0, 1e10), ("1e10 – 1e11", 1e10, 1e11), ("1e11 – 1e12", 1e11, 1e12), ("> 1e12", 1e12, np.inf))

Key = TypeVar("Key", bound=Hashable)


class Class(NamedTuple):
    """The class of a row; every table shows classes on lines of their own."""

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
    """The statistics of signed relative errors: their number, mean and median of the absolute ones, their 90th
    percentile, the mean signed one."""

    n: int
    mape: float
    median: float
    p90: float
    bias: float


@dataclass(frozen=True)
class Score:
    """The predictions of rows. ``seconds``: of each row (n,) by each of :data:`FITS`, NaN where there is none; ``how``
    (n,): how the held-out one was made; ``constants`` (n,): the kind of the shipped ones; ``seen`` (n,): the shipped
    ones were fitted on figures of the row's source."""

    rows: tuple[Row, ...]
    measured: Array
    flops: Array
    seconds: Mapping[str, Array]
    how: tuple[str, ...]
    constants: tuple[str, ...]
    seen: npt.NDArray[np.bool_]
    large: npt.NDArray[np.bool_]

    def error(self, fit: str) -> Array:
        """Returns signed relative errors (n,), NaN where there is no prediction."""
        return self.seconds[fit] / self.measured - 1.0

    def members(
        self, key: Callable[[Row], Key], which: npt.NDArray[np.bool_] | None = None
    ) -> dict[Key, npt.NDArray[np.intp]]:
        """Returns the places of the rows by ``key``, in order of the keys."""
        chosen = np.arange(len(self.rows)) if which is None else np.flatnonzero(which)
        by_key = places([self.rows[i] for i in chosen], key)
        return {k: chosen[by_key[k]] for k in sorted(by_key, key=repr)}


def score(rows: Sequence[Row], cross_validate: bool = True, jobs: int = 1, progress: Progress | None = None) -> Score:
    """Predicts every row by every fit. Without ``cross_validate`` nothing is refitted, so none is held out.
    ``progress(done, total)`` is called after each GPU that was refitted."""
    seconds = {
        "shipped": model.of_each_gpu(rows, load),
        "heldout": np.full(len(rows), np.nan),
        "transfer": transferred(rows),
        "roofline": np.full(len(rows), np.nan),
        "fixed": fixed(rows),
    }
    how = ("not asked for",) * len(rows)
    if cross_validate:
        refitted, how = held_out(rows, jobs, progress)
        seconds |= {"heldout": refitted, "roofline": fitted(rows)}
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


def of_new_weights(score: Score, which: Sequence[int] | npt.NDArray[np.intp]) -> Errors | None:
    """Returns held-out errors of GEMMs by weight, each weight counting once with its mean absolute error, whatever the
    number of its rows: the error to expect of a product of a new (n, k). None where nothing was held out."""
    wrong = score.error("heldout")
    weights: dict[tuple[object, ...], list[float]] = {}
    for i in which:
        if score.rows[i].kind == "gemm" and score.large[i] and np.isfinite(wrong[i]):
            weights.setdefault((class_of(score.rows[i]), *group_of(score.rows[i].measured.op)), []).append(wrong[i])
    means = np.array([np.abs(signed).mean() for signed in weights.values()])
    statistics = errors(means)
    if statistics is None:
        return None
    return replace(statistics, bias=float(np.mean([np.mean(signed) for signed in weights.values()])))


def class_of(row: Row) -> Class:
    return Class(row.gpu, row.kind, row.dtype, row.scaling, row.measured.family)


def errors(signed: Array) -> Errors | None:
    """Returns statistics of the errors that are not NaN; None where all are."""
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


# Two baselines that know no kernels: the larger of FLOP over a share of the peak and bytes over a share of bandwidth.
# ``fixed``: 0.6 of the peak and 0.8 of the bandwidth for everything. ``fitted``: both shares and a start time, three
# constants for each GPU, kind of kernel and operand type, cross-validated like the models.
# Assumed shares of a rule of thumb, to be beaten; they describe no device.
PEAK_SHARE, MEMORY_SHARE = 0.6, 0.8
FEWEST_GROUPS = 5
ROWS = 4000


def fixed(rows: Sequence[Row]) -> Array:
    """Returns the seconds of each row, (n,), by the rule of thumb."""
    compute, memory = _limits(rows)
    return np.maximum(compute / PEAK_SHARE, memory / MEMORY_SHARE)


def fitted(rows: Sequence[Row]) -> Array:
    """Returns the seconds of each row, (n,), by constants that saw no row of its group; NaN where groups are too few."""
    out = np.full(len(rows), np.nan)
    for members in places(rows, lambda row: (row.gpu, row.kind, row.dtype, row.scaling)).values():
        where = np.array(members)
        of_class = [rows[i] for i in members]
        fold = folds_of([group_of(row.measured.op) for row in of_class])
        if len({group_of(row.measured.op) for row in of_class}) < FEWEST_GROUPS:
            continue
        compute, memory = _limits(of_class)
        times = np.array([row.measured.seconds for row in of_class])
        for number in range(fold.max() + 1):
            others, out_fold = fold != number, fold == number
            constants = _solve(compute[others], memory[others], times[others])
            out[where[out_fold]] = _law(constants, compute[out_fold], memory[out_fold])
    return out


def _limits(rows: Sequence[Row]) -> tuple[Array, Array]:
    """Returns the seconds at the peak and at full bandwidth, each (n,)."""
    compute, memory = np.zeros(len(rows)), np.zeros(len(rows))
    for i, row in enumerate(rows):
        device = catalogue_gpu(row.gpu)
        compute[i] = row.flops / device.peak_of(row.dtype) if row.flops else 0.0
        memory[i] = sum(map(unique_bytes, row.ops)) / device.memory_bandwidth
    return compute, memory


def _law(constants: Array, compute: Array, memory: Array) -> Array:
    peak, bandwidth, start = np.exp(constants)
    result: Array = np.maximum(compute / peak, memory / bandwidth) + start
    return result


def _solve(compute: Array, memory: Array, times: Array) -> Array:
    from scipy.optimize import least_squares

    if len(times) > ROWS:
        chosen = np.random.default_rng(1).choice(len(times), ROWS, replace=False)
        compute, memory, times = compute[chosen], memory[chosen], times[chosen]
    solution = least_squares(
        lambda x: np.log(_law(x, compute, memory) / times),
        np.log([PEAK_SHARE, MEMORY_SHARE, 5e-6]),
        bounds=(np.log([0.01, 0.01, 1e-7]), np.log([1.0, 1.0, 1e-3])),
        loss="soft_l1",
        f_scale=0.05,
        max_nfev=60,
    )
    return np.asarray(solution.x)


SCHEMA_VERSION = 1
DIGITS = 6
SHAPE = (
    *("m", "n", "k", "batch", "layout", "accumulate", "groups", "rows", "backend"),
    *("heads", "kv_heads", "seq_q", "seq_k", "head_dim_qk", "head_dim_v", "causal", "backward"),
)


def csv_text(score: Score) -> str:
    """Returns one line a row: its place, class and shape, measured and modelled microseconds, signed errors."""
    modelled = [f"{fit}_us" for fit in FITS] + [f"{fit}_error" for fit in FITS]
    head = ("where", *Class._fields, *SHAPE, "flops", "measured_us", *modelled)
    rows: list[tuple[object, ...]] = [(*head, "heldout_by", "constants", "source_fitted", "condition", "source")]
    times = [1e6 * score.seconds[fit] for fit in FITS]
    wrong = [score.error(fit) for fit in FITS]
    for i, row in enumerate(score.rows):
        op = row.measured.op
        values = [getattr(op, name, "") for name in SHAPE]
        shape = [int(value) if isinstance(value, bool) else value for value in values]
        figures = (1e6 * score.measured[i], *(column[i] for column in (*times, *wrong)))
        tail = (score.how[i], score.constants[i], int(score.seen[i]), row.measured.condition, row.measured.source)
        rows.append((row.where, *class_of(row), *shape, *map(_number, (score.flops[i], *figures)), *tail))
    return csv_file.text(*rows)


def json_text(score: Score, loaded: Loaded) -> str:
    """Returns statistics of every class, whole and by size, and the skipped rows by reason."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "tables": [str(path) for path in loaded.paths],
        "rows": len(score.rows),
        "skipped": skipped(loaded),
        "classes": list(_classes(score)),
    }
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def skipped(loaded: Loaded) -> dict[str, int]:
    """Returns the number of rows that cannot be modelled by reason, the most frequent first."""
    counts = Counter(row.reason for row in loaded.skipped)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _classes(score: Score) -> Iterator[dict[str, Any]]:
    wrong = {fit: score.error(fit) for fit in FITS}
    for key, where in score.members(class_of).items():
        sizes: dict[str, Any] = {"all": where, "> 1e10": where[score.large[where]]}
        for name, least, most in CLASSES:
            sizes[name] = where[(score.flops[where] >= least) & (score.flops[where] < most)]
        filled = {name: part for name, part in sizes.items() if len(part)}
        said: dict[str, Any] = {"n": len(where), "source_fitted": bool(score.seen[where].all())}
        words = {"heldout_by": score.how, "constants": score.constants}
        said |= {name: sorted({of_row[i] for i in where}) for name, of_row in words.items()}
        by_size = {name: {fit: _statistics(wrong[fit][part]) for fit in FITS} for name, part in filled.items()}
        yield {**key._asdict(), **said, "errors": by_size}


def _statistics(signed: Any) -> dict[str, float] | None:
    statistics = errors(signed)
    if statistics is None:
        return None
    return {k: v if isinstance(v, int) else float(f"{v:.{DIGITS}g}") for k, v in asdict(statistics).items()}


def _number(value: float) -> str:
    return f"{value:.{DIGITS}g}" if math.isfinite(value) else ""
