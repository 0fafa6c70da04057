"""Says what each virtual stage is made of: equal stages of one run, and of many runs, are one object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, TypeVar

from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.memo import BoundedCache
from projector.workload.layout import LAID_OUT, Chunk, chunks
from projector.workload.model import LayerKind, Model
from projector.workload.recipe import Recipe

T = TypeVar("T")


class Layer(NamedTuple):
    """A layer on a stage. ``narrow``: in the recipe's precision, not in 16 bits (``first_last_layers_bf16``);
    ``recomputed``: as a whole or in part."""

    kind: LayerKind
    narrow: bool
    recomputed: bool


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """The content of a virtual stage. ``layers``: in order; ``runs``: the same, with equal neighbours as one and their
    number; ``mtp``: MTP modules, and whether they are recomputed. Compared as the one object that it is."""

    embedding: bool
    layers: tuple[Layer, ...]
    mtp: tuple[int, bool]
    head: bool
    runs: tuple[tuple[Layer, int], ...]


_Stages = tuple[tuple[Chunk, ...], tuple[Composition, ...]]
_STAGES: BoundedCache[_Stages] = BoundedCache(4096)
_COMPOSITIONS: BoundedCache[Composition] = BoundedCache(4096)

_LAID_OUT = attrgetter(
    *LAID_OUT,
    *("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_layer_ids", "recompute_vision"),
    *("first_last_layers_bf16", "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16", "freeze_vision_model"),
)


def compositions(model: Model, recipe: Recipe) -> _Stages:
    """Returns the virtual stages in pipeline order, and their contents. Raises :class:`InputError` as :func:`chunks`."""
    return _STAGES.get((model, _LAID_OUT(recipe)), lambda: _compose(model, recipe))


def _compose(model: Model, recipe: Recipe) -> _Stages:
    layout, kinds = chunks(model, recipe), model.layer_kinds
    if len(kinds) < model.num_layers:
        pattern, letters = "hybrid_layer_pattern", model.hybrid_layer_pattern
        if letters is None:
            pattern, letters = "mixer_pattern", model.mixer_pattern
        raise InputError([Problem("", f"model.{pattern}", letters, f"a letter for each of {model.num_layers} layers")])
    wide = _layers_in_16_bits(recipe, len(kinds))

    def composition(chunk: Chunk) -> Composition:
        tower_layers = model.tower_kinds if chunk.embedding else ()
        tower = tuple(
            Layer(kind, True, bool(kind.tower and kind.tower.recomputes(recipe)) and recomputed(recipe, at, -1))
            for at, kind in enumerate(tower_layers)
        )
        decoders = (Layer(kinds[i], i not in wide, recomputed(recipe, at, i)) for at, i in enumerate(chunk.layers))
        layers = (*tower, *decoders)
        mtp = chunk.mtp, bool(chunk.mtp) and recomputed(recipe, 0, 0)
        key = chunk.embedding, layers, mtp, chunk.head
        return _COMPOSITIONS.get(key, lambda: Composition(*key, tuple(counted(layers))))

    return layout, tuple(composition(chunk) for chunk in layout)


def _layers_in_16_bits(recipe: Recipe, layers: int) -> frozenset[int]:
    """Returns the layers in 16 bits (Megatron-LM core/fp8_utils.py: counted over the whole model)."""
    if not recipe.first_last_layers_bf16:
        return frozenset()
    start, end = recipe.num_layers_at_start_in_bf16, recipe.num_layers_at_end_in_bf16
    return frozenset((*range(min(start, layers)), *range(max(layers - end, 0), layers)))


def counted(items: Iterable[T]) -> Iterator[tuple[T, int]]:
    """Yields equal neighbours as one, with their number."""
    return ((item, sum(1 for _ in run)) for item, run in groupby(items))


def recomputed(recipe: Recipe, position: int, layer: int) -> bool:
    """Returns Megatron's rule: uniform replays every layer, block the first n of each virtual stage, ids those named."""
    if recipe.recompute_layer_ids is not None:
        return layer in recipe.recompute_layer_ids
    if recipe.recompute_granularity == "full" and recipe.recompute_method == "block":
        return position < (recipe.recompute_num_layers or 0)
    return recipe.recompute_granularity in ("full", "selective")
