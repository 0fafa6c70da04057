"""Projects every schedule of a configuration, or says why one is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from projector import pipeline
from projector.cli.changes import stated_chunks
from projector.cli.inputs import Case
from projector.dataclass import dataclass
from projector.errors import InputError, Unsupported
from projector.pipeline import Timeline
from projector.projection import Projection, project
from projector.settle import launch
from projector.workload.workload import Workload

_MOST_CHUNKS = 4
"""Chunks a rank up to which schedules for any number of them are tried where the file asks for one: from there on a
bubble shrinks by less than messages grow (published comparisons stop at vpp 4: primus_pipeline.md of AMD-AGI/Primus)."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One schedule with ``vpp`` chunks a rank: its ``projection``, or the ``reason`` why there is none."""

    schedule: str
    vpp: int
    projection: Projection | None = None
    reason: str = ""

    @property
    def fits(self) -> bool:
        return self.projection is not None and self.projection.memory.fits

    @property
    def runs(self) -> bool | None:
        """Returns whether the framework of the job runs this schedule; None where there is no projection."""
        if self.projection is None:
            return None
        return self.schedule in launch.schedules_of(self.projection.resolved.workload.framework)

    @property
    def order(self) -> tuple[bool, int, float]:
        """Returns the sort key: what the framework runs comes first, then what fits, then the shorter step."""
        if self.projection is None:
            return True, 2, float("inf")
        return not self.runs, self.projection.memory.order, self.projection.step_seconds


def alive(timeline: Timeline) -> NDArray[np.float64]:
    """Returns the most chunks alive at once on each rank, ``[pp]``."""
    return pipeline.peak(timeline.compiled, 1.0)


def compare(case: Case, projected: Callable[[Case], Projection] | None = None) -> tuple[Row, ...]:
    """Returns all registered schedules, and those beside them that the framework of ``case`` runs, by
    :attr:`Row.order`: schedules for one or two chunks with that many, the others with as many as the file says, or with
    two to four where the file says one. ``projected`` projects a case (default: by simulation)."""
    rows = (_row(case, name, vpp, projected or _simulated) for name, vpp in _candidates(case.workload))
    return tuple(sorted(rows, key=lambda row: row.order))


def single(case: Case) -> Row:
    """Returns the schedule that the file or a flag asks for. Raises as :func:`project` does."""
    projection = _simulated(case)
    schedule = projection.timeline.compiled.schedule
    return Row(schedule=schedule.name, vpp=schedule.vpp, projection=projection)


def best(rows: tuple[Row, ...]) -> Row | None:
    """Returns the first row by :attr:`Row.order` that has a projection, or None."""
    return min((row for row in rows if row.projection is not None), key=lambda row: row.order, default=None)


def _simulated(case: Case) -> Projection:
    return project(case.workload, case.cluster, settings=case.settings)


def _candidates(workload: Workload) -> Iterator[tuple[str, int]]:
    recipe, stated = workload.recipe, stated_chunks(workload.recipe)
    for name in dict.fromkeys((*pipeline.names(), *launch.schedules_of(workload.framework))):
        generator = pipeline.generator(name)
        if generator.chunks is not None:
            yield name, generator.chunks
        elif stated > 1 or recipe.pp == 1:
            yield name, stated
        else:
            unit = generator.multiples.get("vpp", 1)
            yield from ((name, vpp) for vpp in range(max(2, unit), _MOST_CHUNKS + 1, unit))


def _row(case: Case, name: str, vpp: int, projected: Callable[[Case], Projection]) -> Row:
    recipe = case.workload.recipe
    if recipe.pipeline_model_parallel_layout is not None and vpp != (stated := stated_chunks(recipe)):
        return Row(schedule=name, vpp=vpp, reason=f"pipeline_model_parallel_layout makes {stated} chunks a rank")
    if pipeline.choose(name, recipe.pp, vpp) != name:
        return Row(schedule=name, vpp=vpp, reason="no pipeline: pp = 1")
    try:
        return Row(schedule=name, vpp=vpp, projection=projected(with_schedule(case, name, vpp)))
    except InputError as error:
        return Row(schedule=name, vpp=vpp, reason="; ".join(str(each).removeprefix(": ") for each in error.problems))
    except Unsupported as error:
        return Row(schedule=name, vpp=vpp, reason=str(error))


def with_schedule(case: Case, name: str, vpp: int) -> Case:
    """Returns ``case`` run by another pipeline schedule, with ``vpp`` chunks a rank."""
    recipe = replace(case.workload.recipe, pipeline_schedule=name, vpp=vpp)
    return replace(case, workload=replace(case.workload, recipe=recipe))
