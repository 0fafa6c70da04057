"""Fits the constants of one kernel class on measured rows, and says how far off the fit is on rows that it did not see.

Few parameters per class, robust loss on log time, a weak pull to the prior. Whole groups of rows (for GEMMs all rows of
one (n, k)) are left out in turn; ``low`` and ``high`` of a parameter are its value ± two jackknife standard errors over
the same folds. Deterministic: seeds are fixed. Needs scipy, imported where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from projector.dataclass import dataclass
from projector.hardware.types import Efficiency, Gpu
from projector.io.rows import grouped
from projector.kernels.protocol import ComputeOp
from projector.kernels.simulate import Simulated, arrange
from projector.kernels.tables import Measured
from projector.mechanisms import Execution
from projector.operators.types import Attention, Gemm, GroupedGemm, Stream
from projector.parameter import Parameter, named_unit

Array = npt.NDArray[np.float64]
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
# Most microseconds of a launch on a device; larger figures, timed through a framework, hold host time.
HOST_FREE = 12.0
# Tables of serving libraries are mostly tiny shapes; the step of a training run is made of large ones.
TRAINING, SERVING = 1e10, 0.3  # FLOP from which a row weighs 1, and the weight of a smaller one
PULL = 0.02  # weight of a parameter's distance from its prior, over its whole range, as a log error of every row
ROWS = 700  # per fit; a table of 15 000 neighbours carries no more information


#: Prior, lowest and highest value of a parameter.
Bounds = tuple[float, float, float]


def group_of(op: ComputeOp) -> tuple[object, ...]:
    """Returns the group of an operator: rows of one group are neighbours, and none is judged by a fit that saw another.
    GEMM: the weight (n, k) or (k, n), whatever m, layout and batch. Attention: lengths, heads and width, masked or not.
    Grouped: the weight and the number of experts. Streams: kind and size."""
    if isinstance(op, Gemm):
        return (min(op.n, op.k), max(op.n, op.k))
    if isinstance(op, Attention):
        return (op.seq_q, op.seq_k, op.heads * op.batch, op.head_dim_qk, op.head_dim_v)
    if isinstance(op, GroupedGemm):
        return (op.groups, min(op.n, op.k), max(op.n, op.k))
    if isinstance(op, Stream):
        return (op.kind, op.bytes)
    raise TypeError(type(op).__name__)


def places(rows: Sequence[T], key: Callable[[T], K]) -> dict[K, list[int]]:
    """Returns the places of the rows by a key, in order of first appearance."""
    return grouped((key(row), i) for i, row in enumerate(rows))


@dataclass(frozen=True)
class Set:
    """One fit: rows of one kernel class and the keys that its parameters are written to. ``group``: rows of one value
    are left out together."""

    title: str
    rows: tuple[Measured, ...]
    family: str
    keys: Mapping[str, Bounds]
    group: Callable[[Measured], object] = lambda row: group_of(row.op)


@dataclass(frozen=True)
class Outcome:
    """The result of a fit. ``values``: the constants from all rows; ``heldout`` (n,): signed error of each row by the
    fit that saw none of its group; ``flops`` (n,); ``groups``: number of groups (one alone cannot be left out: its error
    is in-sample)."""

    title: str
    values: Mapping[str, Parameter]
    heldout: Array
    flops: Array
    groups: int


def fit(data: Set, device: Gpu, base: Efficiency) -> Outcome:
    """Fits constants of the set's keys over ``base``, and returns them with the held-out error of every row."""
    times = np.array([row.seconds for row in data.rows])
    groups = [data.group(row) for row in data.rows]
    fold = folds_of(groups)
    values = solve(data, times, np.arange(len(times)), device, base)
    heldout, refits = np.zeros(len(times)), []
    for number in range(fold.max() + 1):
        others, out = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        refits.append(solve(data, times, others if len(others) else out, device, base, near=values))
        heldout[out] = predict(data, refits[-1], out, device, base) / times[out] - 1.0
    flops = np.array([getattr(row.op, "flops", 0.0) for row in data.rows])
    constants = parameters(data, values, np.array(refits), heldout, len(set(groups)))
    return Outcome(data.title, constants, heldout, flops, len(set(groups)))


