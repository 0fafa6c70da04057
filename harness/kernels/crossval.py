"""Errors on rows that the constants did not see: refitted without the row's whole group, or without the whole GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harness.kernels.calibrate import KINDS, REFERENCE, Progress, fit_gpu, of_each, unfitted
from harness.kernels.fit import Array, places
from harness.kernels.model import of_each_gpu, seconds
from harness.kernels.schema import Row
from harness.kernels.sets import operands
from projector.hardware.catalogue import gpu as catalogue_gpu
from projector.hardware.efficiency import of, relative
from projector.hardware.types import Efficiency
from projector.operators.types import Stream

__all__ = ["FEWEST_GROUPS", "Progress", "held_out"]

#: Least groups for leaving each out in turn; for streams, which have one constant a device, two are enough.
FEWEST_GROUPS, FEWEST_STREAMS = 5, 2


def held_out(rows: Sequence[Row], jobs: int = 1, progress: Progress | None = None) -> tuple[Array, tuple[str, ...]]:
    """Predicts every row by a refit of its class, on the other rows given, without its whole group: its seconds (n,), NaN
    where groups are too few, and how (n,): ``refit``, ``not fitted`` (no class of its own: the constants of others), ``too
    few``."""
    by_gpu = places(rows, lambda row: row.gpu)
    # the largest first, so that no process is left with it at the end
    names = sorted(by_gpu, key=lambda name: -len(by_gpu[name]))
    parts = [[rows[i] for i in by_gpu[name]] for name in names]
    results = of_each(_of_gpu, names, parts, jobs if len(rows) > 100 else 1, progress)
    out, how = np.full(len(rows), np.nan), [""] * len(rows)
    for name, (times, words) in zip(names, results, strict=True):
        out[by_gpu[name]] = times
        for i, word in zip(by_gpu[name], words, strict=True):
            how[i] = word
    return out, tuple(how)


def _of_gpu(name: str, rows: Sequence[Row]) -> tuple[Array, list[str]]:
    fits = fit_gpu(name, [row.measured for row in rows if not row.parts], tuple(KINDS))
    place = {id(row.measured): i for i, row in enumerate(rows)}
    times, how = np.full(len(rows), np.nan), ["not fitted"] * len(rows)
    classes: dict[tuple[object, ...], set[int]] = {}
    for number, fit in enumerate(fits):
        where = [place[id(row)] for row in fit.rows]
        for i in where:
            classes.setdefault(_class(rows[i]), set()).add(number)
        if fit.outcome.groups < (FEWEST_STREAMS if isinstance(fit.rows[0].op, Stream) else FEWEST_GROUPS):
            word = "too few"
        elif fit.kept:
            word = "refit"
            times[where] = [(1.0 + e) * r.seconds for e, r in zip(fit.outcome.heldout, fit.rows, strict=True)]
        else:
            word = "not fitted"
        for i in where:
            how[i] = word
    # Rows in no fit are priced by constants of the other classes, without any fit that holds rows of their own class.
    unfitted_rows: dict[frozenset[int], list[int]] = {}
    for i, row in enumerate(rows):
        if how[i] == "not fitted":
            unfitted_rows.setdefault(frozenset(classes.get(_class(row), ())), []).append(i)
    for own_fits, members in unfitted_rows.items():
        others = {k: p for j, e in enumerate(fits) if e.kept and j not in own_fits for k, p in e.outcome.values.items()}
        efficiency = Efficiency(gpu=name, parameters={**unfitted(name).parameters, **others})
        times[members] = seconds([rows[i] for i in members], efficiency)
    return times, how


def _class(row: Row) -> tuple[object, ...]:
    """Returns the key of rows that share constants, whatever their size: FP16 runs at the rates of BF16."""
    op = row.measured.op
    way = (getattr(op, "backward", None), getattr(op, "head_dim_qk", None))
    return (row.kind, row.measured.family, operands(row.dtype), row.scaling, *way)


# Errors on a GPU that nobody measured, modelled from its data sheet alone. The GPU's own file is taken away. Where its
# architecture's file was fitted on it, that one is too, and with it all its relatives: the constants are then those of
# the nearest other architecture, as for one that is not out yet.
def transferred(rows: Sequence[Row]) -> Array:
    """Returns the seconds of each row, (n,), by constants that no fit to its GPU entered."""
    return of_each_gpu(rows, without)


def donor(name: str) -> str:
    """Returns the architecture whose file replaces all that was measured on ``name``."""
    device = catalogue_gpu(name)
    return relative(device, device.arch) if name in REFERENCE else device.arch


def without(name: str) -> Efficiency:
    """Returns the GPU's parameters without its file, and without its architecture's file if that was fitted on it."""
    return of(replace(catalogue_gpu(name), name="", arch=donor(name), efficiency_file=""))
