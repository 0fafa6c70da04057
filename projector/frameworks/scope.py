"""What a layer of one rank can see of a run, so that configurations that differ elsewhere share its operators and bytes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import fields
from functools import lru_cache
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from projector.frameworks.types import Resolved
from projector.mechanisms import Execution
from projector.memo import Recent, but, remembered
from projector.size import column, least, where
from projector.workload.declared import about_of
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

_TOLD = about_of(Recipe)
OUTSIDE_A_LAYER = frozenset(name for name, told in _TOLD.items() if "layer" not in told.affects)
"""Recipe fields on which neither the operators nor the saved bytes of a layer, embedding or head depend. Of ``pp``,
``data_parallel_shard_size`` and the number of micro-batches they see whether it is one."""

ONCE_A_STEP = frozenset(
    name for name in OUTSIDE_A_LAYER if not {"schedule"} <= _TOLD[name].affects <= {"schedule", "memory"}
)
"""Those of them that do more than say where layers stand and in which order they work: gradients, optimizer, the loop."""

_EXCHANGE = {"moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "moe_deepep_num_sms", "tp_comm_overlap"}
_NO_WEIGHT = frozenset(
    {name for name in _TOLD if name.startswith("recompute_")} | _EXCHANGE | {"micro_batch_size", "seq_length"}
)
"""Fields that layers see and no weight: how much passes through, how it travels, and what of it is kept."""

_AT_ONE = ("pp", "data_parallel_shard_size")
_SEEN = tuple(f.name for f in fields(Recipe) if f.name not in {*OUTSIDE_A_LAYER, *_AT_ONE})
_seen = attrgetter(*_SEEN)
_weighed = attrgetter(*(name for name in _SEEN if name not in {*_NO_WEIGHT, "tp", "cp", "ep", "etp"}))
_once = attrgetter(*sorted(ONCE_A_STEP - {"global_batch_size"}))  # its micro-batches: one or several

_Host = tuple[int, int | None, float, float, float]


def as_layers_see(resolved: Resolved) -> Resolved:
    """``resolved`` with everything that no layer can see at one value: one object for all configurations alike to it.

    Keys of caches of operators, kernel times and saved bytes. Pipeline sizes, batch, schedule and optimizer of the result
    mean nothing.
    """
    known = resolved.__dict__.get(_KEPT)
    if known is not None:
        return resolved if known is _ITSELF else known
    workload, recipe = resolved.workload, resolved.workload.recipe
    ones = (recipe.pp == 1, (recipe.data_parallel_shard_size or 1) == 1, workload.num_microbatches > 1)
    found = _view(workload.model, workload.framework, resolved.execution, _seen(recipe), ones, _host(resolved))
    resolved.__dict__[_KEPT] = found
    return found


_KEPT = "_as_layers_see"
_ITSELF = True  # instead of a reference, which only a search for circles would give free


_REPLAY: dict[str, object] = {name: None for name in _SEEN if name.startswith("recompute_")}


def as_modules_see(resolved: Resolved) -> Resolved:
    """``resolved`` as the modules of its layers see it: one object for all configurations alike to them."""
    return unreplayed(as_layers_see(resolved))


@remembered(1024)
def unreplayed(view: Resolved) -> Resolved:
    """``view`` without recompute, which says what becomes of what a module saves, not what the module is."""
    work = view.workload
    made = but(view, workload=but(work, recipe=but(work.recipe, **_REPLAY)))
    return _MODULES.get(made, lambda: made)


_MODULES: Recent[Resolved] = Recent(1024)


_host = attrgetter("node_ranks", "pod_ranks", "host_bandwidth", "host_copies", "host_optimizer")


SIZES = ("tp", "cp", "ep", "etp", "micro_batch_size", "seq_length")
"""Fields that layers see as numbers, so that layouts which differ in nothing else are built in one go."""
_NUMBERS = (*SIZES, "pp", "global_batch_size", "data_parallel_shard_size")
_switches = attrgetter(*(name for name in _SEEN if name not in SIZES))
_numbers = attrgetter(*(f"recipe.{name}" for name in _NUMBERS), "gpus")


def but_for_sizes(resolved: Resolved) -> Hashable:
    """Equal for runs whose layers differ in numbers alone: their :data:`SIZES`, and of what ranks there are."""
    workload = resolved.workload
    return workload.model, workload.framework, resolved.execution, _switches(workload.recipe), _host(resolved)


def but_for_passing(resolved: Resolved) -> Hashable:
    """Equal for runs whose ranks hold the same weights, but for their numbers."""
    workload = resolved.workload
    return workload.model, workload.framework, resolved.execution, _weighed(workload.recipe), _host(resolved)


def told_once(resolved: Resolved) -> Hashable:
    """Equal for runs that do the same once a step, but for its numbers."""
    return _once(resolved.workload.recipe)


def numbers(runs: Sequence[Resolved]) -> NDArray[np.int64]:
    """``[numbers, runs]``: what :func:`in_columns` makes columns of."""
    return np.array([_numbers(run.workload) for run in runs], np.int64).reshape(len(runs), -1).T


def in_columns(one: Resolved, cells: NDArray[np.int64]) -> Resolved:
    """One run for many, whose layers are alike :func:`but_for_sizes`: sizes, and what ranks there are, are columns with a
    row for each (``cells``: :func:`numbers` of them). All other fields are those of ``one``."""
    *sizes, gpus = map(column, cells)
    given = dict(zip(_NUMBERS, sizes, strict=True))
    made = but(one, workload=but(one.workload, recipe=but(one.workload.recipe, **given), gpus=gpus))
    several = where(lambda m: m > 1, made.workload.num_microbatches, 2, 1)
    seen = {name: least(2, given[name]) for name in _AT_ONE} | {
        "global_batch_size": several * given["micro_batch_size"]
    }
    view = as_layers_see(one)
    recipe = but(view.workload.recipe, **(given | seen))
    view = but(view, workload=but(view.workload, recipe=recipe, gpus=recipe.replica_ranks))
    made.__dict__[_KEPT], view.__dict__[_KEPT] = view, _ITSELF
    return made


_BLANK = Recipe(micro_batch_size=1, global_batch_size=1, seq_length=1)


@lru_cache(maxsize=1024)
def _view(
    model: Model,
    framework: str,
    execution: Execution,
    seen: tuple[object, ...],
    ones: tuple[bool, bool, bool],
    host: _Host,
) -> Resolved:
    piped, sharded, several = 2 - ones[0], 2 - ones[1], 1 + ones[2]
    given = dict(zip(_SEEN, seen, strict=True))
    recipe = but(_BLANK, **given, pp=piped, data_parallel_shard_size=sharded)
    recipe = but(recipe, global_batch_size=several * recipe.micro_batch_size)
    gpus = recipe.replica_ranks
    made = Resolved(
        workload=Workload(model=model, recipe=recipe, gpus=gpus, framework=framework),
        execution=execution,
        node_ranks=host[0],
        pod_ranks=host[1],
        host_bandwidth=host[2],
        host_copies=host[3],
        host_optimizer=host[4],
    )
    made.__dict__[_KEPT] = _ITSELF
    return made
