"""Our projector in one of its modes, as a predictor."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from harness.predictors.protocol import gpu_levels
from harness.results import RunFacts
from harness.runs import MeasuredRun, Prediction
from projector.errors import InputError, NoMeasurement, Unsupported

if TYPE_CHECKING:
    from projector.hardware.types import Cluster
    from projector.memory.plan import MemoryPlan

__all__ = ["Ours", "cluster_of", "refused"]

GIB = 2.0**30


@dataclass(frozen=True)
class Ours:
    """``projector.projection.project`` in mode ``name`` (``simulate`` or ``benchmark``)."""

    name: str

    def predict(self, run: MeasuredRun) -> Prediction:
        start = time.perf_counter()
        refusal = refused(run)
        if refusal is not None:
            return refusal
        try:
            return self._project(run, start)
        except NoMeasurement as none:
            return Prediction(status="no-measurement", reason=str(none))
        except Unsupported as unsupported:
            return Prediction(status="unsupported", reason=str(unsupported))
        except InputError as wrong:
            return Prediction(status="invalid", reason="; ".join(str(p) for p in wrong.problems))

    def _project(self, run: MeasuredRun, start: float) -> Prediction:
        from projector.projection import project

        cluster = cluster_of(run.cluster, run.gpu, run.gpus_per_node)
        made = project(run.workload, cluster, mode=self.name)
        fits = made.memory is None or made.memory.fits
        return Prediction(
            status="ok" if fits else "out-of-memory",
            reason="" if fits else _overflow(made.memory, cluster),
            step_seconds=made.step_seconds,
            memory_gib=_memory_gib(made.memory, run.measured.memory_kind),
            measured_share=made.measured_share,
            breakdown=dict(made.breakdown),
            assumed=tuple(made.assumed),
            seconds_to_project=time.perf_counter() - start,
        )

    def levels(self, run: MeasuredRun, facts: RunFacts) -> tuple[str, ...]:
        return gpu_levels(run, facts)


def refused(run: MeasuredRun) -> Prediction | None:
    """The refusal of a run that no predictor can be asked about: an incomplete source, or one outside the models."""
    if run.model is None or run.recipe is None:
        return Prediction(status="invalid", reason=run.problem or "configuration incomplete in the source")
    if run.problem:
        return Prediction(status="unsupported", reason=run.problem)
    if run.model.unsupported:
        return Prediction(status="unsupported", reason="; ".join(run.model.unsupported))
    return None


@cache
def cluster_of(name: str | None, gpu: str, gpus_per_node: int | None) -> Cluster:
    """The named cluster, else the GPU's default one."""
    from projector.hardware import catalogue

    return catalogue.cluster(name) if name else catalogue.default_cluster(gpu, gpus_per_node)


def _memory_gib(plan: MemoryPlan | None, kind: str | None) -> float | None:
    """Peak memory as the source counts it; a source that does not say is read as what the allocator reserved."""
    if plan is None:
        return None
    return float(getattr(plan, kind or "reserved")) / GIB


def _overflow(plan: MemoryPlan, cluster: Cluster) -> str:
    usable = cluster.gpu.usable_memory_bytes / GIB
    return f"needs {plan.device / GIB:.1f} GiB of {usable:.1f} GiB usable on {cluster.gpu.name}"
