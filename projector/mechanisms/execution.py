"""The execution of a workload by a framework: one strategy of every mechanism."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from projector.dataclass import dataclass
from projector.errors import Problem, Unsupported, nearest
from projector.mechanisms import single
from projector.mechanisms.allocator import Allocator, Caching
from projector.mechanisms.data_parallel.base import DataParallel
from projector.mechanisms.data_parallel.ddp import DDP
from projector.mechanisms.data_parallel.degree import of_degree
from projector.mechanisms.dispatch.alltoall import AllToAll
from projector.mechanisms.dispatch.base import Dispatch
from projector.mechanisms.dispatch.einsum import Einsum
from projector.mechanisms.fusion import Fusion, TransformerEngine
from projector.mechanisms.runtime import Eager, Runtime
from projector.mechanisms.single import Adapters, Kernels, PipelineEngine, Recompute
from projector.mechanisms.strategy import STRATEGY, Strategy, mistakes, strategies_in
from projector.mechanisms.tensor_parallel import AutogradFunctions, TensorParallel
from projector.memo import HashedOnce
from projector.operators.types import Operator
from projector.workload.recipe import Recipe

Stated = Mapping[str, Mapping[str, Any]]
"""The name (``strategy``) and parameters of a strategy, by mechanism."""


@dataclass(frozen=True, kw_only=True)
class Execution(HashedOnce):
    """How one framework (one release range of it) runs on one GPU vendor's stack; by default as Megatron-Core does."""

    kernels: Kernels = Kernels()
    fusion: Fusion = TransformerEngine()
    tensor_parallel: TensorParallel = AutogradFunctions()
    dispatch: Dispatch = AllToAll()
    data_parallel: DataParallel = DDP()
    pipeline: PipelineEngine = PipelineEngine()
    recompute: Recompute = Recompute()
    adapters: Adapters = Adapters()
    runtime: Runtime = Eager()
    allocator: Allocator = Caching()

    __hash__ = HashedOnce.__hash__

    @classmethod
    def of(cls, **stated: Mapping[str, Any]) -> Execution:
        """Returns the execution that a profile states; :func:`problems` has checked it."""
        return cls().evolve(**stated)

    def evolve(self, **stated: Mapping[str, Any]) -> Execution:
        """Returns this execution with other parameters, or other strategies where ``strategy`` names one (from its
        defaults)."""
        chosen: dict[str, Any] = {place: _chosen(getattr(self, place), place, how) for place, how in stated.items()}
        return replace(self, **chosen)

    def configured_by(self, recipe: Recipe) -> Execution:
        """Returns the execution with the parameters and strategies that words of ``recipe`` name."""
        return replace(
            self,
            kernels=self.kernels.configured_by(recipe),
            data_parallel=of_degree(self.data_parallel.configured_by(recipe), recipe.data_parallel_sharding),
            dispatch=of_recipe(self.dispatch, recipe),
            fusion=self.fusion.configured_by(recipe),
            runtime=self.runtime.configured_by(recipe),
            recompute=self.recompute.configured_by(recipe),
            allocator=self.allocator.configured_by(recipe),
        )

    def host_seconds(self, op: Operator) -> float:
        """Returns the host seconds to issue ``op``."""
        return self.runtime.seconds(op)


def _chosen(before: Strategy, place: str, stated: Mapping[str, Any]) -> Strategy:
    parameters = {key: value for key, value in stated.items() if key != STRATEGY}
    if stated.get(STRATEGY, before.name) == before.name:
        return before.evolve(parameters)
    return _kinds(place)[stated[STRATEGY]](**parameters)


def _kinds(place: str) -> Mapping[str, type[Strategy]]:
    """Returns the strategies of a mechanism by name."""
    only = type(getattr(_NEUTRAL, place))
    return {only.name: only} if only.__module__ == single.__name__ else strategies_in(f"projector.mechanisms.{place}")


def merged(base: Stated, more: Stated) -> dict[str, Mapping[str, Any]]:
    """Returns ``base`` with ``more`` over it: parameter by parameter, or afresh where ``more`` names another strategy."""
    whole = dict(base)
    for place, stated in more.items():
        old = base.get(place, {})
        same = stated.get(STRATEGY, old.get(STRATEGY)) == old.get(STRATEGY)
        whole[place] = {**old, **stated} if same else stated
    return whole


def strategies() -> Mapping[str, Mapping[str, type[Strategy]]]:
    """Returns the strategies of every mechanism, by name."""
    return {place: _kinds(place) for place in _PLACES}


_NEUTRAL = Execution()
_PLACES = tuple(field.name for field in fields(Execution))


def problems(where: str, prefix: str, stated: Mapping[str, Any], base: Stated) -> list[Problem]:
    """Returns the mistakes in ``stated`` of a profile, whose strategies are those of ``base`` unless it names others."""
    found: list[Problem] = []
    for place, how in stated.items():
        if place not in _PLACES:
            found.append(Problem(where, f"{prefix}.{place}", place, nearest(place, _PLACES)))
        elif not isinstance(how, Mapping):
            found.append(Problem(where, f"{prefix}.{place}", how, "a mapping of a strategy and its parameters"))
        else:
            name = base.get(place, {}).get(STRATEGY, getattr(_NEUTRAL, place).name)
            found += mistakes(where, f"{prefix}.{place}", _kinds(place), {STRATEGY: name, **how})
    return found


def of_recipe(strategy: Dispatch, recipe: Recipe) -> Dispatch:
    """Returns ``strategy`` where it is the recipe's dispatcher, else the dispatcher of that name, with the same parameters.

    Raises :class:`Unsupported` for an unknown dispatcher.
    """
    word = recipe.moe_token_dispatcher_type or "alltoall"
    if word == "flex":
        word = recipe.moe_flex_dispatcher_backend or "deepep"
    if strategy.masks and recipe.moe_expert_capacity_factor is not None and recipe.moe_pad_expert_input_to_capacity:
        word = Einsum.word
    if strategy.word == word:
        return strategy
    kinds: Any = _kinds("dispatch").values()
    kind: Any = next((each for each in kinds if each.word == word), None)
    if kind is None:
        raise Unsupported(f"token dispatcher {word!r}")
    chosen: Dispatch = kind(**strategy.carried(kind))
    return chosen
