"""Benchmark mode for runs that were trained on this machine: their layers are timed live on the same devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.contracts.runs import MeasuredRun, Prediction
from harness.predictors.ours import cluster_of, prediction_of
from harness.predictors.protocol import Predictor, guarded
from projector.dataclass import dataclass

if TYPE_CHECKING:
    from projector.benchmark.device import Device
    from projector.benchmark.timings import Asked
    from projector.hardware.types import Cluster
    from projector.projection import Projection
    from projector.workload.workload import Workload

_LAYERS = "torch"  # the trainer's layers, whatever is installed
_BUDGET = 0.5  # seconds for each timed layer: a suite has many, and their medians are of dozens of samples


@dataclass(frozen=True, kw_only=True)
class Here:
    """Where a run was trained: ``cluster``, a file; ``device`` as torch names its kind, ``threads`` of each of its
    processes (CPU); ``artifact``: the timings of its layers, made where they are not there; ``most``: the most processes
    for timing."""

    cluster: str
    device: str
    threads: int
    artifact: Path
    most: int | None = None

    def project(self, workload: Workload) -> Projection:
        """Projects one step of ``workload`` from times taken on this machine. Raises as ``measured.project``."""
        from projector.benchmark import measured

        self.artifact.parent.mkdir(parents=True, exist_ok=True)
        return measured.project(
            workload, self._cluster, self._device, self.artifact, layers=_LAYERS, budget=_BUDGET, most=self.most
        )

    def planned(self, workload: Workload) -> tuple[Asked, tuple[str, ...]]:
        """Returns the timings that ``workload`` needs, and notes; raises as ``measured.planned``."""
        from projector.benchmark import measured

        return measured.planned(workload, self._cluster, self._device, layers=_LAYERS, budget=_BUDGET, most=self.most)

    def keep(self, planned: tuple[Asked, tuple[str, ...]], found: Mapping[str, Any]) -> None:
        """Writes timings into ``artifact``."""
        from projector.benchmark import measured

        self.artifact.parent.mkdir(parents=True, exist_ok=True)
        measured.keep(found, *planned, self._device, self.artifact)

    @property
    def _device(self) -> Device:
        from projector.benchmark.device import open_device

        return open_device(self.device, self.threads if self.device == "cpu" else None)

    @property
    def _cluster(self) -> Cluster:
        return cluster_of(self.cluster, "", None)


@dataclass(frozen=True)
class Live:
    """Predicts runs of ``here``, by run id, by ``projector.benchmark.measured.project``, and others by ``recorded``."""

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
