"""Two sets of laws on one space: what the optimum of each costs under the other.

The space is that of transformer-perf-estimates (its degrees, micro-batches, panels and placements); each of its
configurations is projected by us as the same recipe on the same cluster, with no recompute, 1F1B, a sharded optimizer and
its overlaps. What does not fit in memory by the laws that choose is not chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from harness.predictors.tpe import Config, Placed, candidates, estimate
from harness.predictors.tpe.predictor import shape, system
from projector.collectives.placement import ranks_per_node
from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.hardware.types import Cluster
from projector.many import project_many
from projector.projection import project
from projector.workload.fast_domain import written
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

_ALGORITHMS = {"1d": "1d", "2d": "summa", "2d-seqp": "2d_sequence"}


@dataclass(frozen=True)
class Choice:
    """One configuration under both laws, seconds a step; ``fits``: in memory by its laws and by ours."""

    config: Config
    placed: Placed
    its: float
    ours: float
    fits: tuple[bool, bool]


@dataclass(frozen=True)
class Compared:
    """``its``, ``ours``: the fastest that fits by its laws and by ours; None where nothing does. ``domain``: ranks of the
    run in each fast domain; ``tried``: configurations, ``fitting``: how many of them fit by each."""

    strategy: str
    domain: int
    tried: int
    fitting: tuple[int, int]
    its: Choice | None
    ours: Choice | None

    @property
    def regret_of_ours(self) -> float:
        """How much slower our optimum is than its own, by its laws."""
        return self.ours.its / self.its.its - 1 if self.ours and self.its else math.nan

    @property
    def regret_of_its(self) -> float:
        """How much slower its optimum is than ours, by our laws."""
        return self.its.ours / self.ours.ours - 1 if self.ours and self.its else math.nan


def in_domains(cluster: Cluster, domains: Sequence[int]) -> tuple[Cluster, ...]:
    """The cluster with fast domains of these sizes. Raises :class:`InputError` for one below 1."""
    wrong = [Problem("command line", "--domains", size, "1 or more GPUs") for size in domains if size < 1]
    if wrong:
        raise InputError(wrong)
    return tuple(
        replace(
            cluster,
            gpus_per_node=size,
            gpus_per_host=min(size, cluster.gpus_per_host),
            intra=replace(cluster.intra, size=size),
            inter=replace(cluster.inter, nics_per_node=size if cluster.inter.nics_per_node else None),
        )
        for size in domains
    )


def compared(strategy: str, base: Workload, cluster: Cluster) -> Compared:
    """Raises :class:`InputError` for a model that its laws have no words for, or an empty space."""
    model = base.model
    plain = model.num_query_groups == model.num_attention_heads and not (model.moe or model.mla)
    if not plain or model.kv_channels * model.num_attention_heads != model.hidden_size:
        expected = "a model of equal heads and a dense MLP, all that transformer-perf-estimates knows"
        raise InputError([Problem("command line", "--model", model.name, expected)])
    domain = ranks_per_node(base.gpus, cluster)  # 64 of the 72 of a rack for a power of two
    batch, its_system, its_shape = base.recipe.global_batch_size, replace(system(cluster), domain=domain), shape(base)
    tried = _alike(strategy, model, list(candidates(strategy, its_shape, base.gpus, batch, domain)))
    if not tried:
        raise InputError([Problem("command line", "--gpus", base.gpus, f"GPUs that {strategy} can divide")])
    loads = [_workload(strategy, base, how, near) for how, near in tried]

    def its(at: int) -> tuple[float, bool]:
        said = estimate(strategy, its_shape, *tried[at], its_system, batch)
        return said.seconds, said.memory <= its_system.capacity

    def choice(at: int) -> Choice:
        made, (seconds, fits) = project(loads[at], cluster), its(at)
        return Choice(*tried[at], seconds, made.step_seconds, (fits, made.memory.fits))

    theirs = [(seconds, at) for at in range(len(tried)) for seconds, fits in [its(at)] if fits]
    many = project_many(loads, cluster, best=1)
    fitting = len(theirs), sum(status != "out-of-memory" for status in many.status)
    return Compared(
        strategy,
        domain,
        len(tried),
        fitting,
        choice(min(theirs)[1]) if theirs else None,
        choice(many.ranking[0]) if many.ranking else None,
    )


def _alike(strategy: str, model: Model, tried: list[tuple[Config, Placed]]) -> list[tuple[Config, Placed]]:
    """Those that our grid can be cut into: panels divide every side of the products."""
    if strategy != "2d":
        return tried
    sides = math.gcd(model.hidden_size, model.ffn_hidden_size)
    return [
        each
        for each in tried
        if sides % each[0].panels == 0 and each[0].panels % math.lcm(each[0].tp, each[0].tp2) == 0
    ]


def _workload(strategy: str, base: Workload, how: Config, near: Placed) -> Workload:
    sequence = strategy == "2d-seqp"
    grid = strategy == "2d" and how.tp2 > 1
    domain = {"tp": near.tp, "cp" if sequence else "tp2": near.tp2, "dp": near.dp, "pp": near.pp}
    recipe = Recipe(
        micro_batch_size=how.mbs,
        global_batch_size=base.recipe.global_batch_size,
        seq_length=base.recipe.seq_length,
        tp=how.tp,
        tp2=how.tp2 if grid else 1,
        cp=how.tp2 if sequence else 1,
        pp=how.pp,
        tensor_parallel_algorithm="1d" if strategy == "2d" and not grid else _ALGORITHMS[strategy],
        summa_panels=how.panels if grid else None,
        fast_domain=written(domain),
        sequence_parallel=how.tp > 1,
        data_parallel_sharding="optim",
        recompute_granularity="none",
    )
    return replace(base, recipe=recipe, framework="analytic")
