"""A step in which one pipeline rank computes slowly, or one kind of link carries less.

The spread of healthy chips is in every projection (:mod:`projector.step.slowest_chip`); this is a fault: a throttled GPU, a
link at half of its lanes. The order of the schedule stays as it was made, since nobody plans for faults. Other
simulators have one factor for a whole step instead, by the number of nodes (SimuMax: ``enable_straggler_model``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from projector.dataclass import dataclass
from projector.errors import InputError, Problem, nearest
from projector.frameworks import Resolved
from projector.hardware.efficiency import of as efficiency_of
from projector.hardware.types import Cluster
from projector.kernels.protocol import ComputeOp, KernelModel, Times
from projector.kernels.settings import Settings
from projector.step.cycle import cycle
from projector.step.priced import Priced, priced
from projector.step.run import Step, run_step
from projector.workload.workload import Workload

#: Kinds of links, as the fields of :class:`Cluster` are named.
LINKS = ("intra", "inter", "outer")


@dataclass(frozen=True, kw_only=True)
class Stragglers:
    """What is slow. ``ranks``: how many times as long each kernel takes, by pipeline rank; ``links``: how many times as
    long a byte takes, by word of :data:`LINKS`. Factors are 1 or more."""

    ranks: Mapping[int, float] = field(default_factory=dict)
    links: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Slowed:
    """A kernel model whose kernels take ``factor`` times as long as those of ``model``."""

    model: KernelModel
    factor: float

    @property
    def name(self) -> str:
        return self.model.name

    def times(self, ops: Sequence[ComputeOp]) -> Times:
        usual = self.model.times(ops)
        return Times(usual.seconds * self.factor, usual.measured)


def check(slow: Stragglers, workload: Workload, cluster: Cluster) -> None:
    """Raises :class:`InputError` with every rank and link that the run does not have."""
    pp, links = workload.recipe.pp, tuple(name for name in LINKS if getattr(cluster, name) is not None)
    wrong = [Problem("--slow-rank", "", rank, f"a pipeline rank, 0 to {pp - 1}") for rank in slow.ranks if rank >= pp]
    wrong += [Problem("--slow-link", "", name, nearest(name, links)) for name in slow.links if name not in links]
    if wrong:
        raise InputError(wrong)


def with_stragglers(
    resolved: Resolved, cluster: Cluster, mode: str, settings: Settings, slow: Stragglers
) -> tuple[Step, Step]:
    """Returns the step as it is, and as it is with what is ``slow``. Raises as :func:`check` does."""
    check(slow, resolved.workload, cluster)
    efficiency = efficiency_of(cluster.gpu)

    def priced_on(cluster: Cluster, factor: float = 1.0) -> Priced:
        corrected = (lambda model: _Slowed(model, factor)) if factor != 1.0 else None
        return priced(resolved, cluster, efficiency, mode, settings, corrected)

    usual = priced_on(cluster)
    before = run_step(cycle(resolved, usual.times, usual.held, usual.clock), usual.times).waiting(usual.idle)
    links = {name: getattr(cluster, name) for name in slow.links}
    slow_cluster = replace(
        cluster, **{name: replace(link, bandwidth=link.bandwidth / slow.links[name]) for name, link in links.items()}
    )
    others = priced_on(slow_cluster)
    slowed = {rank: priced_on(slow_cluster, factor) for rank, factor in slow.ranks.items()}
    compiled = before.timeline.compiled
    times = list(others.times)
    for rank, one in slowed.items():
        for stage in compiled.schedule.placement[rank]:
            times[stage] = one.times[stage]
    clocks = {rank: one.clock for rank, one in slowed.items()}
    after = run_step(cycle(resolved, times, others.held, others.clock, clocks, compiled), times)
    return before, after.waiting(max(others.idle, *(one.idle for one in slowed.values())) if slowed else others.idle)
