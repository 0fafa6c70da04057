"""Long schedules from short ones: once a pipeline repeats itself, more micro-batches add more of the same period.

The orders of 1F1B, its interleaved form, ZB-H1 and ZB-V are a warm-up, a group of micro-batches again and again, and a
cool-down. What an action of the repeated part waits for is at most so many micro-batches back (``reach``). So where all
actions of so many micro-batches in a row end one period after those a group before them, all that follow do, and the
cool-down is later by as many periods as groups are left out. Where they do not (one rank still falls behind another), the
whole schedule is to be evaluated.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from projector.pipeline.timeline import Timeline
from projector.pipeline.types import Compiled, Indices

Floats = NDArray[np.float64]
_GROUPED, _ONE_BY_ONE = ("1f1b", "interleaved"), ("zb_h1", "zbv")
_EQUAL = 1e-13  # of the makespan: rounding of a few thousand additions


def shorter(name: str, pp: int, vpp: int, microbatches: int, group: int | None) -> int | None:
    """Micro-batches of a schedule that shows how a longer one of this name goes on, as many groups shorter; None where it
    would not be."""
    if name not in (*_GROUPED, *_ONE_BY_ONE) or pp == 1:
        return None
    unit, warm, reach = _period(name, pp, vpp, group)
    least = warm + unit + 2 * reach  # warm-up, the micro-batches compared, cool-down
    if microbatches < least + 2 * unit:
        return None
    return least + microbatches % unit


def later(timeline: Timeline, microbatches: Indices, group: int | None) -> Floats:
    """``[batch]``: seconds by which schedules of so many ``microbatches`` end after the one of ``timeline``, as
    :func:`shorter` cut it; NaN where it does not repeat itself."""
    compiled = timeline.compiled
    schedule = compiled.schedule
    unit, warm, reach = _period(schedule.name, schedule.pp, schedule.vpp, group)
    first, second = _compared(compiled, warm, unit, reach)
    end = np.atleast_2d(timeline.end)
    apart = end[:, second] - end[:, first]
    period = apart.mean(axis=1)
    steady = np.abs(apart - period[:, None]).max(axis=1) <= _EQUAL * end.max(axis=1)
    return np.where(steady, period * ((microbatches - schedule.microbatches) // unit), np.nan)


def _period(name: str, pp: int, vpp: int, group: int | None) -> tuple[int, int, int]:
    """Micro-batches of a group; those until a pipeline is likely to repeat itself, and no fewer than a rank may begin before
    its first backward; those between what a rank runs forward and backward by turns.

    With chunks the warm-up is all of one group, and of the next one those of the first chunk (Megatron-LM
    core/pipeline_parallel/schedules.py, the number of warm-up micro-batches), and turns begin anywhere in a group. Orders
    of zero bubble repeat with every micro-batch; the first rank is up to ``2·pp − 1`` ahead of its weight gradients, and
    uneven stages take about as long again to settle.
    """
    if name in _ONE_BY_ONE:
        return 1, 4 * pp, 2 * pp
    unit = max(pp, group or pp)
    return (unit, unit, unit) if vpp == 1 else (unit, 2 * unit, 3 * unit)


@lru_cache(maxsize=64)
def _compared(compiled: Compiled, warm: int, unit: int, reach: int) -> tuple[Indices, Indices]:
    """Actions of the micro-batches after the warm-up, and the same of those a group later."""
    order = np.lexsort((compiled.microbatch, compiled.stage, compiled.kind))
    number = compiled.microbatch[order]
    first, second = ((number >= begun) & (number < begun + reach) for begun in (warm, warm + unit))
    return order[first], order[second]
