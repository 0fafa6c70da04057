"""Memory of the ranks of many runs: those that differ in sizes alone are laid out in one go.

Blocks are built once for all sizes of a group of runs (:mod:`projector.size`); the bytes of a rank, and of its chunks,
are the same sums over blocks as those of one run (:mod:`projector.memory.holding`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from typing import NamedTuple

import numpy as np

from projector.errors import InputError, Refusal
from projector.frameworks.columns import Layouts, Runs, built_in_groups, counted_columns, split_by_label
from projector.frameworks.scope import (
    in_columns,
    modules_key,
    once_per_step_key,
    recompute_key,
    recomputed_as,
    without_recompute,
)
from projector.frameworks.types import Resolved
from projector.hardware.types import Gpu
from projector.mechanisms.data_parallel import Gathered
from projector.memory.chunks import block_memory, chunk_memory
from projector.memory.holding import Pipeline, Placed, Sizes, in_flight_of, pipeline, static_memory
from projector.memory.parameters import Contents, weights_of
from projector.memory.verdict import outside
from projector.pipeline import InFlight
from projector.size import Floats, Rows, column, part, rows

_WIDE = 2048  # rows of a column
_Asked = tuple[Contents | None, Placed]


class LaidOut(NamedTuple):
    """Runs ``rows`` whose layers stand on one pipeline, and what their ranks hold; ``run``: they as one, sizes as
    columns."""

    rows: Rows
    run: Resolved
    held: Sizes


class Flights(NamedTuple):
    """Micro-batches in flight. ``alive[i]``: those of the i-th schedule, in its order for equal times; ``of``
    ``[runs]``: the index of each run's schedule, −1 where it cannot be run."""

    alive: Sequence[InFlight]
    of: Rows


def lay_out(runs: Runs, gpu: Gpu, *, tensors: bool) -> tuple[list[LaidOut], Flights, dict[int, Refusal]]:
    """Returns all runs that can be laid out, and why the others cannot. Without ``tensors``: only weights and their
    states, no tensors that pass through them."""
    flights, pipelines, whose, refused = _placed(runs)
    there, found = np.flatnonzero(flights.of >= 0), list[LaidOut]()
    placed, index_of = runs.only(there), dict[Hashable, int]()
    recompute = np.array([index_of.setdefault(recompute_key(one), len(index_of)) for one in placed.ones], np.intp)

    def build(layouts: Layouts, those: Rows) -> list[LaidOut]:
        own, replays = whose[there[those]], recompute[placed.group[those]]
        groups = [
            (pipelines[own[part[0]]], placed.ones[placed.group[those[part[0]]]], part)
            for part in split_by_label(np.arange(len(own)), own * len(index_of) + replays)
        ]
        return _folded(layouts, groups, gpu.arch, tensors)

    for own, made in built_in_groups(placed, _layout_key, build, _WIDE):
        if isinstance(made, list):
            found += [held._replace(rows=there[own[held.rows]]) for held in made]
        else:
            refused |= dict.fromkeys(there[own].tolist(), made)
    return found, flights, refused


def _layout_key(run: Resolved) -> Hashable:
    """Returns a key that runs share which are laid out in one go, whatever they recompute."""
    return modules_key(run), once_per_step_key(run)


def _placed(runs: Runs) -> tuple[Flights, list[Pipeline], Rows, dict[int, Refusal]]:
    """Returns the flights of all runs; their pipelines, and the index of each run's; why some have none."""
    alive, pipelines = dict[InFlight, int](), dict[Hashable, Pipeline]()
    places, refused = dict[Pipeline, int](), dict[int, Refusal]()
    of, whose = np.full(len(runs), -1), np.full(len(runs), -1)
    for _, group in runs.groups():
        for those in split_by_label(group, runs.microbatches[group]):
            one = runs[int(those[0])]
            try:
                flight = in_flight_of(one)
                own = pipeline(one, flight.placement, pipelines)
            except InputError as error:
                refused |= dict.fromkeys(those.tolist(), error.with_traceback(None))
            else:
                of[those], whose[those] = alive.setdefault(flight, len(alive)), places.setdefault(own, len(places))
    return Flights(list(alive), of), list(places), whose, refused


