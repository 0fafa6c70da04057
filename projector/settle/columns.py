"""Settles many workloads together: those that differ in sizes alone in one go."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
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
from projector.settle.workload import settle_checked
from projector.size import Rows, column, trace
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.validate import LAYOUT_SIZES, PLACES, form, plain_sizes, value_problems
from projector.workload.workload import Workload

_sizes = attrgetter(*LAYOUT_SIZES)
_places = attrgetter(*PLACES)
_offload_fields = attrgetter(*capable.OFFLOADS)


class Settled(NamedTuple):
    """The settled ``runs``, the i-th of workload ``rows[i]``, and why the other workloads cannot run, by number."""

    runs: Runs
    rows: Rows
    refused: dict[int, Refusal]


def settle_many(workloads: Sequence[Workload], cluster: Cluster, *, checked: bool = True) -> Settled:
    """Returns all ``workloads`` as ``cluster`` would run them. ``checked``: their arguments are known to be right."""
    groups: dict[Hashable, list[int]] = {}
    for i, load in enumerate(workloads):
        groups.setdefault(_group_key(load) or i, []).append(i)
    settled_runs: list[Resolved] = []
    parts: list[tuple[list[int], NDArray[np.int64]]] = []
    refused: dict[int, Refusal] = {}
    for members in groups.values():
        single = members
        if len(members) > 1 and not any(_offload_fields(workloads[members[0]].recipe)):
            single = []
            loads = [workloads[i] for i in members]
            for part, run in trace(_together(loads, cluster, checked), len(members)):
                if run is None:
                    single += [members[i] for i in part]
                else:
                    part_cells = cells(run, len(part))
                    settled_runs.append(in_columns(run, part_cells[:, :1]))
                    parts.append(([members[i] for i in part], part_cells))
        for i in single:
            try:
                settled_runs.append(_settled_alone(workloads[i], cluster, checked))
                parts.append(([i], cells(settled_runs[-1], 1)))
            except (InputError, Unsupported) as error:
                refused[i] = error.with_traceback(None)  # which holds all that was found
    lengths = [len(rows) for rows, _ in parts]
    all_cells = np.concatenate([block for _, block in parts], axis=1) if parts else numbers([])
    rows = np.array([row for rows, _ in parts for row in rows], np.intp)
    return Settled(Runs(settled_runs, np.repeat(np.arange(len(settled_runs)), lengths), all_cells), rows, refused)


def _settled_alone(workload: Workload, cluster: Cluster, checked: bool) -> Resolved:
    if not checked and (wrong := arguments.workload_problems(workload)):
        raise InputError(wrong)
    return settle_checked(workload, cluster, published=False)


def _group_key(workload: Workload) -> Hashable:
    """Returns a key that workloads share which differ in sizes of a rank and in batch, and whose single values are
    right if those of one are; None for a workload that shares it with no other."""
    model, recipe = workload.model, workload.recipe
    if type(workload.gpus) is not int or type(model) is not Model or type(recipe) is not Recipe:
        return None
    sizes, places = plain_sizes(recipe), _places(recipe)
    if not sizes:
        return None
    try:
        switches = workload.framework, workload.framework_date, form(recipe)
        hash(switches)
    except TypeError:  # a value without a hash is none that is right
        return None
    tp, pp, vpp, cp, ep, etp, *_ = sizes
    degrees = pp, vpp, cp, tp == 1, ep == 1, etp == 1, workload.gpus
    return IdentityKey(model), switches, degrees, (*map(type, places), *places)


def _together(loads: Sequence[Workload], cluster: Cluster, checked: bool) -> Callable[[Rows], Resolved | None]:
    """Returns a function of the numbers of ``loads``, which share a group key: it settles these as one run, None where
    they cannot run."""
    one, sizes_of = loads[0], np.array([_sizes(load.recipe) for load in loads], np.int64).T
    wrong = not checked and bool(value_problems(one))

    def run(rows: Rows) -> Resolved | None:
        sizes = dict(zip(LAYOUT_SIZES, map(column, sizes_of[:, rows]), strict=True))
        load = evolve(one, recipe=evolve(one.recipe, **sizes))
        if wrong or (not checked and arguments.has_conflicts(load)):
            return None
        try:
            return settle_checked(load, cluster, published=False)
        except (InputError, Unsupported):
            return None

    return run
