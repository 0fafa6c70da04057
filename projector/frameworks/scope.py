"""The part of a run that a layer of one rank can see, so that runs which differ elsewhere share its operators and bytes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from projector.frameworks.types import Resolved
from projector.memo import BARE, evolve
from projector.size import column, raw
from projector.workload.field_facts import about_of
from projector.workload.recipe import Recipe

_TOLD = about_of(Recipe)
OUTSIDE_A_LAYER = frozenset(name for name, told in _TOLD.items() if "layer" not in told.affects)
"""Recipe fields on which neither the operators nor the saved bytes of a layer, embedding or head depend. On ``pp``,
``data_parallel_shard_size`` and the number of micro-batches they depend by whether each is one."""

ONCE_A_STEP = frozenset(
    name for name in OUTSIDE_A_LAYER if not {"schedule"} <= _TOLD[name].affects <= {"schedule", "memory"}
)
"""The fields among them that decide more than places and order of layers: gradients, optimizer, the loop."""

_EXCHANGE = {"moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "moe_deepep_num_sms", "tp_comm_overlap"}
_NO_WEIGHT = frozenset(
    {name for name in _TOLD if name.startswith("recompute_")} | _EXCHANGE | {"micro_batch_size", "seq_length"}
)
"""Fields that layers see and weights do not: how much passes through, how it travels, and what of it is kept."""

_SEEN = tuple(f.name for f in fields(Recipe) if f.name not in {*OUTSIDE_A_LAYER, "pp", "data_parallel_shard_size"})
_weighed = attrgetter(*(name for name in _SEEN if name not in {*_NO_WEIGHT, "tp", "cp", "ep", "etp"}))
_once = attrgetter(*sorted(ONCE_A_STEP - {"global_batch_size"}))  # its micro-batches: one or several

_host = attrgetter("node_ranks", "pod_ranks", "host_bandwidth", "host_copies", "host_optimizer")


SIZES = ("tp", "cp", "ep", "etp", "micro_batch_size", "seq_length")
"""Fields that layers see as numbers, so that layouts which differ in nothing else are built in one go."""
_BATCH = ("micro_batch_size", "seq_length", "global_batch_size")
_NUMBERS = (*SIZES, "pp", "global_batch_size", "data_parallel_shard_size")
#: Indices of the numbers by which the groups of a run lie on its nodes.
PLACING = [i for i, name in enumerate((*_NUMBERS, "gpus")) if name not in _BATCH]
STAGES = _NUMBERS.index("pp")
_RECOMPUTE = tuple(name for name in _SEEN if name.startswith("recompute_"))
_switches = attrgetter(*(name for name in _SEEN if name not in {*SIZES, *_RECOMPUTE}))
_replays = attrgetter(*(name for name in _RECOMPUTE if name != "recompute_num_layers"))
_numbers = attrgetter(*(f"recipe.{name}" for name in _NUMBERS), "gpus")


def modules_key(resolved: Resolved) -> Hashable:
    """Returns a key of runs whose layers consist of the same modules, in other numbers, whatever is recomputed of them,
    and whose sizes, as a rule, give a layer the same operators: other runs would be split apart (:mod:`projector.size`)
    in every build, each time after half a layer."""
    recipe = resolved.workload.recipe
    return _modules_seen(resolved), recipe.tp == 1, recipe.cp


def _modules_seen(resolved: Resolved) -> Hashable:
    workload = resolved.workload
    return workload.model, workload.framework, resolved.execution, _switches(workload.recipe), _host(resolved)


def recompute_key(resolved: Resolved) -> Hashable:
    """Returns how layers are recomputed. A stage's composition says how many of them are, except where layers are
    replayed together."""
    recipe = resolved.workload.recipe
    return _replays(recipe), None if recipe.recompute_method == "block" else recipe.recompute_num_layers


def without_recompute(resolved: Resolved) -> Resolved:
    """Returns the run whose layers consist of the same modules and recompute nothing."""
    bare = resolved.__dict__.get(BARE)
    if bare is None:
        nothing: dict[str, object] = dict.fromkeys(_RECOMPUTE)
        bare = resolved.__dict__[BARE] = _with_recipe(resolved, nothing)
    return bare


def recomputed_as(bare: Resolved, other: Resolved) -> Resolved:
    """Returns ``bare``, which recomputes nothing, with the recompute of ``other``; both share the modules of a layer."""
    recomputed = _with_recipe(bare, {name: getattr(other.workload.recipe, name) for name in _RECOMPUTE})
    recomputed.__dict__[BARE] = bare
    return recomputed


def _with_recipe(resolved: Resolved, fields: Mapping[str, object]) -> Resolved:
    workload = resolved.workload
    return evolve(resolved, workload=evolve(workload, recipe=evolve(workload.recipe, **fields)))


def weight_key(resolved: Resolved) -> Hashable:
    """Returns a key of runs whose ranks hold the same weights in different numbers."""
    workload = resolved.workload
    return workload.model, workload.framework, resolved.execution, _weighed(workload.recipe), _host(resolved)


def once_per_step_key(resolved: Resolved) -> Hashable:
    """Returns a key of runs that do the same once a step, in different numbers."""
    return _once(resolved.workload.recipe)


def numbers(runs: Sequence[Resolved]) -> NDArray[np.int64]:
    """Returns ``[numbers, runs]``: the sizes that :func:`in_columns` turns into columns."""
    return np.array([_numbers(run.workload) for run in runs], np.int64).reshape(len(runs), len(_NUMBERS) + 1).T


def cells(run: Resolved, number: int) -> NDArray[np.int64]:
    """Returns the same ``[numbers, number]`` for a run whose sizes are columns."""
    return np.stack([np.broadcast_to(raw(value), (number,)) for value in _numbers(run.workload)])


def in_columns(one: Resolved, cells: NDArray[np.int64]) -> Resolved:
    """Returns one run for many whose layers differ in numbers alone: sizes, and numbers of ranks, are columns with a row
    for each run (``cells``: :func:`numbers` of them). All other fields are those of ``one``."""
    *sizes, gpus = cells[:, 0].tolist() if cells.shape[1] == 1 else map(column, cells)
    given = dict(zip(_NUMBERS, sizes, strict=True))
    return evolve(one, workload=evolve(one.workload, recipe=evolve(one.workload.recipe, **given), gpus=gpus))
