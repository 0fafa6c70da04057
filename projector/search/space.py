"""The configurations that a search looks through: axes of recipe fields, each a list of options that are set together.

Four kinds of axes, in the order in which a search decides them: the sizes of the parallel groups and the micro-batch;
the pipeline (schedule, chunks, layout), whose options depend on its ranks; what layers see (recompute, precision,
dispatcher, …); and what matters once a step alone (overlaps), which changes neither the memory nor the time of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import MISSING, replace
from functools import cached_property
from itertools import product
from typing import Any

from projector import pipeline
from projector.collectives.placement import ranks_per_node
from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.hardware.types import Cluster, Gpu
from projector.memo import cached_on, evolve
from projector.search import axes as choices
from projector.search.axes import Axis, Option, layouts
from projector.settle import capable, launch
from projector.workload import fast_domain
from projector.workload.field_facts import about_of
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

_GRID = ("tensor_parallel_algorithm", "tp2", "summa_panels")
_SIZES = ("gpus", "tp", "cp", "pp", "ep", "etp", "micro_batch_size", *_GRID)
PIPELINE = (
    *("pipeline_schedule", "vpp", "pipeline_model_parallel_layout", "decoder_first_pipeline_num_layers"),
    *("decoder_last_pipeline_num_layers", "account_for_embedding_in_pipeline_split"),
    "account_for_loss_in_pipeline_split",
)
MOST = 1_000_000  # combinations of switches, which are held in memory
_MOST_CHUNKS = 8
_MICRO = (1, 2, 4, 8)
_SHORTEST = 2048  # tokens of a rank, at least, under context parallelism


@dataclass(frozen=True, kw_only=True)
class Space:
    """A product of axes. ``base``: all fields that no axis sets; ``sizes``, ``layers``, ``per_step``: axes;
    ``pipelines(pp)``: the options of the pipeline with ``pp`` ranks. ``only``: values to which the user holds fields of
    several-field axes. ``stated``: the fields of the workload around which the space was made, one of its
    configurations or none. ``share``: (i, n): only the sizes of the i-th of n pieces."""

    base: Workload
    sizes: tuple[Axis, ...]
    layers: tuple[Axis, ...]
    per_step: tuple[Axis, ...]
    only: Mapping[str, tuple[Any, ...]]
    stated: Option
    share: tuple[int, int] = (0, 1)

    def pieces(self, most: int) -> tuple[Space, ...]:
        """Returns the space in at most ``most`` pieces, of which no two have a layer with the same sizes on a rank."""
        number = min(most, len({_sizes_on_a_rank(shape) for shape in self.shapes()}))
        return tuple(replace(self, share=(i, number)) for i in range(number)) if number > 1 else (self,)

    @cached_property
    def layer_options(self) -> Axis:
        return tuple(_joined(self.layers))

    @cached_property
    def step_options(self) -> Axis:
        return tuple(_joined(self.per_step))

    def shapes(self) -> Iterator[Option]:
        """Yields the sizes lazily; whether they divide what they must is not checked here."""
        mine, pieces = self.share
        ranks: dict[Hashable, int] = {}
        for shape in _joined(self.sizes):
            turn, place = divmod(ranks.setdefault(_sizes_on_a_rank(shape), len(ranks)), pieces)
            if mine == (pieces - 1 - place if turn % 2 else place):  # back and forth: no piece gets all large sizes
                yield shape

    @cached_on(0)
    def pipelines(self, pp: int) -> Axis:
        """Returns the options of schedules, chunks and layouts of ``pp`` ranks."""
        options = list(_pipelines(self.base, pp, self.only.get("vpp")))
        stated = {name: self.stated[name] for name in PIPELINE if self.stated[name] not in (None, False)}
        if pp == self.stated["pp"] > 1 and stated not in options:
            options.append(stated)
        held = {name: values for name, values in self.only.items() if name in PIPELINE}
        return tuple(
            option
            for option in options
            if all(option.get(name, getattr(self.base.recipe, name)) in values for name, values in held.items())
        )

    @cached_property
    def points(self) -> int:
        """Returns how many combinations there are before any rule."""
        return (
            sum(len(self.pipelines(shape["pp"])) for shape in self.shapes())
            * len(self.layer_options)
            * len(self.step_options)
        )

    def axes(self) -> Mapping[str, tuple[Any, ...]]:
        """Returns the values of every field that has more than one."""
        values_of: dict[str, tuple[Any, ...]] = {}
        for axis in (*self.sizes, *self.layers, *self.per_step):
            for name in dict.fromkeys(name for option in axis for name in option):
                values = tuple(dict.fromkeys(option.get(name) for option in axis))
                if len(values) > 1:
                    values_of[name] = values
        return values_of


def searched(base: Workload) -> frozenset[str]:
    """Returns the fields that a space around ``base`` sets without a request."""
    every = (*choices.layers(base), *choices.per_step(base))
    return frozenset((*_SIZES, *PIPELINE, *(name for axis in every for option in axis for name in option)))


def with_fields(base: Workload, fields: Option) -> Workload:
    """Returns ``base`` with these recipe fields (and ``gpus``)."""
    recipe = {name: value for name, value in fields.items() if name != "gpus"}
    return evolve(base, gpus=fields.get("gpus", base.gpus), recipe=evolve(base.recipe, **recipe))


def _sizes_on_a_rank(shape: Option) -> Hashable:
    """Returns the sizes that the layers of a rank see, however many layers there are."""
    return tuple(value for name, value in shape.items() if name not in ("gpus", "pp"))


def _joined(axes: Sequence[Axis]) -> Iterator[Option]:
    for options in product(*axes):
        joined: dict[str, Any] = {}
        for option in options:
            joined.update(option)
        yield joined


def space(
    base: Workload,
    cluster: Cluster,
    *,
    only: Mapping[str, Sequence[Any]] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    gpus: Sequence[int] = (),
) -> Space:
    """Returns the space around ``base``, whose own values are among the options of what is searched.

    ``only``: values to which fields are held; ``vary``: further fields, with their values, or names of
    :data:`projector.search.axes.GROUPS` with none. ``gpus``: numbers of GPUs (default: that of ``base``). Raises
    :class:`InputError` for a field that is held to values that no option has.
    """
    held = {name: tuple(values) for name, values in (only or {}).items()}
    more = {name: tuple(values) for name, values in (vary or {}).items()}
    asked = [(name, value) for name, values in (*held.items(), *more.items()) for value in values]
    if beyond := [problem for name, value in asked for problem in capable.field_problems(cluster.gpu, {name: value})]:
        raise InputError(beyond)
    numbers = tuple(gpus) or (base.gpus,)
    if more.get("fast_domain") == ("any",):
        domains = {ranks_per_node(number, cluster) for number in numbers}
        more["fast_domain"] = (None, *(each for domain in sorted(domains) for each in fast_domain.placements(domain)))
    sizes = _sizes(base, cluster, numbers, {**held, **more})
    more, groups = choices.grouped(base, cluster, more)
    layers = [*choices.layers(base), *groups, *_further(more, per_step=False)]
    per_step = [*choices.per_step(base), *_further(more, per_step=True)]
    searched = {name for axis in (*layers, *per_step) for option in axis for name in option} | set(PIPELINE)
    defaults = {name: Recipe.__dataclass_fields__[name].default for name in searched}
    neutral = {
        name: getattr(base.recipe, name) if default is MISSING else default for name, default in defaults.items()
    }
    neutral_base = evolve(base, recipe=evolve(base.recipe, **neutral))
    recipe = base.recipe
    schedule = pipeline.choose(recipe.pipeline_schedule, recipe.pp, recipe.vpp) if recipe.pp > 1 else None
    result = Space(
        base=neutral_base,
        sizes=sizes,
        layers=tuple(_runnable(_held(_with_stated(axis, base), held), cluster.gpu) for axis in layers),
        per_step=tuple(_held(_with_stated(axis, base), held) for axis in per_step),
        only=held,
        stated={name: getattr(base.recipe, name) for name in (*searched, *_SIZES[1:])}
        | {"gpus": base.gpus, "pipeline_schedule": schedule},
    )
    _check(result, held)
    return result


def _runnable(axis: Axis, gpu: Gpu) -> Axis:
    """Returns the options that ``gpu`` can run. Raises :class:`InputError` where there is none."""
    able = tuple(option for option in axis if not capable.field_problems(gpu, option))
    if axis and not able:
        raise InputError(dict.fromkeys(problem for option in axis for problem in capable.field_problems(gpu, option)))
    return able


def _held(axis: Axis, held: Mapping[str, tuple[Any, ...]]) -> Axis:
    """Returns the options whose fields have the values to which they are held; an axis of one field takes these values."""
    names = {name for option in axis for name in option}
    if len(names) == 1 and (name := next(iter(names))) in held:
        return tuple({name: value} for value in held[name])
    return tuple(option for option in axis if all(option[name] in held[name] for name in option if name in held))


def _check(checked: Space, held: Mapping[str, tuple[Any, ...]]) -> None:
    axes = (*checked.sizes, *checked.layers, *checked.per_step)
    known = {name for axis in axes for option in axis for name in option} | set(PIPELINE)
    wrong = [
        Problem("--fix", name, ", ".join(map(str, values)), f"a field that is searched: {', '.join(sorted(known))}")
        for name, values in held.items()
        if name not in known
    ]
    switches = math.prod(map(len, (*checked.layers, *checked.per_step)))
    if switches > MOST:
        wide = sorted(axes, key=len)[-3:]
        most = ", ".join("/".join(dict.fromkeys(name for option in axis for name in option)) for axis in reversed(wide))
        combinations = f"{switches:,} combinations of switches with each layout"
        wrong.append(Problem("--vary", "", combinations, f"at most {MOST:,}: fewer values, above all of {most}"))
    empty = [axis for axis in axes if not axis]
    if empty and not wrong:
        names = [name for name in held if name not in _SIZES and name not in PIPELINE]
        wrong.append(Problem("--fix", ", ".join(names), "no option of the space", "values that some option has"))
    if wrong:
        raise InputError(wrong)


def _with_stated(axis: Axis, base: Workload) -> Axis:
    """Returns the axis with what the base states of its fields, where that is another option."""
    names = dict.fromkeys(name for option in axis for name in option)
    stated = {name: getattr(base.recipe, name) for name in names}
    if all(value is None for value in stated.values()) or any(
        all(option.get(name) == value for name, value in stated.items() if value is not None) for option in axis
    ):
        return axis
    return (*axis, {name: value for name, value in stated.items() if value is not None})


def _divisors(numbers: Sequence[int], most: int | None = None) -> tuple[int, ...]:
    return tuple(sorted({n for each in numbers for n in range(1, min(each, most or each) + 1) if each % n == 0}))


def _sizes(
    base: Workload, cluster: Cluster, gpus: tuple[int, ...], held: Mapping[str, tuple[Any, ...]]
) -> tuple[Axis, ...]:
    model, recipe = base.model, base.recipe
    moe = model.moe
    heads = tuple(n for n in _divisors(gpus, cluster.gpus_per_node) if model.num_attention_heads % n == 0)
    contexts = tuple(n for n in _divisors(gpus) if n == 1 or recipe.seq_length >= n * _SHORTEST)
    experts = tuple(n for n in _divisors(gpus) if moe is not None and moe.num_experts % n == 0) or (1,)
    tp = held.get("tp", heads)
    values: dict[str, tuple[Any, ...]] = {
        "gpus": gpus,
        **{name: held.get(name, (getattr(recipe, name),)) for name in _GRID},
        "cp": held.get("cp", contexts),
        "ep": held.get("ep", experts),
        "micro_batch_size": held.get("micro_batch_size", tuple(n for n in _MICRO if recipe.global_batch_size % n == 0)),
        "pp": held.get("pp", _divisors(gpus, model.num_layers)),  # last: it changes no layer, so prices are shared
    }
    within = [
        {"tp": size, "etp": inner}
        for size in tp
        for inner in held.get("etp", tuple(dict.fromkeys((1, size))) if moe is not None else (1,))
    ]
    axes = [tuple({name: value} for value in dict.fromkeys(each)) for name, each in values.items()]
    return (axes[0], tuple(within), *axes[1:])


def _pipelines(base: Workload, pp: int, chunks: Sequence[int] | None) -> Iterator[Option]:
    """Yields every schedule of the framework with its numbers of chunks, on every layout of its stages."""
    if pp == 1:
        yield {"pipeline_schedule": None, "vpp": 1}
        return
    most = min(_MOST_CHUNKS, (base.model.num_layers + 2) // pp)
    for name in launch.schedules_of(base.framework, tuned=False):
        schedule = pipeline.generator(name)
        counts = (schedule.chunks,) if schedule.chunks is not None else tuple(chunks or range(2, most + 1))
        for vpp in counts:
            if pp * vpp <= base.model.num_layers + 2 and pipeline.choose(name, pp, vpp) == schedule.name:
                # a schedule of exactly two chunks folds them: the last stage lies on the first rank
                for layout in layouts(base, pp, vpp, v_shaped=schedule.chunks == 2):
                    yield {"pipeline_schedule": name, "vpp": vpp, **layout}


def _further(more: Mapping[str, tuple[Any, ...]], *, per_step: bool) -> Iterator[Axis]:
    declared = about_of(Recipe)
    for name, values in more.items():
        alone = declared[name].affects == {"step"} and name != "fast_domain"  # which changes seconds of layers
        if name not in _SIZES and name not in PIPELINE and alone is per_step:
            yield tuple({name: value} for value in values)
