"""The strategy that a recipe's dispatcher runs in a framework."""

from __future__ import annotations

from projector.errors import Unsupported
from projector.mechanisms.dispatch.allgather import AllGather
from projector.mechanisms.dispatch.alltoall import AllToAll
from projector.mechanisms.dispatch.base import Dispatch
from projector.mechanisms.dispatch.deepep import DeepEP
from projector.mechanisms.dispatch.einsum import Einsum
from projector.mechanisms.dispatch.hybridep import HybridEP
from projector.mechanisms.dispatch.mega_moe import MegaMoE
from projector.workload.recipe import Recipe

_KINDS: tuple[type[Dispatch], ...] = (AllGather, AllToAll, DeepEP, HybridEP, MegaMoE, Einsum)


def of_recipe(strategy: Dispatch, recipe: Recipe) -> Dispatch:
    """``strategy`` where it is what a recipe's dispatcher is, else the one of that word, with the same parameters.

    Raises :class:`Unsupported` for a word that is none.
    """
    word = recipe.moe_token_dispatcher_type or "alltoall"
    if word == "flex":
        word = recipe.moe_flex_dispatcher_backend or "deepep"
    if strategy.masks and recipe.moe_expert_capacity_factor is not None and recipe.moe_pad_expert_input_to_capacity:
        word = Einsum.word
    if strategy.word == word:
        return strategy
    kind = next((each for each in _KINDS if each.word == word), None)
    if kind is None:
        raise Unsupported(f"token dispatcher {word!r}")
    return kind(**strategy.carried(kind))
