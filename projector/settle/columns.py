"""``settled_each``: many workloads as a cluster would run them, those that differ in sizes alone in one go."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from projector.errors import InputError, Refusal, Unsupported
from projector.frameworks import Resolved
from projector.frameworks.columns import Runs
from projector.frameworks.scope import cells, in_columns, numbers
from projector.hardware.types import Cluster
from projector.memo import IdentityKey, evolve
from projector.settle import arguments, capable
from projector.settle.workload import settled
from projector.size import Rows, column, trace
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.validate import LAYOUT_SIZES, PLACES, form, plain_sizes, value_problems
from projector.workload.workload import Workload

_sizes = attrgetter(*LAYOUT_SIZES)
_places = attrgetter(*PLACES)
_hosted = attrgetter(*capable.OFFLOADS)


class Settled(NamedTuple):
    """``runs``, of which the i-th is of the workload number ``rows[i]``; why the others cannot run, by their numbers."""

    runs: Runs
    rows: Rows
    refused: dict[int, Refusal]


def settled_each(workloads: Sequence[Workload], cluster: Cluster, *, checked: bool = True) -> Settled:
    """Returns all as ``cluster`` would run them. ``checked``: nothing is wrong with what they state."""
    alike: dict[Hashable, list[int]] = {}
    for i, load in enumerate(workloads):
        alike.setdefault(_alike(load) or i, []).append(i)
    ones: list[Resolved] = []
    parts: list[tuple[list[int], NDArray[np.int64]]] = []
    refused: dict[int, Refusal] = {}
    for those in alike.values():
        left = those
        if len(those) > 1 and not any(_hosted(workloads[those[0]].recipe)):
            left = []
            loads = [workloads[i] for i in those]
            for own, run in trace(_Group(loads, cluster, checked).run, len(those)):
                if run is None:
                    left += [those[i] for i in own]
                else:
                    own_cells = cells(run, len(own))
                    ones.append(in_columns(run, own_cells[:, :1]))
                    parts.append(([those[i] for i in own], own_cells))
        for i in left:
            try:
                ones.append(_alone(workloads[i], cluster, checked))
                parts.append(([i], cells(ones[-1], 1)))
            except (InputError, Unsupported) as error:
                refused[i] = error.with_traceback(None)  # which holds all that was found
    lengths = [len(rows) for rows, _ in parts]
    whole = np.concatenate([each for _, each in parts], axis=1) if parts else numbers([])
    rows = np.array([row for rows, _ in parts for row in rows], np.intp)
    return Settled(Runs(ones, np.repeat(np.arange(len(ones)), lengths), whole), rows, refused)


def _alone(workload: Workload, cluster: Cluster, checked: bool) -> Resolved:
    if not checked and (wrong := arguments.of_workload(workload)):
        raise InputError(wrong)
    return settled(workload, cluster, published=False)


def _alike(workload: Workload) -> Hashable:
    """Equal for workloads that differ in the sizes of a rank and in their batch, whose single values are right if those of
    one are; None for one that is like no other."""
    model, recipe = workload.model, workload.recipe
    if type(workload.gpus) is not int or type(model) is not Model or type(recipe) is not Recipe:
        return None
    sizes, places = plain_sizes(recipe), _places(recipe)
    if not sizes:
        return None
    try:
        by = workload.framework, workload.framework_date, form(recipe)
        hash(by)
    except TypeError:  # a value without a hash is none that is right
        return None
    tp, pp, vpp, cp, ep, etp, *_ = sizes
    own = pp, vpp, cp, tp == 1, ep == 1, etp == 1, workload.gpus
    return IdentityKey(model), by, own, (*map(type, places), *places)


class _Group:
    """Workloads that are alike, and what becomes of parts of them."""

    def __init__(self, loads: Sequence[Workload], cluster: Cluster, checked: bool) -> None:
        self._one, self._cluster, self._checked = loads[0], cluster, checked
        self._cells = np.array([_sizes(load.recipe) for load in loads], np.int64).T
        self._wrong = not checked and bool(value_problems(loads[0]))

    def run(self, those: Rows) -> Resolved | None:
        """Returns the workloads ``those`` as one run, None where they cannot run."""
        if self._wrong:
            return None
        sizes = dict(zip(LAYOUT_SIZES, map(column, self._cells[:, those]), strict=True))
        load = evolve(self._one, recipe=evolve(self._one.recipe, **sizes))
        if not self._checked and arguments.together_wrong(load):
            return None
        try:
            return settled(load, self._cluster, published=False)
        except (InputError, Unsupported):
            return None
