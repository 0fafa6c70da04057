"""Errors on rows that the constants did not see: refitted without the row's whole group, or without the whole GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harness.kernels.calibrate import KINDS, REFERENCE, Progress, fit_gpu, of_each, unfitted
from harness.kernels.fit import Array, places
from harness.kernels.model import seconds
from harness.kernels.schema import Row
from projector.dataclass import dataclass
from projector.hardware.catalogue import gpu as catalogue_gpu
from projector.hardware.efficiency import of, relative
from projector.hardware.types import Efficiency
from projector.operators.types import Stream

__all__ = ["FEWEST_GROUPS", "HeldOut", "Progress", "held_out"]

#: Fewer groups than this cannot be left out in turn to any purpose; of streams, which have one constant a device, two can.
FEWEST_GROUPS, FEWEST_STREAMS = 5, 2


@dataclass(frozen=True)
class HeldOut:
    """``seconds`` (n,) by constants that saw nothing of the row's group, NaN where groups are too few; ``how`` (n,):
    ``refit``, ``not fitted`` (no class of its own: the constants of others), ``too few``.
    """

    seconds: Array
    how: tuple[str, ...]


def held_out(rows: Sequence[Row], jobs: int = 1, progress: Progress | None = None) -> HeldOut:
    """Every row by a refit of its class, on the other rows given, without its whole group."""
    alike = places(rows, lambda row: row.gpu)
    # the largest first, so that no process is left with it at the end
    names = sorted(alike, key=lambda name: -len(alike[name]))
    parts = [[rows[i] for i in alike[name]] for name in names]
    found = of_each(_of_gpu, names, parts, jobs if len(rows) > 100 else 1, progress)
    out, how = np.full(len(rows), np.nan), [""] * len(rows)
    for name, (times, words) in zip(names, found, strict=True):
        out[alike[name]] = times
        for i, word in zip(alike[name], words, strict=True):
            how[i] = word
    return HeldOut(out, tuple(how))


def _of_gpu(name: str, rows: Sequence[Row]) -> tuple[Array, list[str]]:
    fits = fit_gpu(name, [row.measured for row in rows if not row.parts], tuple(KINDS))
    place = {id(row.measured): i for i, row in enumerate(rows)}
    times, how = np.full(len(rows), np.nan), ["not fitted"] * len(rows)
    classes: dict[tuple[object, ...], set[int]] = {}
    for number, each in enumerate(fits):
        where = [place[id(row)] for row in each.rows]
        for i in where:
            classes.setdefault(_class(rows[i]), set()).add(number)
        if each.outcome.groups < (FEWEST_STREAMS if isinstance(each.rows[0].op, Stream) else FEWEST_GROUPS):
            word = "too few"
        elif each.kept:
            word = "refit"
            times[where] = [(1.0 + e) * r.seconds for e, r in zip(each.outcome.heldout, each.rows, strict=True)]
        else:
            word = "not fitted"
        for i in where:
            how[i] = word
    # rows in no fit: constants of the other classes, without any fit that holds rows of their own
    apart: dict[frozenset[int], list[int]] = {}
    for i, row in enumerate(rows):
        if how[i] == "not fitted":
            apart.setdefault(frozenset(classes.get(_class(row), ())), []).append(i)
    for own, members in apart.items():
        others = {k: p for j, e in enumerate(fits) if e.kept and j not in own for k, p in e.outcome.values.items()}
        efficiency = Efficiency(gpu=name, parameters={**unfitted(name).parameters, **others})
        times[members] = seconds([rows[i] for i in members], efficiency)
    return times, how


def _class(row: Row) -> tuple[object, ...]:
    """Rows whose constants are alike, whatever their size: FP16 runs at the rates of BF16."""
    op = row.measured.op
    dtype = "bf16" if row.dtype == "fp16" else row.dtype
    way = (getattr(op, "backward", None), getattr(op, "head_dim_qk", None))
    return (row.kind, row.measured.family, dtype, row.scaling, *way)


# How well a GPU is modelled that nobody measured: what its data sheet gives a user who has nothing else.
#
# The GPU's own file is taken away. Where its architecture's file was fitted on it, that one is too, and with it all its
# relatives: the constants are then those of the nearest other architecture, as for one that is not out yet.
def transferred(rows: Sequence[Row]) -> Array:
    """Seconds of each row, (n,), by constants that no fit to its GPU entered."""
    out = np.full(len(rows), np.nan)
    for name, members in places(rows, lambda row: row.gpu).items():
        out[members] = seconds([rows[i] for i in members], without(name))
    return out


def donor(name: str) -> str:
    """The architecture whose file stands in for all that was measured on ``name``."""
    device = catalogue_gpu(name)
    return relative(device, device.arch) if name in REFERENCE else device.arch


def without(name: str) -> Efficiency:
    """The GPU's parameters as if it had no file, and, where it speaks for its architecture, that none."""
    return of(replace(catalogue_gpu(name), name="", arch=donor(name), efficiency_file=""))
