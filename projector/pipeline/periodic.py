"""Extends short schedules to long ones: once a pipeline repeats itself, more micro-batches add more of the same period.

The orders of 1F1B, its interleaved form, ZB-H1 and ZB-V are a warm-up, a group of micro-batches again and again, and a
cool-down. Cut such a schedule between two actions of every rank, once after the warm-up and once a group later: the
actions after the one cut are those after the other, and wait for nothing before it but the actions at the cut. So where
all of these end one period later at the second cut than at the first, they do so at every cut after it, and the
cool-down is later by as many periods as groups are left out. Where they do not (one rank still falls behind another),
the whole schedule must be evaluated.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from projector.pipeline.timeline import Timeline
from projector.pipeline.types import Compiled, Indices
from projector.size import Floats

_GROUPED, _ONE_BY_ONE = ("1f1b", "interleaved"), ("zb_h1", "zbv")
_EQUAL = 1e-13  # share of the makespan: rounding of a few thousand additions


def shorter(name: str, pp: int, vpp: int, microbatches: int, group: int | None) -> int | None:
    """Returns the micro-batches of a shorter schedule that shows how a longer one of this name goes on; None where
    there is none."""
    if name not in (*_GROUPED, *_ONE_BY_ONE) or pp == 1:
        return None
    unit, least = _period(name, pp, vpp, group)
    return least + microbatches % unit if microbatches >= least + 2 * unit else None


def later(timeline: Timeline, microbatches: Indices, group: int | None) -> Floats:
    """Returns ``[batch]``: seconds by which schedules of ``microbatches`` end after the one of ``timeline``, which
    :func:`shorter` cut; NaN where it does not repeat itself."""
    schedule = timeline.compiled.schedule
    unit, _ = _period(schedule.name, schedule.pp, schedule.vpp, group)
    cuts = _cuts(timeline.compiled, unit)
    if cuts is None:
        return np.full(len(microbatches), np.nan)
    first, second = cuts
    end = np.atleast_2d(timeline.end).T
    apart = end[second] - end[first]
    period = apart.mean(axis=0)
    steady = np.abs(apart - period).max(axis=0) <= _EQUAL * timeline.makespan
    return np.where(steady, period * ((microbatches - schedule.microbatches) // unit), np.nan)


def _period(name: str, pp: int, vpp: int, group: int | None) -> tuple[int, int]:
    """Returns the micro-batches of a group, and those after which a schedule is likely to repeat itself.

    Without chunks orders repeat with every micro-batch. The first rank is up to ``pp`` of them ahead of its backwards,
    of zero bubble ``2·pp − 1`` ahead of its weight gradients; uneven stages take about as long again to settle. With
    chunks the warm-up is all of one group, and of the next one those of the first chunk (Megatron-LM
    core/pipeline_parallel/schedules.py, the number of warm-up micro-batches).
    """
    if vpp == 1 or name in _ONE_BY_ONE:
        return 1, (6 if name in _ONE_BY_ONE else 3) * pp
    unit = max(pp, group or pp)
    return unit, 4 * unit


def _cuts(compiled: Compiled, unit: int) -> tuple[Indices, Indices] | None:
    """Returns the actions before a cut whose ends others wait for beyond it, for two cuts ``unit`` micro-batches apart:
    the later one is the last at which no chunk has done all its forwards. None where one cut is not the other's image,
    or a rank is still in its warm-up at the earlier one."""
    place = np.full((3, compiled.stages, compiled.schedule.microbatches + unit), compiled.size, np.intp)
    place[compiled.kind, compiled.stage, compiled.microbatch] = np.arange(compiled.size)
    image = place[compiled.kind, compiled.stage, compiled.microbatch + unit]
    level = np.repeat(np.arange(len(compiled.levels) - 1), np.diff(compiled.levels))
    inside = np.append(level < level[compiled.last_of[0]].min(), False)
    early = inside[image]
    first, second = _awaited(compiled, early), _awaited(compiled, inside[:-1])
    if not (np.array_equal(np.sort(image[first]), second) and early[place[1, :, 0]].all()):
        return None
    return first, image[first]


def _awaited(compiled: Compiled, inside: NDArray[np.bool_]) -> Indices:
    """Returns the actions ``inside`` that an action outside comes directly after or takes its input from."""
    awaited = np.zeros_like(inside)
    for each in (compiled.before, compiled.source):
        awaited[each[(each >= 0) & ~inside]] = True
    return np.flatnonzero(awaited & inside)
