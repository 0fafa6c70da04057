"""The blocks of a run under the names that their times have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from projector.benchmark.timings import PartWanted, StageWanted, key_of
from projector.dataclass import dataclass
from projector.frameworks.types import Resolved
from projector.pipeline.types import Compiled
from projector.step.cycle import compiled_schedule
from projector.step.stages import Part, parts
from projector.workload.composition import compositions


@dataclass(frozen=True)
class Named:
    """One virtual stage: its blocks and their names (``embedding``, ``layer …``, ``head``)."""

    keys: tuple[str, ...]
    parts: tuple[Part, ...]
    wanted: tuple[PartWanted, ...]

    def each(self) -> Iterator[tuple[str, Part, PartWanted | None]]:
        """Name and block of each, and the layer that stands for it (None: an end of the model)."""
        layers = {part.key: part for part in self.wanted}
        return ((key, part, layers.get(key)) for key, part in zip(self.keys, self.parts, strict=True))


def stages_of(resolved: Resolved) -> tuple[Named, ...]:
    """The virtual stages in pipeline order."""
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
    """What every pipeline rank updates. ``sharded``: layers are shards already when they are timed."""
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
