"""Chooses the measurement to make first: the smallest run whose result would narrow what is expected of the best layouts."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from projector.dataclass import dataclass
from projector.effects import Facts
from projector.errors import InputError, Unsupported
from projector.expectation import Knowledge
from projector.hardware.types import Cluster
from projector.kernels.settings import Settings
from projector.parameter import parameter
from projector.posterior import Run
from projector.projection import Projection, project
from projector.search.found import Best
from projector.workload.workload import Workload

_NEARLY = parameter(
    0.9,
    kind="assumed",
    source="share of what a run on all GPUs would narrow, from which a smaller one will do: convention",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRun:
    """A run of the winner's layout on ``gpus`` GPUs. ``before``, ``after``: mean half width in ln of the interval of
    the shown layouts, without the run and with it; ``whole``: with a run on all GPUs."""

    gpus: int
    before: float
    after: float
    whole: float


def first_run(
    best: Sequence[Best], cluster: Cluster, known: Knowledge, assumed: Collection[str], settings: Settings
) -> FirstRun:
    """Returns the smallest run of the winner's layout, by halved replicas, that narrows nearly as much as the whole one.

    A step as far off as runs usually are stands in for the measurement: the width depends on nothing else.
    """
    shown = [known.facts(each.projection, assumed) for each in best]
    before = _width(known, shown)
    sizes: list[tuple[int, float]] = []
    for projection in _smaller(best[0].workload, cluster, settings):
        facts = known.facts(projection, assumed)
        usual = math.sqrt(known.posterior.log_ratio(facts)[1])
        run = Run(facts=facts, measured_seconds=known.of(facts).middle * math.exp(usual))
        sizes.append((projection.resolved.workload.gpus, _width(replace(known, runs=(*known.runs, run)), shown)))
    whole = sizes[0][1]
    gpus, after = next((each for each in reversed(sizes) if before - each[1] >= _NEARLY * (before - whole)), sizes[0])
    return FirstRun(gpus=gpus, before=before, after=after, whole=whole)


def _width(known: Knowledge, shown: Sequence[Facts]) -> float:
    return fmean(known.of(facts).half_width for facts in shown)


def _smaller(workload: Workload, cluster: Cluster, settings: Settings) -> Iterator[Projection]:
    """Yields the projection of the workload, then on half the GPUs with half the batch, and so on while that is valid."""
    while True:
        try:
            yield project(workload, cluster, settings=settings)
        except (InputError, Unsupported):
            return
        gpus, batch = workload.gpus, workload.recipe.global_batch_size
        if gpus % 2 or batch % 2 or gpus <= cluster.gpus_per_host:
            return
        workload = replace(workload, gpus=gpus // 2, recipe=replace(workload.recipe, global_batch_size=batch // 2))
