"""Benchmark mode where the run was trained on this machine: its layers, timed live on the same devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness.contracts.results import RunFacts
from harness.contracts.runs import MeasuredRun, Prediction
from harness.predictors.ours import cluster_of, prediction_of
from harness.predictors.protocol import Predictor, gpu_levels
from harness.predictors.refusal import guarded

if TYPE_CHECKING:
    from projector.projection import Projection
    from projector.workload.workload import Workload

__all__ = ["Here", "Live"]

_BUDGET = 0.5  # seconds for each thing that is timed: a suite has many, and their medians are of dozens of samples


@dataclass(frozen=True, kw_only=True)
class Here:
    """Where a run was trained: ``cluster``, a file; ``device`` as torch names its kind, ``threads`` of each of its
    processes (CPU); ``artifact``: the timings of its layers, made where they are not there; ``most``: processes for that."""

    cluster: str
    device: str
    threads: int
    artifact: Path
    most: int | None = None

    def spread(self) -> float:
        """Of the timed steps: their interquartile range over the median. Raises as ``artifact.read``."""
        from projector.benchmark import artifact

        return artifact.timings_of(self.artifact, artifact.read(self.artifact)).step.spread

    def project(self, workload: Workload) -> Projection:
        """One step of ``workload`` from times taken here. Raises what ``measured.project`` raises."""
        from projector.benchmark import measured
        from projector.benchmark.device import open_device

        self.artifact.parent.mkdir(parents=True, exist_ok=True)
        device = open_device(self.device, self.threads if self.device == "cpu" else None)
        cluster = cluster_of(self.cluster, "", None)
        own = "torch"  # the trainer's layers, whatever is installed
        return measured.project(workload, cluster, device, self.artifact, layers=own, budget=_BUDGET, most=self.most)


@dataclass(frozen=True)
class Live:
    """``projector.benchmark.measured.project`` for runs of ``here``, by run id; every other run is left to ``recorded``."""

    recorded: Predictor
    here: Mapping[str, Here] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.recorded.name

    def predict(self, run: MeasuredRun) -> Prediction:
        place = self.here.get(run.id)
        if place is None:
            return self.recorded.predict(run)
        cluster = cluster_of(place.cluster, "", None)
        return guarded(run, lambda: prediction_of(place.project(run.workload), run, cluster))

    def levels(self, run: MeasuredRun, facts: RunFacts) -> tuple[str, ...]:
        return gpu_levels(run, facts)
