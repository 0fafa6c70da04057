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
    """``projector.projection.project`` in mode ``name`` (``simulate`` or ``benchmark``).

    A benchmark projection of which nothing was measured is a simulation under another name: it is refused.
    """

    name: str
    settings: Settings = DEFAULT

    def projection(self, run: MeasuredRun) -> Projection:
        """Raises as :func:`projector.projection.project`."""
        return _projected(
            as_run(run), run.cluster, run.gpu, run.gpus_per_node, self.name, self.settings, run.measured.exists
        )

    def content(self, run: MeasuredRun) -> str | None:
        """Kernels of others and constants in files of the user's are no part of the code; tables of measured kernels are
        named by what stands in them."""
        cluster = cluster_of(run.cluster, run.gpu, run.gpus_per_node)
        if self.settings.gemm_backend != BUILTIN or cluster.gpu.efficiency_file:
            return None
        m, root = run.measured, tables_dir() if self.name == "benchmark" else None
        seen = (m.exists, m.status == "ok", m.memory_kind, m.memory_rank)
        tables = digest(root / cluster.gpu.name) if root else ""
        return repr((self.name, self.settings, as_run(run), cluster, seen, tables))

    def project(self, run: MeasuredRun) -> Prediction:
        cluster = cluster_of(run.cluster, run.gpu, run.gpus_per_node)
        made = self.projection(run)
        if self.name == "benchmark" and made.measured_share <= 0.0:
            raise NoMeasurement(f"no measurement for {cluster.gpu.name} of any kernel of this run")
        return prediction_of(made, run, cluster)


def as_run(run: MeasuredRun) -> Workload:
    """The workload; of a run that did not fit nobody can conclude that it recomputed something its source leaves out."""
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
    """Runs of one table often differ in what no projection sees (environment, repetition): they share one."""
    from projector.projection import project

    cluster = cluster_of(name, gpu, gpus_per_node)
    return project(workload, cluster, mode=mode, settings=settings, published=published)


def prediction_of(made: Projection, run: MeasuredRun, cluster: Cluster) -> Prediction:
    """What a projection of ``run`` on ``cluster`` says, in the terms of the harness. Where nobody can tell, what is known to
    have run did fit."""
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
    """The named cluster, else the GPU's default one."""
    from projector.hardware import catalogue

    return catalogue.cluster(name) if name else catalogue.default_cluster(gpu, gpus_per_node)


def memory_gib(made: Projection, cluster: Cluster, measured: Measured) -> float:
    """Peak memory as the source counts it, of the rank that it is of; a source that does not say what it counts is read
    as what the allocator reserved."""
    from projector.memory.verdict import device_bytes, reserved_bytes

    plan = made.memory
    rank = None if measured.memory_rank is None else plan.ranks[min(measured.memory_rank, len(plan.ranks) - 1)]
    if measured.memory_kind == "allocated":
        return (plan.allocated if rank is None else rank.allocated) / GIB
    if measured.memory_kind == "device":
        return (plan.device if rank is None else device_bytes(made.resolved, cluster.gpu, rank.held)) / GIB
    return (plan.reserved if rank is None else reserved_bytes(made.resolved, rank.held)) / GIB


def _reason(plan: MemoryPlan, cluster: Cluster) -> str:
    """Why a run does not fit, or why nobody can tell; nothing where it does."""
    if plan.status == "too-close":
        return plan.words
    if plan.fits:
        return ""
    usable = plan.usable / GIB
    return f"needs at least {plan.required / GIB:.1f} GiB of {usable:.1f} GiB usable on {cluster.gpu.name}"
