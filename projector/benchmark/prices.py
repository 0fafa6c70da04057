"""What no device here can show, priced: collectives of more ranks than are at hand, by what smaller ones took."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from projector.benchmark.timings import Asked, CollectiveWanted, Timings, wanted
from projector.collectives.model import Pricing
from projector.collectives.placement import groups
from projector.frameworks.types import Resolved
from projector.hardware import efficiency
from projector.hardware.types import Cluster, GroupShape
from projector.kernels.simulate import Simulated
from projector.operators.types import Collective, HostWork, Operator
from projector.step.stages import Part
from projector.step.timing import Clock, Phase

__all__ = ["Beyond", "Price", "is_message", "possible", "priced"]

_SURROUNDING = ("dp", "dp_shard", "dp_replicate", "edp", "edp_shard", "edp_replicate")


def priced(resolved: Resolved, cluster: Cluster) -> Callable[[Sequence[Operator]], Phase]:
    """Phases as the models price them, the host of a module of one layer left out."""
    ours = efficiency.of(cluster.gpu)
    kernels = Simulated(cluster.gpu, ours, resolved.execution)
    price = Pricing(groups(resolved.workload.recipe, resolved.workload.gpus, cluster), cluster, ours)

    def phase(ops: Sequence[Operator]) -> Phase:
        compute = [op for op in ops if not isinstance(op, Collective | HostWork)]
        seconds = kernels.times(compute).seconds.tolist()
        known: dict[Operator, float] = dict(zip(compute, seconds, strict=True))
        return Clock(known, frozenset(), price.seconds, resolved.execution).phase(ops)

    return phase


class Beyond:
    """Exposed communication inside layers that more ranks have than could be timed together: priced, by group."""

    def __init__(self, resolved: Resolved, asked: Asked, cluster: Cluster) -> None:
        recipe, kept = resolved.workload.recipe, asked.workload.recipe
        self.needed = (kept.tp, kept.ep) != (recipe.tp, recipe.ep) or recipe.cp > 1
        self._phase = priced(resolved, cluster) if self.needed else None

    def seconds(self, part: Part) -> tuple[dict[str, float], dict[str, float]]:
        """(forward, backward) exposed seconds by group."""
        if self._phase is None:
            return {}, {}
        forward, backward = self._phase(part.block.forward), self._phase(part.backward)
        return dict(forward.exposed), dict(backward.exposed)


class Price:
    """Seconds of collectives around the layers: as timed at their very size; else the model's, times what timed ones of
    their kind take over what the model says of them."""

    def __init__(self, resolved: Resolved, cluster: Cluster, timings: Timings, asked: Asked) -> None:
        self._resolved, self._asked = resolved, asked
        self._shapes = groups(resolved.workload.recipe, resolved.workload.gpus, cluster)
        self._timed = dict(timings.collectives)
        ours = efficiency.of(cluster.gpu)
        self._model = Pricing(self._shapes, cluster, ours)
        self._here = {each: Pricing({each.group: _here(each, cluster)}, cluster, ours) for each in self._timed}
        self.exact = True

    def __call__(self, op: Collective) -> float:
        if self._asked.sharded and not is_message(op):
            return 0.0  # timed inside the layers
        each = possible(op, self._shapes, self._asked.ranks, self._resolved)
        found = None if each is None else self._timed.get(each)
        if each is not None and found is not None and each.size == _size(op, self._shapes):
            return found.median
        self.exact = False
        priced = self._model.seconds(op)
        if each is None or found is None:
            return priced
        said = self._here[each].seconds(replace(op, bytes=float(each.bytes)))
        return priced * found.median / said if said > 0 else priced


def _here(each: CollectiveWanted, cluster: Cluster) -> GroupShape:
    return GroupShape(each.size, min(each.size, cluster.gpus_per_node))


def possible(
    op: Collective, shapes: Mapping[str, GroupShape], ranks: int, resolved: Resolved
) -> CollectiveWanted | None:
    """``op`` as ``ranks`` ranks can time it; None for a group of one, or where there is one rank."""
    size = _size(op, shapes)
    here = next(part for part in range(min(size, ranks), 0, -1) if ranks % part == 0)
    if size <= 1 or here <= 1 or op.bytes <= 0 or not (is_message(op) or op.group in _SURROUNDING):
        return None
    wide = resolved.workload.recipe.precision == "fp32"
    if is_message(op):  # activations of two bytes: of four in fp32
        return wanted(replace(op, group="pp"), here, 4 if wide else 2, 2.0 if wide else 1.0)
    gathers = op.kind == "all_gather"
    return wanted(op, here, 4 if wide or not gathers else 2, 2.0 if wide and gathers else 1.0)


def _size(op: Collective, shapes: Mapping[str, GroupShape]) -> int:
    """Ranks of its group; of a message between stages its two ends."""
    if is_message(op):
        return 2
    return shapes[op.group].size if op.group in shapes else 1


def is_message(op: Collective) -> bool:
    """Whether it goes from one pipeline stage to the next."""
    return op.kind == "send_recv"
