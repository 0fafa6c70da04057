"""Long schedules from short ones: once a pipeline repeats itself, more micro-batches add more of the same period.

The orders of 1F1B and its interleaved form are a warm-up, a group of micro-batches again and again, and a cool-down. What
an action of the repeated part waits for is at most :func:`_reach` micro-batches back. So where all actions of so many
micro-batches in a row end one period after those a group before them, all that follow do, and the cool-down is later by as
many periods as groups are left out. Where they do not (one rank still falls behind another), the whole schedule is to be
evaluated.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from projector.pipeline.timeline import Timeline
from projector.pipeline.types import Compiled, Indices

__all__ = ["later", "shorter"]

Floats = NDArray[np.float64]
_ORDERS = ("1f1b", "interleaved")
_EQUAL = 1e-13  # of the makespan: rounding of a few thousand additions


def shorter(name: str, pp: int, vpp: int, microbatches: int, group: int | None) -> int | None:
    """Micro-batches of a schedule that shows how a longer one of this name goes on, as many groups shorter; None where it
    would not be."""
    unit = _unit(pp, group)
    least = _warm(vpp, unit) + unit + 2 * _reach(vpp, unit)  # warm-up, the micro-batches compared, cool-down
    if name not in _ORDERS or pp == 1 or microbatches < least + 2 * unit:
        return None
    return least + microbatches % unit


def later(timeline: Timeline, microbatches: Indices, group: int | None) -> Floats:
    """``[batch]``: seconds by which schedules of so many ``microbatches`` end after the one of ``timeline``, as
    :func:`shorter` cut it; NaN where it does not repeat itself."""
    compiled = timeline.compiled
    schedule = compiled.schedule
    unit = _unit(schedule.pp, group)
    first, second = _compared(compiled, _warm(schedule.vpp, unit), unit, _reach(schedule.vpp, unit))
    end = np.atleast_2d(timeline.end)
    apart = end[:, second] - end[:, first]
    period = apart.mean(axis=1)
    steady = np.abs(apart - period[:, None]).max(axis=1) <= _EQUAL * end.max(axis=1)
    return np.where(steady, period * ((microbatches - schedule.microbatches) // unit), np.nan)


def _unit(pp: int, group: int | None) -> int:
    return max(pp, group or pp)


def _warm(vpp: int, unit: int) -> int:
    """Micro-batches that a rank may begin before its first backward: with chunks all of one group, and of the next one those
    of the first chunk (Megatron-LM core/pipeline_parallel/schedules.py, the number of warm-up micro-batches)."""
    return unit if vpp == 1 else 2 * unit


def _reach(vpp: int, unit: int) -> int:
    """Micro-batches between what a rank runs forward and backward by turns: the warm-up at most, begun anywhere in a
    group."""
    return unit if vpp == 1 else 3 * unit


@lru_cache(maxsize=64)
def _compared(compiled: Compiled, warm: int, unit: int, reach: int) -> tuple[Indices, Indices]:
    """Actions of the micro-batches after the warm-up, and the same of those a group later."""
    order = np.lexsort((compiled.microbatch, compiled.stage, compiled.kind))
    number = compiled.microbatch[order]
    first, second = ((number >= begun) & (number < begun + reach) for begun in (warm, warm + unit))
    return order[first], order[second]
