"""Our projector in one of its modes, as a predictor."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from harness.contracts.runs import Measured, MeasuredRun, Prediction
from harness.predictors.protocol import Remembering
from projector.dataclass import dataclass
from projector.errors import NoMeasurement
from projector.kernels.backends import BUILTIN
from projector.kernels.settings import DEFAULT, Settings
from projector.kernels.tables import digest, tables_dir

if TYPE_CHECKING:
    from projector.hardware.types import Cluster
    from projector.memory.plan import MemoryPlan
    from projector.projection import Projection
    from projector.workload.workload import Workload

GIB = 2.0**30


@dataclass(frozen=True)
class Ours(Remembering):
    """Predicts by ``projector.projection.project`` in mode ``name`` (``simulate`` or ``benchmark``). A benchmark
    projection of which nothing was measured is a simulation under another name: it is refused."""

    name: str
    settings: Settings = DEFAULT

    def projection(self, run: MeasuredRun) -> Projection:
        """Returns the projection of a run. Raises as :func:`projector.projection.project`."""
        return _projected(
            as_run(run), run.cluster, run.gpu, run.gpus_per_node, self.name, self.settings, run.measured.exists
        )

    def content(self, run: MeasuredRun) -> str | None:
        """Returns the values that a prediction depends on; None where kernels of others or the user's files of
        constants, which no value names, take part. Tables of measured kernels are named by their content."""
        cluster = cluster_of(run.cluster, run.gpu, run.gpus_per_node)
        if self.settings.gemm_backend != BUILTIN or cluster.gpu.efficiency_file:
            return None
        m, root = run.measured, tables_dir() if self.name == "benchmark" else None
        seen = (m.exists, m.status == "ok", m.memory_kind, m.memory_rank)
        tables = digest(root / cluster.gpu.name) if root else ""
        return repr((self.name, self.settings, as_run(run), cluster, seen, tables))

    def project(self, run: MeasuredRun) -> Prediction:
        cluster = cluster_of(run.cluster, run.gpu, run.gpus_per_node)
        projection = self.projection(run)
        if self.name == "benchmark" and projection.measured_share <= 0.0:
            raise NoMeasurement(f"no measurement for {cluster.gpu.name} of any kernel of this run")
        return prediction_of(projection, run, cluster)


def as_run(run: MeasuredRun) -> Workload:
    """Returns the workload. For a run that did not fit it states no recompute where the source leaves it out: nobody can
    conclude from the run that it recomputed."""
    workload = run.workload
    if run.measured.status == "ok" or workload.recipe.recompute_granularity is not None:
        return workload
    return replace(workload, recipe=replace(workload.recipe, recompute_granularity="none"))


@lru_cache(maxsize=128)
def _projected(
    workload: Workload,
    name: str | None,
    gpu: str,
    gpus_per_node: int | None,
    mode: str,
    settings: Settings,
    published: bool,
) -> Projection:
    """Projects a workload once for all runs that differ only in facts that no projection sees (environment, repetition)."""
    from projector.projection import project

    cluster = cluster_of(name, gpu, gpus_per_node)
    return project(workload, cluster, mode=mode, settings=settings, published=published)


def prediction_of(made: Projection, run: MeasuredRun, cluster: Cluster) -> Prediction:
    """Returns a projection of ``run`` on ``cluster`` in the terms of the harness. A memory verdict that is too close to
    tell counts as fitting where the run is known to have run."""
    ran = run.measured.exists and run.measured.status == "ok"
    fits = made.memory.fits or (ran and made.memory.status == "too-close")
    return Prediction(
        status="ok" if fits else "out-of-memory",
        reason=_reason(made.memory, cluster),
        step_seconds=made.step_seconds,
        memory_gib=memory_gib(made, cluster, run.measured),
        measured_share=made.measured_share,
        breakdown=dict(made.breakdown),
        assumed=(*made.assumed, *made.settings),
    )


@cache
def cluster_of(name: str | None, gpu: str, gpus_per_node: int | None) -> Cluster:
    """Returns the named cluster, else the GPU's default one."""
    from projector.hardware import catalogue

    return catalogue.cluster(name) if name else catalogue.default_cluster(gpu, gpus_per_node)


def memory_gib(made: Projection, cluster: Cluster, measured: Measured) -> float:
    """Returns peak memory in GiB as the source counts it, of the rank that the source names; a source that does not say
    what it counts is read as what the allocator reserved."""
    from projector.memory.verdict import device_bytes, reserved_bytes

    plan = made.memory
    rank = None if measured.memory_rank is None else plan.ranks[min(measured.memory_rank, len(plan.ranks) - 1)]
    if measured.memory_kind == "allocated":
        return (plan.allocated if rank is None else rank.allocated) / GIB
    if measured.memory_kind == "device":
        return (plan.device if rank is None else device_bytes(made.resolved, cluster.gpu, rank.held)) / GIB
    return (plan.reserved if rank is None else reserved_bytes(made.resolved, rank.held)) / GIB


def _reason(plan: MemoryPlan, cluster: Cluster) -> str:
    """Returns why a run does not fit, or why nobody can tell; empty where it fits."""
    if plan.status == "too-close":
        return plan.words
    if plan.fits:
        return ""
    usable = plan.usable / GIB
    return f"needs at least {plan.required / GIB:.1f} GiB of {usable:.1f} GiB usable on {cluster.gpu.name}"
