"""Finds a good configuration soon: searches parts of a space, each of them whole, one after the other.

Several descents take turns, one for each way to shard what data-parallel ranks hold, without recompute and with it. The
first part of a descent is the stated configuration, the second has every size with the plainest pipelines and switches.
Each further part holds some axes at what the best so far has and frees the others (block coordinate descent: Bertsekas,
*Nonlinear Programming*, 2.7), until no part has anything better. That is no proof; the search of the whole space, which
follows, is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from projector.parameter import parameter
from projector.search.axes import Axis, Option
from projector.search.branch_and_bound import BranchAndBound
from projector.search.nodes import Candidate, Counts, SearchState
from projector.search.space import PIPELINE, Space

_SHARDING = "data_parallel_sharding"
#: Fields that move something into host memory.
_HOST = ("optimizer_cpu_offload", "offload_modules", "cpu_offloading_num_layers")
#: Values of the plain part, where an axis has them; fields that are not named here keep all options.
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "pipeline_schedule": (None, "1f1b", "interleaved"),
    "recompute_granularity": ("none", "full"),
    "recompute_method": (None, "uniform"),
    "sequence_parallel": (True,),
    _SHARDING: ("optim", "optim_grads_params"),
    "tp_comm_overlap": (False,),
    "create_attention_mask_in_dataloader": (False,),
    "moe_token_dispatcher_type": ("alltoall",),
    "overlap_moe_expert_parallel_comm": (False,),
    **dict.fromkeys(_HOST, (None,)),
    "overlap_grad_reduce": (True,),
    "overlap_param_gather": (True,),
}
_NO_RECOMPUTE: Option = {"recompute_granularity": "none"}
#: Axes that successive parts free around the best so far; ``neighbours``: half and twice each of its sizes.
_FREED = (("layers", "per_step"), ("pipelines", "layers"), ("neighbours", "pipelines"), ("sizes", "pipelines"))
_SIZES = ("tp", "cp", "ep", "etp", "pp")
_CHUNKS = (1, 2, 4)
_FAR = parameter(
    1.25, kind="assumed", source="how many times the best value a start may have to go on beside the others: convention"
)
_TOKENS = (
    8192  # tokens of a sample on a rank, at most, in the smallest plain part, where context parallelism can split it
)


def descend(
    space: Space, solve: Callable[[Space, Sequence[Candidate]], BranchAndBound], spent: Callable[[], bool]
) -> SearchState | None:
    """Returns the best of every descent, which take turns until nothing better is found or ``spent`` says that time is
    over; None where nothing fits. ``solve`` searches a part, starting from hits that are already projected."""
    counts = Counts()
    running = [_Descent(part, [], _plain_parts) for part in _subspaces(space)]
    whole = _Descent(space, [], _parts_around_best)
    descents = [whole, *running]
    while running and not (any(descent.hits for descent in descents) and spent()):
        best = min(descent.value for descent in descents)
        now = min(running, key=lambda descent: descent.turn(best))
        part = now.next()
        if part is None:
            running.remove(now)
            if not running and now is not whole:  # then the whole space, from the best of all descents
                whole.hits[:] = [hit for descent in descents for hit in descent.hits]
                running = [whole]
            continue
        last = solve(part, now.hits)
        counts += last.counts
        now.take(last.hits)
    hits = [hit for descent in descents for hit in descent.hits]
    return SearchState(hits=hits, counts=replace(counts, points=space.points)) if hits else None


class _Descent:
    """A descent through ``parts`` of a space, which see its ``hits``. ``without_gain``: parts in a row with nothing
    better."""

    def __init__(
        self, space: Space, hits: list[Candidate], parts: Callable[[Space, Sequence[Candidate]], Iterator[Space]]
    ) -> None:
        self.hits, self.without_gain, self.rounds = hits, 0, 0
        self._parts_around_best = parts(space, hits)

    @property
    def value(self) -> float:
        """Returns the value of the best hit; smaller is better."""
        return min((hit.value for hit in self.hits), default=math.inf)

    def turn(self, best: float) -> tuple[int, bool, int]:
        """Returns a key that is smallest for the descent whose turn it is, where ``best`` is the best value of all
        descents: one without hits comes first, then one that still gains, then one that is near the best."""
        return self.without_gain, bool(self.hits) and self.value > _FAR * best, self.rounds if self.hits else 0

    def next(self) -> Space | None:
        """Returns the next part; None where no further part may have something better."""
        return None if self.without_gain == len(_FREED) else next(self._parts_around_best, None)

    def take(self, hits: Sequence[Candidate]) -> None:
        """Takes the hits of a part, which include all earlier ones."""
        before = self.value
        self.hits[:] = hits
        self.without_gain = self.without_gain + 1 if self.value == before < math.inf else 0
        self.rounds += 1


def _subspaces(space: Space) -> list[Space]:
    """Returns the parts to descend in, one for each sharding of what data-parallel ranks hold, without recompute and
    with it; the stated kind comes first.

    Good layouts of one kind are no neighbours of another's, so no descent leads from one to the other: weights that are
    gathered want few ranks in a layer, weights that stay want many; without recompute the ranks of a layer make room
    for activations.
    """
    axis = next((axis for axis in space.layers if any(_SHARDING in option for option in axis)), ())
    plain = [option for option in axis if option[_SHARDING] in _PLAIN[_SHARDING]] if len(axis) > 1 else []
    parts = [_with_layer_option(space, option) for option in plain] or [space]
    turn = -1 if space.stated.get("recompute_granularity") not in (None, "none") else 1
    pairs = ((_with_layer_option(part, _NO_RECOMPUTE), part)[::turn] for part in parts)
    return [each for pair, part in zip(pairs, parts, strict=True) for each in pair if each is part or each != part]


def _with_layer_option(space: Space, option: Option) -> Space:
    return replace(space, layers=_restricted(space.layers, {name: (value,) for name, value in option.items()}))


def _parts_around_best(space: Space, hits: Sequence[Candidate]) -> Iterator[Space]:
    while hits:
        for free in _FREED:
            yield around(space, min(hits, key=lambda hit: hit.value).fields, free)


def _plain_parts(space: Space, hits: Sequence[Candidate]) -> Iterator[Space]:
    """Yields the stated configuration, plain parts that find something to begin with, then the parts around the best."""
    plain = _plain(space)
    yield around(space, space.stated, ())
    yield _small_plain_part(plain)
    if not hits:
        yield plain
    if not hits and any(name in option for axis in space.layers for option in axis for name in _HOST):
        yield replace(plain, layers=space.layers)  # also switches that are not plain and save memory
    yield from _parts_around_best(space, hits)


def _small_plain_part(plain: Space) -> Space:
    """Returns the plain part with few numbers of chunks, and with no more context parallelism than long samples need."""
    least = max(1, -(-plain.base.recipe.seq_length // _TOKENS))
    few = {"cp": tuple(range(1, least + 1))}
    return replace(plain, sizes=_restricted(plain.sizes, few), only={"vpp": _CHUNKS, **plain.only})


def _plain(space: Space) -> Space:
    micro = min(option["micro_batch_size"] for axis in space.sizes for option in axis if "micro_batch_size" in option)
    wanted = {**_PLAIN, "micro_batch_size": (micro,)}
    return replace(
        space,
        sizes=_restricted(space.sizes, wanted),
        layers=_restricted(space.layers, wanted),
        per_step=_restricted(space.per_step, wanted),
        only={"pipeline_schedule": _PLAIN["pipeline_schedule"], **space.only},
    )


def around(space: Space, best: Option, free: tuple[str, ...]) -> Space:
    """Returns the part of ``space`` with all options of the axes ``free``, and of the other axes those of ``best``. The
    micro-batch is always free."""
    best_values: dict[str, tuple[Any, ...]] = {name: (value,) for name, value in best.items()}
    sizes = {name: values for name, values in best_values.items() if name != "micro_batch_size"}
    if "neighbours" in free:
        sizes |= {name: (best[name] // 2, best[name], 2 * best[name]) for name in _SIZES if name in best}
    return replace(
        space,
        sizes=space.sizes if "sizes" in free else _restricted(space.sizes, sizes),
        layers=space.layers if "layers" in free else _restricted(space.layers, best_values),
        per_step=space.per_step if "per_step" in free else _restricted(space.per_step, best_values),
        only=space.only
        if "pipelines" in free
        else {**space.only, **{name: (best.get(name, getattr(space.base.recipe, name)),) for name in PIPELINE}},
    )


def _restricted(axes: tuple[Axis, ...], wanted: Mapping[str, tuple[Any, ...]]) -> tuple[Axis, ...]:
    """Returns of each axis the options whose fields have wanted values; all options where none has."""
    return tuple(
        tuple(option for option in axis if all(v in wanted.get(name, (v,)) for name, v in option.items())) or axis
        for axis in axes
    )
