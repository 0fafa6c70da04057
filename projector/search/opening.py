"""A good configuration soon: parts of a space, each searched whole, one after the other.

It starts several times: by what data-parallel ranks share out, without recompute and with it. Of each start the first part
is what is stated, the second has every size with the plainest pipelines and switches. Each further part
holds what the best so far has of some axes and frees the others (block coordinate descent: Bertsekas, *Nonlinear
Programming*, 2.7), until no part has anything better. That is no proof; the search of the whole space, which follows, is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from projector.search.axes import Axis, Option
from projector.search.hunt import Hunt, Outcome
from projector.search.nodes import Counts, Hit
from projector.search.space import PIPELINE, Space

_SHARDING = "data_parallel_sharding"
#: What puts something into the memory of the host.
_HOST = ("optimizer_cpu_offload", "offload_modules", "cpu_offloading_num_layers")
#: Values of the plain part, where an axis has them; of a size or switch that is not named here all options are in.
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
_KEPT: Option = {"recompute_granularity": "none"}
#: What a part frees around the best so far, in turn; ``near``: half and twice each of its sizes.
_FREED = (("layers", "once"), ("pipelines", "layers"), ("near", "pipelines"), ("sizes", "pipelines"))
_SIZES = ("tp", "cp", "ep", "etp", "pp")
_CHUNKS = (1, 2, 4)
_TOKENS = (
    8192  # of a sample that one rank holds at most in the first look at it, where context parallelism can split it
)


def opened(space: Space, hunted: Callable[[Space, Sequence[Hit]], Hunt], spent: Callable[[], bool]) -> Outcome | None:
    """Hunts through the parts of every start until nothing better is found or ``spent`` says that time is over. None where
    nothing fits. ``hunted`` runs a hunt from hits that are known."""
    counts = Counts()
    hits: list[Hit] = []
    for start, known in _starts(space, hits):
        own = list(known)
        stale = 0
        for part in _parts(start, own):
            if (own or hits) and (spent() or stale == len(_FREED)):
                break
            before = _best(own)
            last = hunted(part, own)
            counts, own[:] = counts + last.counts, last.hits
            stale = stale + 1 if before and _best(own) == before else 1
        hits += own
    return Outcome(hits=hits, counts=replace(counts, points=space.points)) if hits else None


def _starts(space: Space, hits: Sequence[Hit]) -> Iterator[tuple[Space, Sequence[Hit]]]:
    """Parts to descend in, with what each begins with: by what data-parallel ranks share out, without recompute and with
    it; then all of ``space`` from the best that these found. Good layouts of one kind are no neighbours of another's, so no
    descent leads from one to the other: weights that are gathered want few ranks in a layer, weights that stay want many;
    without recompute the ranks of a layer make room for activations."""
    axis = next((axis for axis in space.layers if any(_SHARDING in option for option in axis)), ())
    plain = [option for option in axis if option[_SHARDING] in _PLAIN[_SHARDING]] if len(axis) > 1 else []
    parts = [_only(space, option) for option in plain] or [space]
    parts = [each for part in parts for each in (_only(part, _KEPT), part) if each is part or each != part]
    yield from ((part, ()) for part in parts)
    if len(parts) > 1:
        yield space, hits


def _only(space: Space, option: Option) -> Space:
    """The part of ``space`` whose layers have the values of ``option``."""
    return replace(space, layers=_of(space.layers, {name: (value,) for name, value in option.items()}))


def _best(hits: Sequence[Hit]) -> Option | None:
    """What the best sets."""
    return min(hits, key=lambda hit: hit.value).fields if hits else None


def _parts(space: Space, hits: Sequence[Hit]) -> Iterator[Space]:
    """``hits`` grow while the parts are searched."""
    if not hits:
        yield from _plain_parts(space, hits)
    while hits:
        for free in _FREED:
            yield around(space, _best(hits) or {}, free)


def _plain_parts(space: Space, hits: Sequence[Hit]) -> Iterator[Space]:
    plain = _plain(space)
    yield around(space, space.stated, ())
    yield _glance(plain)
    if not hits:
        yield plain
    if not hits and any(name in option for axis in space.layers for option in axis for name in _HOST):
        yield replace(plain, layers=space.layers)  # what saves memory and is not plain


def _glance(plain: Space) -> Space:
    """Of the plain part few numbers of chunks, and no more context parallelism than long samples need."""
    least = max(1, -(-plain.base.recipe.seq_length // _TOKENS))
    few = {"cp": tuple(range(1, least + 1))}
    return replace(plain, sizes=_of(plain.sizes, few), only={"vpp": _CHUNKS, **plain.only})


def _plain(space: Space) -> Space:
    micro = min(option["micro_batch_size"] for axis in space.sizes for option in axis if "micro_batch_size" in option)
    wanted = {**_PLAIN, "micro_batch_size": (micro,)}
    return replace(
        space,
        sizes=_of(space.sizes, wanted),
        layers=_of(space.layers, wanted),
        once=_of(space.once, wanted),
        only={"pipeline_schedule": _PLAIN["pipeline_schedule"], **space.only},
    )


def around(space: Space, best: Option, free: tuple[str, ...]) -> Space:
    """The part of ``space`` that has all options of the axes ``free``, and of the others those of ``best``. The micro-batch
    is always free."""
    held: dict[str, tuple[Any, ...]] = {name: (value,) for name, value in best.items()}
    sizes = {name: values for name, values in held.items() if name != "micro_batch_size"}
    if "near" in free:
        sizes |= {name: (best[name] // 2, best[name], 2 * best[name]) for name in _SIZES if name in best}
    return replace(
        space,
        sizes=space.sizes if "sizes" in free else _of(space.sizes, sizes),
        layers=space.layers if "layers" in free else _of(space.layers, held),
        once=space.once if "once" in free else _of(space.once, held),
        only=space.only
        if "pipelines" in free
        else {**space.only, **{name: (best.get(name, getattr(space.base.recipe, name)),) for name in PIPELINE}},
    )


def _of(axes: tuple[Axis, ...], wanted: Mapping[str, tuple[Any, ...]]) -> tuple[Axis, ...]:
    """Of each axis the options whose fields have wanted values; all where none has."""
    return tuple(
        tuple(option for option in axis if all(v in wanted.get(name, (v,)) for name, v in option.items())) or axis
        for axis in axes
    )
