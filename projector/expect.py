"""From projections to what to expect of them: ``expect(projection, cluster)``, with runs of one's own where there are some."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from projector import posterior, reference_law
from projector.frameworks.flops import flops_per_token
from projector.posterior import Expectation, Facts, Posterior, Run

if TYPE_CHECKING:
    from projector.hardware.types import Cluster
    from projector.projection import Projection
    from projector.workload.workload import Workload

#: The kind of each assumed entry, by the words it begins with; what none matches is of the software.
_KINDS = (
    ("size", re.compile(r"(?:dense layers|num_layers|seq_length|(?:global|micro)_batch_size|documents)\b")),
    ("recompute", re.compile(r"recompute")),
    ("layout", re.compile(r"(?:tp|pp|vpp|ep|cp|etp|data_parallel_sharding)\b")),
)


def expect(made: Projection, cluster: Cluster, runs: Sequence[Run] = (), known: Posterior | None = None) -> Expectation:
    """The step to expect of a projection on ``cluster``, given measured ``runs`` of one's own beside what the package carries."""
    known = (known or posterior.load()).given(runs)
    return known.expect(facts_of_projection(made, cluster, known))


def facts_of_projection(made: Projection, cluster: Cluster, known: Posterior, source: str = "own") -> Facts:
    """What the posterior sees of a projection."""
    workload = made.resolved.workload
    return facts_of(workload, cluster, made.step_seconds, made.breakdown, made.assumed, known.law, source=source)


def facts_of(
    workload: Workload,
    cluster: Cluster,
    step_seconds: float,
    breakdown: Mapping[str, float],
    assumed: Collection[str],
    law: Mapping[str, float],
    *,
    unread: Collection[str] = (),
    source: str = "own",
) -> Facts:
    """What the posterior sees of any projection of ``workload``. ``breakdown``: exposed seconds by part, empty where there is none;
    ``law``: coefficients of :mod:`projector.reference_law`; ``unread``: words of the input that nobody understood."""
    return Facts(
        step_seconds=step_seconds,
        shares=posterior.shares(breakdown, crossing=crossing(workload, cluster.gpus_per_node)),
        gpu=cluster.gpu.name,
        framework=workload.framework,
        family=workload.model.family,
        model=workload.model.name,
        source=source,
        assumed=frozenset(kinds(assumed)) | (frozenset({"unread"}) if unread else frozenset()),
        law=_law(workload, cluster, step_seconds, law),
    )


def crossing(workload: Workload, domain: int) -> frozenset[str]:
    """Which exchanges, ``ep`` and ``dp``, leave the ``domain`` of GPUs that a fast fabric joins. Ranks of tensor and expert parallelism
    are neighbours; those of data parallelism are the farthest apart."""
    recipe = workload.recipe
    experts = recipe.ep * (recipe.etp or 1)
    return frozenset(name for name, wide in (("ep", experts), ("dp", workload.gpus)) if wide > domain)


def kinds(assumed: Collection[str]) -> set[str]:
    """The :data:`projector.posterior.ASSUMPTIONS` among assumed entries such as ``micro_batch_size=1 (not stated)``."""
    return {next((kind for kind, words in _KINDS if words.match(entry)), "software") for entry in assumed}


def _law(workload: Workload, cluster: Cluster, step_seconds: float, coefficients: Mapping[str, float]) -> float:
    if not coefficients:
        return 0.0
    flops = flops_per_token(workload, "megatron-2026-05") * workload.tokens_per_step
    return reference_law.excess(
        reference_law.log_step(coefficients, workload, cluster.gpu, flops), math.log(step_seconds)
    )
