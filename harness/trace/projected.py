"""The projection of a step, by the kinds of kernel that a trace knows: seconds and kernels of one rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.trace.names import KINDS
from projector.dataclass import dataclass
from projector.hardware.efficiency import of as efficiency_of
from projector.hardware.types import Cluster
from projector.kernels.protocol import KernelModel
from projector.kernels.settings import DEFAULT, Settings
from projector.layers.step import optimizer
from projector.memory.holding import placement
from projector.operators.types import Attention, Collective, Gemm, GroupedGemm, HostWork, Operator
from projector.pipeline.types import Schedule
from projector.projection import Projection, project
from projector.step.communication import Traffic
from projector.step.cycle import by_rank
from projector.step.priced import Priced, priced
from projector.step.stages import StageBlock
from projector.workload.workload import Workload

_STREAMS: dict[str, str] = {stream: kind for kind, streams in KINDS["streams"].items() for stream in streams.split()}
PASSES = ("forward", "backward", "once")
"""Work that repeats with every layer pass, forward or backward, and work that a step does once or at its ends."""

Cost = tuple[float, float, float]
"""Busy seconds, exposed seconds, kernels."""


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a step that is compared: of its forward layer passes, of its backward ones, of the work done once."""

    forward: float = 1.0
    backward: float = 1.0
    once: float = 1.0

    @property
    def whole(self) -> bool:
        return self.forward == self.backward == self.once == 1.0


@dataclass(frozen=True)
class Planned:
    """The projection of a step. ``costs``: by pass and kind, of the rank that works longest; ``model``: of its kernels;
    ``attention``: kernels of attention forward (replays among them) and backward in one step."""

    projection: Projection
    model: KernelModel
    costs: Mapping[str, Mapping[str, Cost]]
    attention: tuple[float, float]

    def of(self, share: Share) -> dict[str, Cost]:
        """Returns costs by kind in that share of the step."""
        total: dict[str, Cost] = {}
        for which in PASSES:
            part = getattr(share, which)
            for kind, cost in self.costs[which].items():
                _add_cost(total, kind, *(part * each for each in cost))
        return {kind: cost for kind, cost in total.items() if cost[0] > 0}


def planned(
    workload: Workload, cluster: Cluster, settings: Settings = DEFAULT, *, layers_only: bool = False
) -> Planned:
    """Projects the rank that works longest; ``layers_only``: among those that hold layers and nothing else, where there
    are any. Raises as :func:`projector.projection.project`."""
    projection = project(workload, cluster, settings=settings, communication=True)
    priced_step = priced(projection.resolved, cluster, efficiency_of(cluster.gpu), "simulate", settings)
    schedule = projection.timeline.compiled.schedule
    rank = _slowest_rank(priced_step, schedule, layers_only)
    kernels = priced_step.clock.kernels
    costs: dict[str, dict[str, Cost]] = {which: {} for which in PASSES}
    attention = [0.0, 0.0]
    for part in (part for stage in schedule.placement[rank] for part in priced_step.parts[stage]):
        for which, ops in (("forward", part.block.forward), ("backward", part.backward)):
            _add(costs[which if _is_layer(part) else "once"], ops, kernels, schedule.each)
            for op in ops:
                if isinstance(op, Attention) and _is_layer(part):
                    attention[op.backward] += schedule.each
    whole = by_rank(priced_step.held, placement(projection.resolved))[rank]
    _add(costs["once"], optimizer(projection.resolved, whole), kernels, 1)
    for row in projection.communication:
        # The passes in which a collective runs, and its share in each: gradients and parameters are exchanged once,
        # the rest forward and backward alike.
        for which, half in (("once", 1.0),) if row.part in ("dp_s", "pp_s") else (("forward", 0.5), ("backward", 0.5)):
            _add_cost(costs[which], _kind_of_traffic(row), half * row.seconds, half * row.exposed, half * row.count)
    return Planned(projection, priced_step.model, costs, (attention[0], attention[1]))


def _is_layer(part: StageBlock) -> bool:
    """Tells whether the part is a layer: not an end of the model, nor a prediction module with its loss."""
    return part.layers > 0 and not part.block.name.startswith("mtp")


def _slowest_rank(found: Priced, schedule: Schedule, layers_only: bool) -> int:
    times = found.times
    loads = [sum(times[v].forward.seconds + times[v].backward.seconds for v in stages) for stages in schedule.placement]
    plain = [all(_is_layer(part) for v in stages for part in found.parts[v]) for stages in schedule.placement]
    candidates = [rank for rank, only in enumerate(plain) if only] if layers_only else []
    return max(candidates or range(len(loads)), key=lambda rank: loads[rank])


def _kind_of_traffic(row: Traffic) -> str:
    """Returns a trace's name for the traffic: an exchange of tokens by its own library, or a collective of NCCL."""
    by_library = row.group in ("ep", "tp_ep") and row.algorithm in ("deepep", "hybridep")
    if by_library:
        return f"expert exchange: {'combine' if 'combine' in row.name else 'dispatch'}"
    return f"communication: {row.operation or 'wait'}"


def _add(costs: dict[str, Cost], ops: Iterable[Operator], kernels: Mapping[Operator, float], times: float) -> None:
    for op in ops:
        if not isinstance(op, Collective | HostWork):
            seconds = times * kernels[op]
            _add_cost(costs, _kind(op), seconds, seconds, times * op.launches)


def _add_cost(costs: dict[str, Cost], kind: str, busy: float, exposed: float, calls: float) -> None:
    before = costs.get(kind, (0.0, 0.0, 0.0))
    costs[kind] = (before[0] + busy, before[1] + exposed, before[2] + calls)


def _kind(op: Operator) -> str:
    if isinstance(op, Gemm):
        return "GEMM"
    if isinstance(op, GroupedGemm):
        return "grouped GEMM"
    if isinstance(op, Attention):
        return "attention" if op.flash else "softmax"
    return _STREAMS.get(getattr(op, "kind", ""), "elementwise")