def _folded(
    layouts: Layouts, groups: Sequence[tuple[Pipeline, Resolved, Rows]], gpu_arch: str, tensors: bool
) -> list[LaidOut]:
    """Returns the layouts of ``groups``: pipelines, a run with the recompute of the group, and the rows of ``layouts``
    that stand on it."""
    build = _Fold(layouts, gpu_arch, {what for own, _, _ in groups for what, _ in own.held})
    kept = build.kept([([what for what, _ in own.held], rows) for own, _, rows in groups])
    gathers = any((each[3:] > 0.0).any() for each in kept.values())

    def asked(what: Contents, chunks: tuple[Placed, ...]) -> list[_Asked]:
        return [(what if gathers else None, chunk) for chunk in chunks]

    alike: dict[Hashable, list[tuple[Pipeline, Resolved, Rows]]] = {}
    for each in groups:
        alike.setdefault(recompute_key(each[1]), []).append(each)
    number, found = layouts.cells.shape[1], []
    beside, nothing = rows(outside(layouts.run()), number), np.zeros((4, number))
    for those in alike.values():
        one = recomputed_as(without_recompute(layouts.one), those[0][1])
        keys = [([key for of in own.held for key in asked(*of)], rows) for own, _, rows in those]
        sizes = build.chunks(one, keys, kept) if tensors else {}
        for own, _, group in those:
            fixed = np.stack([kept[what][:3, group] for what, _ in own.held])[own.ranks].transpose(2, 0, 1)
            held = np.stack([[sizes.get(key, nothing)[:, group] for key in asked(*of)] for of in own.held])
            chunks = held[own.ranks].transpose(3, 0, 1, 2)
            run = in_columns(one, layouts.cells[:, group])
            found.append(LaidOut(group, run, Sizes(chunks, fixed, beside[group])))
    return found


class _Fold:
    """Sums over the blocks of ``runs``, by what ranks hold of them."""

    def __init__(self, runs: Layouts, gpu_arch: str, held: Iterable[Contents]) -> None:
        self._runs, self._gpu_arch, self._bare = runs, gpu_arch, without_recompute(runs.run())
        self._names = dict.fromkeys(name for what in held for name in what.names)
        self._weights = {name: weights_of(self._bare, name) for name in self._names if name != "mtp_layer"}

    def kept(self, asked: Iterable[tuple[Iterable[Contents], Rows]]) -> dict[Contents, Floats]:
        """Returns ``[7, rows]``: the bytes that a rank never gives back, that the optimizer step adds, the peak of the
        construction; and those of its gathered weights."""

        def build(run: Resolved, alike: Sequence[Contents], place: Rows, those: Rows) -> tuple[float, ...]:
            what = alike[0]._replace(layers=counted_columns([one.layers for one in alike], place))
            made = static_memory(run, self._gpu_arch, what, lambda name: part(self._weights[name], those))
            return made.total, made.state.step, made.state.construction, *astuple(made.gathered)

        return self._runs.folded(asked, lambda what: what.shape, build, 7)

    def chunks(
        self, one: Resolved, asked: Iterable[tuple[Iterable[_Asked], Rows]], kept: Mapping[Contents, Floats]
    ) -> dict[_Asked, Floats]:
        """Returns ``[4, rows]`` (see :attr:`ChunkMemory.sizes`) with the recompute of ``one``."""
        recipe, run = one.workload.recipe, recomputed_as(self._bare, one)
        grouped = recipe.recompute_method != "block" and (recipe.recompute_num_layers or 1) > 1
        savings = {name: block_memory(run, name) for name in self._names if name != "mtp"}

        def shape(key: _Asked) -> Hashable:
            chunk, *ends = key[1]
            runs = chunk if grouped else tuple(layer for layer, _ in chunk.runs)
            return runs, chunk.embedding, chunk.mtp, chunk.head, *ends

        def build(run: Resolved, alike: Sequence[_Asked], place: Rows, those: Rows) -> tuple[float, ...]:
            what, (chunk, first, last) = alike[0]
            if not grouped:
                chunk = replace(chunk, runs=counted_columns([one.runs for _, (one, _, _) in alike], place))
            gathered = Gathered()
            if what is not None:
                each = np.array([kept[one][3:] for one, _ in alike if one is not None])[place, :, those]
                gathered = Gathered(*map(column, each.T))
            return chunk_memory(run, chunk, first, last, gathered, lambda name: part(savings[name], those)).sizes

        return Layouts(one, self._runs.cells).folded(asked, shape, build, 4)
