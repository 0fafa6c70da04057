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
from projector.frameworks.scope import build_key, once_per_step_key
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

    def build(layouts: Layouts, those: Rows) -> list[LaidOut]:
        own = whose[there[those]]
        groups = [(pipelines[own[part[0]]], part) for part in split_by_label(np.arange(len(own)), own)]
        return _folded(layouts, groups, gpu.arch, tensors)

    for own, made in built_in_groups(
        runs.only(there), lambda run: (build_key(run), once_per_step_key(run)), build, _WIDE
    ):
        if isinstance(made, list):
            found += [held._replace(rows=there[own[held.rows]]) for held in made]
        else:
            refused |= dict.fromkeys(there[own].tolist(), made)
    return found, flights, refused


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


def _folded(layouts: Layouts, groups: Sequence[tuple[Pipeline, Rows]], gpu_arch: str, tensors: bool) -> list[LaidOut]:
    """Returns the layouts of ``groups``: pipelines, with the rows of ``layouts`` that stand on each."""
    build = _Fold(layouts, gpu_arch, {what for own, _ in groups for what, _ in own.held}, tensors)
    kept = build.kept([([what for what, _ in own.held], rows) for own, rows in groups])
    gathers = any((each[3:] > 0.0).any() for each in kept.values())

    def asked(what: Contents, chunks: tuple[Placed, ...]) -> list[_Asked]:
        return [(what if gathers else None, chunk) for chunk in chunks]

    keys = [([key for each in own.held for key in asked(*each)], rows) for own, rows in groups]
    sizes = build.chunks(keys, kept) if tensors else {}
    number, found = layouts.cells.shape[1], []
    beside, nothing = rows(outside(layouts.run()), number), np.zeros((4, number))
    for own, group in groups:
        fixed = np.stack([kept[what][:3, group] for what, _ in own.held])[own.ranks].transpose(2, 0, 1)
        held = np.stack([[sizes.get(key, nothing)[:, group] for key in asked(*each)] for each in own.held])
        chunks = held[own.ranks].transpose(3, 0, 1, 2)
        found.append(LaidOut(group, layouts.run(group), Sizes(chunks, fixed, beside[group])))
    return found


class _Fold:
    """Sums over the blocks of ``runs``, by what ranks hold of them."""

    def __init__(self, runs: Layouts, gpu_arch: str, held: Iterable[Contents], tensors: bool) -> None:
        self._runs, self._gpu_arch = runs, gpu_arch
        names = dict.fromkeys(name for what in held for name in what.names)
        run = runs.run()
        self._weights = {name: weights_of(run, name) for name in names if name != "mtp_layer"}
        self._savings = {name: block_memory(run, name) for name in names if tensors and name != "mtp"}

    def kept(self, asked: Iterable[tuple[Iterable[Contents], Rows]]) -> dict[Contents, Floats]:
        """Returns ``[7, rows]``: the bytes that a rank never gives back, that the optimizer step adds, the peak of the
        construction; and those of its gathered weights."""

        def build(run: Resolved, alike: Sequence[Contents], place: Rows, those: Rows) -> tuple[float, ...]:
            what = alike[0]._replace(layers=counted_columns([one.layers for one in alike], place))
            made = static_memory(run, self._gpu_arch, what, lambda name: part(self._weights[name], those))
            return made.total, made.state.step, made.state.construction, *astuple(made.gathered)

        return self._runs.folded(asked, lambda what: what.shape, build, 7)

    def chunks(
        self, asked: Iterable[tuple[Iterable[_Asked], Rows]], kept: Mapping[Contents, Floats]
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
                chunk = replace(chunk, runs=counted_columns([one.runs for _, (one, _, _) in alike], place))
            gathered = Gathered()
            if what is not None:
                each = np.array([kept[one][3:] for one, _ in alike if one is not None])[place, :, those]
                gathered = Gathered(*map(column, each.T))
            return chunk_memory(run, chunk, first, last, gathered, lambda name: part(self._savings[name], those)).sizes

        return self._runs.folded(asked, shape, build, 4)
