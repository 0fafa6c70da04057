"""A step of which one pipeline rank computes slowly, or one kind of link carries less.

What is slow by nature is in every projection (:mod:`projector.step.slowest`); this is what is broken: a throttled GPU, a
link at half of its lanes. The order of the schedule stays as it was made, since nobody plans for what breaks. Other
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

#: Links by the name of their field of :class:`Cluster`.
LINKS = ("intra", "inter", "outer")


@dataclass(frozen=True, kw_only=True)
class Slow:
    """``ranks``: by pipeline rank how many times as long each of its kernels takes; ``links``: by word of :data:`LINKS` how
    many times as long a byte takes. Factors are 1 or more."""

    ranks: Mapping[int, float] = field(default_factory=dict)
    links: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Slowed:
    """Another kernel model, its kernels ``factor`` times as long."""

    model: KernelModel
    factor: float

    @property
    def name(self) -> str:
        return self.model.name

    def times(self, ops: Sequence[ComputeOp]) -> Times:
        found = self.model.times(ops)
        return Times(found.seconds * self.factor, found.measured)


def check(slow: Slow, workload: Workload, cluster: Cluster) -> None:
    """Raises :class:`InputError` with every rank and link that the run has not."""
    pp, own = workload.recipe.pp, tuple(name for name in LINKS if getattr(cluster, name) is not None)
    wrong = [Problem("--slow-rank", "", rank, f"a pipeline rank, 0 to {pp - 1}") for rank in slow.ranks if rank >= pp]
    wrong += [Problem("--slow-link", "", name, nearest(name, own)) for name in slow.links if name not in own]
    if wrong:
        raise InputError(wrong)


def disturbed(resolved: Resolved, cluster: Cluster, mode: str, settings: Settings, slow: Slow) -> tuple[Step, Step]:
    """The step as it is, and with what is ``slow``. Raises as :func:`check`."""
    check(slow, resolved.workload, cluster)
    efficiency = efficiency_of(cluster.gpu)

    def on(cluster: Cluster, factor: float = 1.0) -> Priced:
        corrected = (lambda model: _Slowed(model, factor)) if factor != 1.0 else None
        return priced(resolved, cluster, efficiency, mode, settings, corrected)

    usual = on(cluster)
    before = run_step(cycle(resolved, usual.times, usual.held, usual.clock), usual.times).waiting(usual.idle)
    wires = {name: getattr(cluster, name) for name in slow.links}
    worse = replace(
        cluster, **{name: replace(w, bandwidth=w.bandwidth / slow.links[name]) for name, w in wires.items()}
    )
    rest = on(worse)
    own = {rank: on(worse, factor) for rank, factor in slow.ranks.items()}
    compiled = before.timeline.compiled
    times = list(rest.times)
    for rank, each in own.items():
        for stage in compiled.schedule.placement[rank]:
            times[stage] = each.times[stage]
    clocks = {rank: each.clock for rank, each in own.items()}
    after = run_step(cycle(resolved, times, rest.held, rest.clock, clocks, compiled), times)
    return before, after.waiting(max(rest.idle, *(each.idle for each in own.values())) if own else rest.idle)