def folds_of(groups: Sequence[object]) -> npt.NDArray[np.intp]:
    """Returns the fold of each row, (n,): at most five, every group whole in one of them, the same for the same groups."""
    order = {g: i for i, g in enumerate(sorted(set(groups), key=repr))}
    label = np.array([order[g] for g in groups])
    fold: npt.NDArray[np.intp] = np.random.default_rng(7).permutation(len(order))[label] % min(5, len(order))
    return fold


def predict(data: Set, values: Array, which: npt.NDArray[np.intp], device: Gpu, base: Efficiency) -> Array:
    return _model(data, values, device, base).times([data.rows[i].op for i in which]).seconds


def _model(data: Set, values: Array, device: Gpu, base: Efficiency) -> Simulated:
    overlay = {key: Parameter(float(v), "fitted", "") for key, v in zip(data.keys, values, strict=True)}
    efficiency = Efficiency(gpu=device.name, parameters={**base.parameters, **overlay})
    execution = Execution.of(kernels={"gemm": data.family, "attention": data.family})
    return Simulated(device, efficiency, execution, alone=True)


def solve(
    data: Set, times: Array, which: npt.NDArray[np.intp], device: Gpu, base: Efficiency, near: Array | None = None
) -> Array:
    """Returns values of the keys that fit the rows ``which`` best; ``near``: the fit of all rows, a second start."""
    if len(which) > ROWS:
        which = np.random.default_rng(1).choice(which, ROWS, replace=False)
    prior, low, high = np.array(list(data.keys.values())).T
    start = (prior - low) / (high - low)
    weight = np.array([1.0 if getattr(data.rows[i].op, "flops", TRAINING) >= TRAINING else SERVING for i in which])

    pull = max(PULL * np.sqrt(len(which)), 0.05)

    given, measured = arrange([data.rows[i].op for i in which]), times[which]

    def residual(unit: Array) -> Array:
        ratio = _model(data, low + (high - low) * unit, device, base).arranged(given) / measured
        return np.concatenate([weight * np.log(ratio), pull * (unit - start)])

    from scipy.optimize import least_squares

    # The waves blend and the tile penalty trade against each other: several minima, so several starts.
    middle = [np.full(len(start), 0.5), np.clip(1.0 - start, 0.1, 0.9)]
    starts = [start, *(middle if near is None else [np.clip((near - low) / (high - low), 0.0, 1.0)])]
    tries = [
        least_squares(residual, first, bounds=(0, 1), loss="soft_l1", f_scale=0.05, diff_step=1e-3, max_nfev=40)
        for first in starts
    ]
    return np.asarray(low + (high - low) * min(tries, key=lambda solution: float(solution.cost)).x)


def parameters(data: Set, values: Array, folds: Array, heldout: Array, groups: int) -> dict[str, Parameter]:
    """Returns the constants with standard errors (jackknife over the folds); ``low`` and ``high`` are two of them away."""
    error = np.sqrt((len(folds) - 1) / len(folds) * ((folds - folds.mean(axis=0)) ** 2).sum(axis=0))
    origin = ", ".join(sorted({row.source.split(" ")[0] for row in data.rows})[:3])
    how = "held-out" if groups > 1 else "in-sample"  # one group alone cannot be left out
    source = f"{origin}: {len(data.rows)} rows in {groups} groups, {how} MAPE {100 * np.abs(heldout).mean():.1f} %"
    framework = all(row.condition == "framework average" for row in data.rows)
    out = {}
    for key, value, se, (_, low, high) in zip(data.keys, values, error, data.keys.values(), strict=True):
        if "issue_us" in key:  # the host that was measured, not the device
            source += f"; experts issued every {value:.1f} us"
            continue
        if framework and "launch_us" in key and value > HOST_FREE:
            text = f"{source}; the fit gives {value:.0f} us, which holds host time, so it is capped"
            out[key] = Parameter(HOST_FREE, "fitted", text, 3.0, round(float(value), 1), named_unit(key))
            continue
        ends = (max(value - 2 * se, low), min(value + 2 * se, high))
        best, least, most = (round(float(each), 4) for each in (value, *ends))
        out[key] = Parameter(best, "fitted", source, least, most, named_unit(key))
    return out
