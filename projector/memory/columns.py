"""What the ranks of many runs hold: those that differ in sizes alone are laid out in one go.

Blocks are built once for all sizes of a group of runs (:mod:`projector.size`); the bytes of a rank, and of its chunks, are
the same folds over them as those of one run (:mod:`projector.memory.holding`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from projector.dataclass import dataclass
from projector.errors import InputError, Unsupported
from projector.frameworks.columns import Layouts, laid_out, numbered
from projector.frameworks.scope import built_together, told_once
from projector.frameworks.types import Resolved
from projector.hardware.types import Gpu
from projector.mechanisms.data_parallel import Gathered
from projector.memory.chunks import chunk_memory, saving
from projector.memory.holding import Pipeline, Placed, Sizes, kept, pipeline, played
from projector.memory.parameters import Contents, weights_of
from projector.memory.verdict import outside
from projector.pipeline import InFlight
from projector.size import Rows, column, part, rows

K = TypeVar("K")
Floats = NDArray[np.float64]
Refusal = InputError | Unsupported
_WIDE = 2048  # rows of a column
_Asked = tuple[Contents | None, Placed]


@dataclass(frozen=True, slots=True)
class Laid:
    """A settled run, what is alive where in the order of its schedule for equal times, and what its ranks hold."""

    resolved: Resolved
    flight: InFlight
    held: Sizes


def laid(runs: Sequence[Resolved | Refusal], gpu: Gpu, *, tensors: bool = True) -> list[Laid | Refusal]:
    """Of every run, or why it cannot be run or laid out; without what passes through its weights where no ``tensors`` are
    asked for."""
    found: dict[int, Laid | Refusal] = {}
    pipelines: dict[Hashable, Pipeline] = {}
    there: list[tuple[int, Resolved, InFlight, Pipeline]] = []
    for i, run in enumerate(runs):
        if not isinstance(run, Resolved):
            found[i] = run
            continue
        try:
            flight = played(run)
            there.append((i, run, flight, pipeline(run, flight.placement, pipelines)))
        except InputError as error:
            found[i] = error.with_traceback(None)

    def build(layouts: Layouts, those: Rows) -> list[Sizes]:
        return _folded(layouts, [there[place][3] for place in those], gpu.arch, tensors)

    settled = [run for _, run, *_ in there]
    for own, held in laid_out(settled, lambda run: (built_together(run), told_once(run)), build, _WIDE):
        for row, place in enumerate(own.tolist()):
            i, run, flight, _ = there[place]
            found[i] = Laid(run, flight, held[row]) if isinstance(held, list) else held
    return [found[i] for i in range(len(runs))]


def _folded(layouts: Layouts, whose: Sequence[Pipeline], gpu_arch: str, tensors: bool) -> list[Sizes]:
    """``whose``: pipelines of its rows."""
    pipelines: dict[Pipeline, list[int]] = {}
    for row, own in enumerate(whose):
        pipelines.setdefault(own, []).append(row)
    groups = list(pipelines.items())
    build = _Fold(layouts, gpu_arch, {what for own, _ in groups for what, _ in own.held}, tensors)
    kept = build.kept(_rows(groups, lambda what, _: (what,)))
    gathers = any((each[3:] > 0.0).any() for each in kept.values())

    def asked(what: Contents, chunks: tuple[Placed, ...]) -> list[_Asked]:
        return [(what if gathers else None, chunk) for chunk in chunks]

    sizes = build.chunks(_rows(groups, asked), kept) if tensors else {}
    beside, found = rows(outside(layouts.run()), len(whose)), dict[int, Sizes]()
    nothing = np.zeros((4, len(whose)))
    for own, group in groups:
        fixed = np.stack([kept[what][:3, group] for what, _ in own.held])[own.ranks].transpose(2, 0, 1)
        held = np.stack([[sizes.get(key, nothing)[:, group] for key in asked(*each)] for each in own.held])
        chunks = held[own.ranks].transpose(3, 0, 1, 2)
        found |= {row: Sizes(*each) for row, *each in zip(group, chunks, fixed, beside[group], strict=True)}
    return [found[row] for row in range(len(whose))]


def _rows(
    groups: Iterable[tuple[Pipeline, list[int]]], keys: Callable[[Contents, tuple[Placed, ...]], Iterable[K]]
) -> Iterable[tuple[K, Iterable[int]]]:
    """The rows whose ranks have something of each key."""
    found: dict[K, dict[int, None]] = {}
    for own, group in groups:
        for each in own.held:
            for key in keys(*each):
                found.setdefault(key, {}).update(dict.fromkeys(group))
    return found.items()


class _Fold:
    """What ranks make of the blocks of ``runs``."""

    def __init__(self, runs: Layouts, gpu_arch: str, held: Iterable[Contents], tensors: bool) -> None:
        self._runs, self._gpu_arch = runs, gpu_arch
        names = dict.fromkeys(name for what in held for name in what.names)
        run = runs.run()
        self._weights = {name: weights_of(run, name) for name in names if name != "mtp_layer"}
        self._savings = {name: saving(run, name) for name in names if tensors and name != "mtp"}

    def kept(self, asked: Iterable[tuple[Contents, Iterable[int]]]) -> dict[Contents, Floats]:
        """Returns ``[7, rows]``: what a rank never gives back, what the optimizer step adds, the peak of the
        construction; what is
        gathered of its weights."""

        def build(run: Resolved, alike: Sequence[Contents], place: Rows, those: Rows) -> tuple[float, ...]:
            what = alike[0]._replace(layers=numbered([one.layers for one in alike], place))
            made = kept(run, self._gpu_arch, what, lambda name: part(self._weights[name], those))
            return made.total, made.state.step, made.state.construction, *astuple(made.gathered)

        return self._runs.folded(asked, lambda what: what.shape, build, 7)

    def chunks(
        self, asked: Iterable[tuple[_Asked, Iterable[int]]], kept: Mapping[Contents, Floats]
    ) -> dict[_Asked, Floats]:
        """Returns ``[4, rows]``: see :attr:`ChunkMemory.sizes`."""
        recipe = self._runs.one.workload.recipe
        grouped = recipe.recompute_method != "block" and (recipe.recompute_num_layers or 1) > 1

        def shape(key: _Asked) -> Hashable:
            chunk, *ends = key[1]
            runs = chunk if grouped else tuple(layer for layer, _ in chunk.runs)
            return runs, chunk.embedding, chunk.mtp, chunk.head, *ends

        def build(run: Resolved, alike: Sequence[_Asked], place: Rows, those: Rows) -> tuple[float, ...]:
            what, (chunk, first, last) = alike[0]
            if not grouped:
                chunk = replace(chunk, runs=numbered([one.runs for _, (one, _, _) in alike], place))
            gathered = Gathered()
            if what is not None:
                each = np.array([kept[one][3:] for one, _ in alike if one is not None])[place, :, those]
                gathered = Gathered(*map(column, each.T))
            return chunk_memory(run, chunk, first, last, gathered, lambda name: part(self._savings[name], those)).sizes

        return self._runs.folded(asked, shape, build, 4)
