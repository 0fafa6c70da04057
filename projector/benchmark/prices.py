"""Prices what no device here can show: collectives of more ranks than are at hand, by what smaller ones took."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from projector.benchmark.launcher import Launched
from projector.benchmark.timings import Asked, CollectiveWanted, Made, PartWanted, StageWanted, Timings, key_of, wanted
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
    """Seconds of collectives around the layers: as timed at their very size; else the model's, times the ratio of timed
    to modelled seconds of their kind."""

    def __init__(self, resolved: Resolved, cluster: Cluster, timings: Timings, asked: Asked) -> None:
        self._resolved, self._asked = resolved, asked
        self._shapes = groups(resolved.workload.recipe, resolved.workload.gpus, cluster)
        self._timed = dict(timings.collectives)
        self._placed = {
            each: GroupShape(each.size, each.per_node or min(each.size, cluster.gpus_per_node)) for each in self._timed
        }
        constants = efficiency.of(cluster.gpu)
        self._model = Pricing(self._shapes, cluster, constants)
        self._here = {each: Pricing({each.group: shape}, cluster, constants) for each, shape in self._placed.items()}
        self.exact = True

    def __call__(self, op: Collective) -> float:
        if self._asked.sharded and not is_message(op):
            return 0.0  # timed inside the layers
        timeable = possible(op, self._shapes, self._asked.ranks, self._resolved)
        times = None if timeable is None else self._timed.get(timeable)
        if timeable is not None and times is not None and timeable.size == _ranks_of(op, self._shapes):
            shape = self._shapes.get(op.group)
            if shape is None or self._placed[timeable].nodes == shape.nodes:
                return times.median
        self.exact = False
        priced = self._model.seconds(op)
        alike = [] if timeable is None else [timed for timed in self._timed if timed.kind == timeable.kind]
        if timeable is None or not alike:
            return priced
        nbytes = timeable.bytes  # other runs of the same layers send the nearest
        nearest = min(alike, key=lambda timed: abs(math.log(timed.bytes / nbytes)))
        modelled = self._here[nearest].seconds(replace(op, group=nearest.group, bytes=float(nearest.bytes)))
        return priced * self._timed[nearest].median / modelled if modelled > 0 else priced


def placed(collective: CollectiveWanted, job: Launched | None, tp: int) -> CollectiveWanted:
    """Returns ``collective`` with its ranks on a node when those of ``job`` time it (None: of one host): the ranks of
    all data parallelism lie ``tp`` apart, others side by side (:func:`projector.benchmark.exchange.groups_of`)."""
    if job is None:
        return replace(collective, per_node=collective.size)
    stride = tp if collective.group == "dp" and collective.size * tp == job.size else 1
    return replace(collective, per_node=max(1, min(collective.size, job.local_size // stride)))


def possible(
    op: Collective, shapes: Mapping[str, GroupShape], ranks: int, resolved: Resolved
) -> CollectiveWanted | None:
    """Returns ``op`` as ``ranks`` ranks can time it; None for a group of one, or where there is one rank."""
    size = _ranks_of(op, shapes)
    here = next(part for part in range(min(size, ranks), 0, -1) if ranks % part == 0)
    if size <= 1 or here <= 1 or op.bytes <= 0 or not (is_message(op) or op.group in _SURROUNDING):
        return None
    wide = resolved.workload.recipe.precision == "fp32"
    if is_message(op):
        return wanted(replace(op, group="pp"), here, 4 if wide else 2)
    return wanted(op, here, 2 if op.kind == "all_gather" and not wide else 4)


def _ranks_of(op: Collective, shapes: Mapping[str, GroupShape]) -> int:
    """Returns the ranks of the collective's group; a message between stages has two ends."""
    if is_message(op):
        return 2
    return shapes[op.group].size if op.group in shapes else 1


def is_message(op: Collective) -> bool:
    """Returns whether ``op`` goes from one pipeline stage to the next."""
    return op.kind == "send_recv"


# Blocks of a run, under the names of their times.
@dataclass(frozen=True)
class Named:
    """One virtual stage: its blocks and the names of the timed parts that each is made of (``embedding``, ``layer …``,
    ``head``): one, but a depth of token prediction is a layer and a head."""

    keys: tuple[tuple[str, ...], ...]
    parts: tuple[StageBlock, ...]
    wanted: tuple[PartWanted, ...]

    def each(self) -> Iterator[tuple[Made, StageBlock]]:
        """Yields what each block is made of, and the block."""
        layers = {part.key: part for part in self.wanted}
        for names, part in zip(self.keys, self.parts, strict=True):
            yield tuple((name, layers.get(name)) for name in names), part


def stages_of(resolved: Resolved) -> tuple[Named, ...]:
    """Returns the virtual stages in pipeline order."""
    recipe = resolved.workload.recipe
    whole = recipe.recompute_granularity == "full"
    stages = []
    for chunk in compositions(resolved.workload.model, recipe)[1]:
        blocks = parts(resolved, chunk)
        depths, again = chunk.mtp
        layers = [(layer.kind, whole and layer.recomputed) for layer in chunk.layers]
        layers += [(resolved.workload.model.mtp_kind, again)] * depths
        wanted = tuple(PartWanted(key_of(kind, replayed), kind, replayed, 1) for kind, replayed in layers)
        inner = [(part.key, "head") if i >= len(chunk.layers) else (part.key,) for i, part in enumerate(wanted)]
        keys = (*[("embedding",)] * chunk.embedding, *inner, *[("head",)] * chunk.head)
        stages.append(Named(keys, blocks, wanted))
    return tuple(stages)


def layer_kinds(resolved: Resolved, stages: Sequence[Named]) -> tuple[PartWanted, ...]:
    """Returns every kind of layer, with the largest number of it on one pipeline rank."""
    kinds = {part.key: part for stage in stages for part in stage.wanted}
    held = [Counter(key for number in rank for key, *_ in stages[number].keys) for rank in _placement(resolved)]
    return tuple(
        PartWanted(key, part.kind, part.replayed, max(counts[key] for counts in held)) for key, part in kinds.items()
    )


def updates(resolved: Resolved, stages: Sequence[Named], sharded: bool) -> tuple[StageWanted, ...]:
    """Returns what every pipeline rank updates. ``sharded``: layers are shards already when they are timed."""
    dense, expert = (1, 1) if sharded else resolved.execution.data_parallel.shards(resolved.workload)
    ranks = []
    for numbers in _placement(resolved):
        counts = Counter(key for v in numbers for key, *_ in stages[v].keys)
        name = ", ".join(f"{count} x {key}" for key, count in sorted(counts.items()))
        name += f"; 1/{dense} of it, 1/{expert} of its experts" if dense * expert > 1 else ""
        ranks.append(StageWanted(name, tuple(sorted(counts.items())), 1.0 / dense, 1.0 / expert))
    return tuple(ranks)


def _placement(resolved: Resolved) -> Sequence[Sequence[int]]:
    compiled: Compiled = compiled_schedule(resolved)
    return compiled.schedule.placement
