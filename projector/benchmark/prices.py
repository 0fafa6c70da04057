"""What no device here can show, priced: collectives of more ranks than are at hand, by what smaller ones took."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from projector.benchmark.launched import Launched
from projector.benchmark.timings import Asked, CollectiveWanted, PartWanted, StageWanted, Timings, key_of, wanted
from projector.collectives.model import Pricing
from projector.collectives.placement import groups
from projector.dataclass import dataclass
from projector.frameworks.types import Resolved
from projector.hardware import efficiency
from projector.hardware.types import Cluster, GroupShape
from projector.operators.types import Collective
from projector.pipeline.types import Compiled
from projector.step.cycle import compiled_schedule
from projector.step.stages import StageBlock, parts
from projector.workload.composition import compositions

_SURROUNDING = ("dp", "dp_shard", "dp_replicate", "edp", "edp_shard", "edp_replicate")


class Price:
    """Seconds of collectives around the layers: as timed at their very size; else the model's, times what timed ones of
    their kind take over what the model says of them."""

    def __init__(self, resolved: Resolved, cluster: Cluster, timings: Timings, asked: Asked) -> None:
        self._resolved, self._asked = resolved, asked
        self._shapes = groups(resolved.workload.recipe, resolved.workload.gpus, cluster)
        self._timed = dict(timings.collectives)
        self._placed = {each: _here(each, cluster) for each in self._timed}
        ours = efficiency.of(cluster.gpu)
        self._model = Pricing(self._shapes, cluster, ours)
        self._here = {each: Pricing({each.group: shape}, cluster, ours) for each, shape in self._placed.items()}
        self.exact = True

    def __call__(self, op: Collective) -> float:
        if self._asked.sharded and not is_message(op):
            return 0.0  # timed inside the layers
        each = possible(op, self._shapes, self._asked.ranks, self._resolved)
        found = None if each is None else self._timed.get(each)
        if each is not None and found is not None and self._alike(op, each):
            return found.median
        self.exact = False
        priced = self._model.seconds(op)
        near = None if each is None else self._nearest(each)
        if near is None:
            return priced
        said = self._here[near].seconds(replace(op, group=near.group, bytes=float(near.bytes)))
        return priced * self._timed[near].median / said if said > 0 else priced

    def _alike(self, op: Collective, each: CollectiveWanted) -> bool:
        """Whether ``op`` is of as many ranks as were timed, on nodes that hold as many of them."""
        shape = self._shapes.get(op.group)
        return each.size == _size(op, self._shapes) and (shape is None or self._placed[each].nodes == shape.nodes)

    def _nearest(self, each: CollectiveWanted) -> CollectiveWanted | None:
        """Of the timed ones of its kind the one nearest in bytes: what another run of the same layers sends."""
        alike = [timed for timed in self._timed if timed.kind == each.kind]
        return min(alike, key=lambda timed: abs(math.log(timed.bytes / each.bytes)), default=None)


def _here(each: CollectiveWanted, cluster: Cluster) -> GroupShape:
    return GroupShape(each.size, each.per_node or min(each.size, cluster.gpus_per_node))


def placed(each: CollectiveWanted, found: Launched | None, tp: int) -> CollectiveWanted:
    """``each`` with the ranks that it has on a node when those that ``found`` says time it (None: of one host): those of all
    data parallelism lie ``tp`` apart, others side by side (:func:`projector.benchmark.exchange.groups_of`)."""
    if found is None:
        return replace(each, per_node=each.size)
    stride = tp if each.group == "dp" and each.size * tp == found.size else 1
    return replace(each, per_node=max(1, min(each.size, found.local_size // stride)))


def possible(
    op: Collective, shapes: Mapping[str, GroupShape], ranks: int, resolved: Resolved
) -> CollectiveWanted | None:
    """``op`` as ``ranks`` ranks can time it; None for a group of one, or where there is one rank."""
    size = _size(op, shapes)
    here = next(part for part in range(min(size, ranks), 0, -1) if ranks % part == 0)
    if size <= 1 or here <= 1 or op.bytes <= 0 or not (is_message(op) or op.group in _SURROUNDING):
        return None
    wide = resolved.workload.recipe.precision == "fp32"
    if is_message(op):
        return wanted(replace(op, group="pp"), here, 4 if wide else 2)
    return wanted(op, here, 2 if op.kind == "all_gather" and not wide else 4)


def _size(op: Collective, shapes: Mapping[str, GroupShape]) -> int:
    """Returns the ranks of its group; of a message between stages its two ends."""
    if is_message(op):
        return 2
    return shapes[op.group].size if op.group in shapes else 1


def is_message(op: Collective) -> bool:
    """Returns whether it goes from one pipeline stage to the next."""
    return op.kind == "send_recv"


# The blocks of a run under the names that their times have.
@dataclass(frozen=True)
class Named:
    """One virtual stage: its blocks and their names (``embedding``, ``layer …``, ``head``)."""

    keys: tuple[str, ...]
    parts: tuple[StageBlock, ...]
    wanted: tuple[PartWanted, ...]

    def each(self) -> Iterator[tuple[str, StageBlock, PartWanted | None]]:
        """Name and block of each, and the layer that stands for it (None: an end of the model)."""
        layers = {part.key: part for part in self.wanted}
        return ((key, part, layers.get(key)) for key, part in zip(self.keys, self.parts, strict=True))


def stages_of(resolved: Resolved) -> tuple[Named, ...]:
    """Returns the virtual stages in pipeline order."""
    recipe = resolved.workload.recipe
    whole = recipe.recompute_granularity == "full"
    found = []
    for chunk in compositions(resolved.workload.model, recipe)[1]:
        blocks = parts(resolved, chunk)
        keys, wanted = ["embedding"] * chunk.embedding, []
        for layer in chunk.layers:
            replayed = whole and layer.recomputed
            wanted.append(PartWanted(key_of(layer.kind, replayed), layer.kind, replayed, 1))
        keys += [part.key for part in wanted] + ["head"] * chunk.head
        found.append(Named(tuple(keys), blocks, tuple(wanted)))
    return tuple(found)


def layer_kinds(resolved: Resolved, stages: Sequence[Named]) -> tuple[PartWanted, ...]:
    """Every kind of layer, with how many of it the pipeline rank with most of it holds."""
    kinds = {part.key: part for stage in stages for part in stage.wanted}
    held = [Counter(key for v in own for key in stages[v].keys) for own in _placement(resolved)]
    return tuple(
        PartWanted(key, part.kind, part.replayed, max(counts[key] for counts in held)) for key, part in kinds.items()
    )


def updates(resolved: Resolved, stages: Sequence[Named], sharded: bool) -> tuple[StageWanted, ...]:
    """Returns what every pipeline rank updates. ``sharded``: layers are shards already when they are timed."""
    dense, expert = (1, 1) if sharded else resolved.execution.data_parallel.shards(resolved.workload)
    found = []
    for own in _placement(resolved):
        counts = Counter(key for v in own for key in stages[v].keys)
        name = ", ".join(f"{count} x {key}" for key, count in sorted(counts.items()))
        name += f"; 1/{dense} of it, 1/{expert} of its experts" if dense * expert > 1 else ""
        found.append(StageWanted(name, tuple(sorted(counts.items())), 1.0 / dense, 1.0 / expert))
    return tuple(found)


def _placement(resolved: Resolved) -> Sequence[Sequence[int]]:
    compiled: Compiled = compiled_schedule(resolved)
    return compiled.schedule.placement
