"""The valid configurations of a space, and how many of its combinations each rule refuses.

Every rule is asked once for all configurations that do not differ in what it reads. A rule about switches gives a mask
over the options of the layers (or of what is done once a step), kept by the values of the sizes that the rule reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import field
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.frameworks.resolve import EXCHANGE
from projector.memo import evolve
from projector.search.axes import Option
from projector.search.nodes import LAYOUT
from projector.search.space import Space, with_fields
from projector.settle import arguments, launch
from projector.settle.capable import OFFLOADS
from projector.workload.workload import Workload

_Bools = NDArray[np.bool_]
#: Sizes that the checks of a workload read beside switches, once all sizes divide what they must.
_READ = ("tp", "cp")
#: Switches of gradients and weights of data-parallel ranks.
_REDUCED = ("data_parallel_sharding", "overlap_grad_reduce", "overlap_param_gather")


@dataclass(frozen=True, slots=True)
class Branch:
    """A valid shape with a valid pipeline (numbers of options), and the options of the layers that go with them:
    ``layers`` has their numbers, ``step_options`` for each of them the numbers of the options once a step."""

    shape: int
    pipe: int
    layers: tuple[int, ...]
    step_options: tuple[tuple[int, ...], ...]


@dataclass
class Tree:
    """Enumerates the valid configurations of ``space`` lazily. ``refused``: how many combinations, by (field, what its
    rule expects); ``shapes``: the valid sizes so far; ``accumulates``: whether a step with them has several
    micro-batches."""

    space: Space
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    shapes: list[Option] = field(default_factory=list)
    accumulates: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        space = self.space
        rules = launch.rules_of(space.base.framework)
        layers, step_fields = (
            {name for options in axes for option in options for name in option}
            for axes in (space.layers, space.per_step)
        )
        last = [rule for rule in rules if step_fields & set(rule.reads)]
        middle = [rule for rule in rules if rule not in last and layers & set(rule.reads)]
        self._shape_rules = [rule for rule in rules if set(rule.reads) <= set(LAYOUT) - {"vpp"}]
        self._pipe_rules = [rule for rule in rules if rule not in (*last, *middle, *self._shape_rules)]
        self._layer_masks = [_Mask(space.layer_options, rule.problems, rule.reads, layers) for rule in middle]
        self._layer_masks.append(_Mask(space.layer_options, arguments.workload_problems, _READ, set()))
        self._step_rules = last
        self._step_reads = tuple(sorted({name for rule in last for name in rule.reads} - step_fields))
        outside = [
            {name: option.get(name) for name in self._step_reads if name in layers} for option in space.layer_options
        ]
        self._kinds = [tuple(each.values()) for each in outside]
        self._pipes: dict[Hashable, tuple[int, ...]] = {}
        self._switches: dict[Hashable, tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]] = {}
        self._step_options: dict[Hashable, tuple[int, ...]] = {}
        self._plain = any(option.get("data_parallel_sharding") == "no_shard" for option in space.layer_options)
        self._ineffective: list[frozenset[str]] = []  # for each valid shape

    def fields(self, shape: int, pipe: int, layer: int, step: int) -> dict[str, Any]:
        """Returns the fields that a configuration sets, by the numbers of its options, without switches of groups of
        one rank."""
        sizes, space = self.shapes[shape], self.space
        piped = space.pipelines(sizes["pp"])[pipe]
        fields = {**sizes, **piped, **space.layer_options[layer], **space.step_options[step]}
        ineffective = self._ineffective[shape]
        precise = fields.get("use_precision_aware_optimizer", space.base.recipe.use_precision_aware_optimizer)
        if precise or self._meant_alone(fields):  # such an optimizer asks for sharding
            ineffective -= {"data_parallel_sharding"}
        return {name: value for name, value in fields.items() if name not in ineffective} if ineffective else fields

    def _meant_alone(self, fields: Option) -> bool:
        """Returns whether FSDP, which runs otherwise even on one rank, may be meant there: what leaves the device goes by
        it, or no option is without it."""
        if not str(fields.get("data_parallel_sharding")).startswith("optim_"):
            return False
        return not self._plain or any(fields.get(name, getattr(self.space.base.recipe, name)) for name in OFFLOADS)

    def branches(self) -> Iterator[Branch]:
        """Yields every valid shape and pipeline that has a valid configuration."""
        space = self.space
        step_count, layer_count = len(space.step_options), len(space.layer_options)
        for shape in space.shapes():
            pipes = space.pipelines(shape["pp"])
            load = with_fields(space.base, shape)
            wrong = _size_problems(load) or launch.problems(load, self._shape_rules)
            if wrong:
                key, expected = wrong[0].key.removeprefix("recipe."), wrong[0].expected.split(" = ")[0]
                self.refused[key, expected] += len(pipes) * layer_count * step_count
                continue
            self.shapes.append(shape)
            self.accumulates.append(load.num_microbatches > 1)
            self._ineffective.append(_ineffective(load))
            valid = self._valid_pipes(load)
            self.refused["pipeline_schedule", "a schedule and a layout for these sizes"] += (
                (len(pipes) - len(valid)) * layer_count * step_count
            )
            for pipe in valid:
                layers, steps = self._valid_switches(with_fields(load, pipes[pipe]))
                self.refused["layers", "switches that go together"] += (layer_count - len(layers)) * step_count
                self.refused["overlaps", "switches that go together"] += step_count * len(layers) - sum(map(len, steps))
                if layers:
                    yield Branch(len(self.shapes) - 1, pipe, layers, steps)

    def _valid_pipes(self, load: Workload) -> tuple[int, ...]:
        key = load.recipe.pp, load.num_microbatches
        valid = self._pipes.get(key)
        if valid is None:
            options = enumerate(self.space.pipelines(load.recipe.pp))
            workloads = ((number, with_fields(load, option)) for number, option in options)
            valid = self._pipes[key] = tuple(
                number
                for number, piped in workloads
                if not arguments.workload_problems(piped) and not launch.problems(piped, self._pipe_rules)
            )
        return valid

    def _valid_switches(self, piped: Workload) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """Returns the numbers of the valid options of the layers, and for each those of the options once a step."""
        masks = [mask.of(piped) for mask in self._layer_masks]
        key = tuple(id(mask) for mask in masks), self._outside(piped)
        valid_switches = self._switches.get(key)
        if valid_switches is None:
            valid = np.flatnonzero(np.logical_and.reduce(masks)).tolist()
            options = [(layer, self._valid_steps(piped, layer)) for layer in valid]
            pairs = [(layer, each) for layer, each in options if each]
            valid_switches = self._switches[key] = tuple(layer for layer, _ in pairs), tuple(each for _, each in pairs)
        return valid_switches

    def _outside(self, piped: Workload) -> Hashable:
        return tuple(getattr(piped.recipe, name) for name in self._step_reads if name != "microbatches")

    def _valid_steps(self, piped: Workload, layer: int) -> tuple[int, ...]:
        key = self._outside(piped), self._kinds[layer]
        valid = self._step_options.get(key)
        if valid is None:
            load = with_fields(piped, self.space.layer_options[layer])
            workloads = ((number, with_fields(load, option)) for number, option in enumerate(self.space.step_options))
            valid = tuple(number for number, each in workloads if not launch.problems(each, self._step_rules))
            self._step_options[key] = valid
        return valid

    def empty(self) -> InputError:
        """Returns the error of a space without a valid configuration: the rules that refuse most of it, or, where sizes
        are left to which only the batch does not go, the nearest batch that goes to all of them."""
        base, batch = self.space.base, self.space.base.recipe.global_batch_size
        if (rule := ("global_batch_size", "a multiple of micro_batch_size · dp")) in self.refused:
            each = base.gpus * min(self.space.only.get("micro_batch_size", (1,)))
            expected = f"{rule[1]} in some layout of {base.gpus} GPUs, such as {max(1, round(batch / each)) * each}"
            return InputError([Problem("the space", rule[0], batch, expected)])
        held = ", ".join(f"{name} = {'/'.join(map(str, values))}" for name, values in self.space.only.items())
        most = [
            Problem("the space", key, f"{number:,} combinations", f"{text}{held and f', with {held}'}")
            for (key, text), number in self.refused.most_common(3)
            if number
        ]  # none: no pipeline option has the held values
        return InputError(
            most or [Problem("the space", held, "no combination", "a schedule that has all of these together")]
        )


class _Mask:
    """A rule's answers for all ``options``, kept by the values that the rule reads outside them."""

    def __init__(
        self, options: Sequence[Option], refuses: Callable[[Workload], object], reads: Iterable[str], inside: set[str]
    ) -> None:
        self._options, self._refuses = options, refuses
        outside = sorted(set(reads) - inside - {"microbatches", "gpus"})
        self._filled = "microbatches" in reads
        self._read: Any = attrgetter(*outside) if outside else lambda _: ()
        self._known: dict[Hashable, _Bools] = {}

    def of(self, load: Workload) -> _Bools:
        key = self._read(load.recipe), load.num_microbatches if self._filled else 0
        mask = self._known.get(key)
        if mask is None:
            mask = np.array([not self._refuses(with_fields(load, option)) for option in self._options], np.bool_)
            self._known[key] = mask
        return mask


def _size_problems(load: Workload) -> list[Problem]:
    """Returns what is wrong with the sizes of ``load``, however the layers are put on stages."""
    recipe = load.recipe
    if load.gpus % recipe.replica_ranks:
        return [Problem("", "gpus", load.gpus, "a multiple of tp · pp · cp")]
    return arguments.workload_problems(evolve(load, recipe=evolve(recipe, allow_uneven_pipeline_split=True)))


def _ineffective(load: Workload) -> frozenset[str]:
    """Returns the switches without effect because their group has one rank with the sizes of ``load``."""
    exchange = load.model.moe is not None and load.recipe.ep * load.recipe.etp == 1
    return frozenset((*(_REDUCED if load.alone else ()), *(EXCHANGE if exchange else ())))
