"""Figures of the whole job that users of other projections look for."""

from __future__ import annotations

import math

from projector.cli.inputs import Case
from projector.projection import Projection


def tokens_per_second(made: Projection) -> float:
    """Returns the tokens/s of all GPUs together."""
    return made.tgs * made.resolved.workload.gpus


def most_hosts(case: Case, made: Projection) -> int:
    """Hosts up to which data parallelism has a micro-batch for each of its ranks: beyond, another one has nothing to do."""
    recipe = made.resolved.workload.recipe
    replicas = recipe.global_batch_size // recipe.micro_batch_size
    return max(1, replicas * recipe.replica_ranks // case.cluster.gpus_per_host)


def dp_scaling(case: Case, made: Projection) -> tuple[int, float]:
    """(data-parallel ranks on the fewest hosts that hold the parallel groups, how many times as many the job has): the
    "DP scaling factor" of Primus (AMD-AGI/Primus primus/core/projection/performance_projection: context parallelism
    counts as part of expert parallelism where there are experts)."""
    work = made.resolved.workload
    recipe, host = work.recipe, case.cluster.gpus_per_host
    groups = recipe.tp * recipe.tp2 * recipe.pp * max(recipe.cp, recipe.etp * recipe.ep if work.model.moe else 1)
    least = math.ceil(groups / host) * host
    ranks = max(1, least // recipe.replica_ranks)
    return ranks, work.dp / ranks
