"""The shares of :mod:`harness.kernels.unmeasured` over the runs of suites, by suite and GPU."""

from __future__ import annotations

from collections.abc import Sequence

from harness.contracts.runs import MeasuredRun
from harness.evidence.suite import Suite
from harness.kernels.unmeasured import Share, SuiteShare, share
from harness.predictors.ours import cluster_of
from projector.projection import project


def shares(suites: Sequence[Suite]) -> list[SuiteShare]:
    """One entry a suite and GPU, in order of both. A run that cannot be projected has no step to share."""
    made: list[SuiteShare] = []
    known: dict[str, Share | None] = {}
    for suite in suites:
        gpus: dict[str, list[Share]] = {}
        for run in suite.runs:
            if run.id not in known:
                known[run.id] = _of_run(run)
            found = known[run.id]
            if found is not None:
                gpus.setdefault(run.gpu, []).append(found)
        made += [_mean(suite.name, gpu, gpus[gpu]) for gpu in sorted(gpus)]
    return made


def _of_run(run: MeasuredRun) -> Share | None:
    try:
        cluster = cluster_of(run.cluster, run.gpu, run.gpus_per_node)
        return share(project(run.workload, cluster, published=run.measured.exists), cluster)
    except ValueError:  # an incomplete configuration, one that cannot run, or one that no model covers
        return None


def _mean(suite: str, gpu: str, found: Sequence[Share]) -> SuiteShare:
    count = len(found)
    kinds = sorted({kind for each in found for kind in each.by_kind})
    return SuiteShare(
        suite=suite,
        gpu=gpu,
        runs=count,
        measured=sum(each.measured for each in found) / count,
        unmeasured=sum(each.unmeasured for each in found) / count,
        by_kind={kind: sum(each.by_kind.get(kind, 0.0) for each in found) / count for kind in kinds},
    )
