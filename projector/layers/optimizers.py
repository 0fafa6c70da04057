"""The states that an optimizer keeps of a weight and the passes of its step, by update rules of ``optimizers.yaml``.

Memory folds over the states, time over the passes. A kernel that fuses a rule reads and writes everything once; a rule
in plain tensor operations makes a pass for each, one after the other, unless a compiler joins them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from projector.dataclass import dataclass
from projector.io.files import read_yaml
from projector.operators.rank import WIDTH
from projector.operators.weights import Weight, WeightSet
from projector.size import least
from projector.workload.recipe import Recipe

MUON = ("muon", "dist_muon")
MATRICES = ("linear", "router")
"""Weights that Muon makes orthogonal: matrices but embeddings and output (Megatron-LM core/optimizer/
emerging_optimizers.py, ``_is_nonlinear_or_embedding``)."""


_FACTOR_FROM = 128  # shorter sides are not factored (optax/_src/factorized.py, min_dim_size_to_factor)
_NARROW_FROM = 4096  # smaller tensors keep fp32 states (bitsandbytes@95f9af30 optim/optimizer.py, min_8bit_size)
# elements that share an fp32 scale (bitsandbytes optimizer.py; pytorch/ao@36027d82d optim)
_BLOCK_8, _BLOCK_4 = (256, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A tensor kept for each weight. ``width``: bytes of an element with its share of a scale; ``stated``: the recipe
    field that may state another type; ``factored``: row and column sums instead; ``narrow``: quantised by blocks, small
    ones in fp32."""

    name: str
    width: float = 4.0
    stated: str = ""
    factored: bool = False
    narrow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass over the elements: (times read, times written) of gradient, weight and states, and (bytes read, bytes
    written) of scratch tensors that live only in the step."""

    name: str
    gradient: tuple[int, int] = (0, 0)
    weight: tuple[int, int] = (0, 0)
    state: tuple[int, int] = (0, 0)
    scratch: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An update rule. ``compiled``: the passes where a compiler joins tensor operations (empty: as ``eager``).
    ``each_tensor``: kernels are launched for each tensor, not for thousands at a time. ``rest``: rule of the weights
    outside :data:`MATRICES`, which are updated whole. ``scratch``: bytes of an element that live in an eager step."""

    states: tuple[State, ...]
    eager: tuple[Pass, ...]
    compiled: tuple[Pass, ...] = ()
    each_tensor: bool = False
    rest: str = ""
    scratch: float = 0.0

    def passes(self, compiled: bool) -> tuple[Pass, ...]:
        return self.compiled if compiled and self.compiled else self.eager


#: States by their names in ``optimizers.yaml``.
_STATES: Mapping[str, State] = {
    "exp_avg": State(name="exp_avg", stated="exp_avg_dtype"),
    "exp_avg_sq": State(name="exp_avg_sq", stated="exp_avg_sq_dtype"),
    "momentum_buffer": State(name="momentum_buffer", stated="exp_avg_dtype"),
    "exp_avg_sq factored": State(name="exp_avg_sq", factored=True),
    "z": State(name="z"),
    **{
        f"{name} {bits} bit": State(name=name, width=bits / 8.0 + 4.0 / block, narrow=True)
        for name in ("exp_avg", "exp_avg_sq")
        for bits, block in ((8, _BLOCK_8), (4, _BLOCK_4))
    },
}


def _passes(spec: str | Mapping[str, Mapping[str, list[float]]]) -> tuple[Pass, ...]:
    if isinstance(spec, str):
        return (Pass(name=spec, gradient=(1, 0), weight=(1, 1), state=(1, 1)),)
    pairs = ((name, {field: tuple(times) for field, times in fields.items()}) for name, fields in spec.items())
    return tuple(Pass(name=name, **fields) for name, fields in pairs)  # type: ignore[arg-type]


def _rule(states: list[str], eager: Any, compiled: Any = MappingProxyType({}), **more: Any) -> Rule:
    return Rule(
        states=tuple(_STATES[each] for each in states), eager=_passes(eager), compiled=_passes(compiled), **more
    )


_NAMED_RULES = {name: _rule(**spec) for name, spec in read_yaml(Path(__file__).with_suffix(".yaml")).items()}
_SYNONYMS = {"adamw": "adam", "adam_fp8": "adam_8bit", "dist_muon": "muon"}
RULES = MappingProxyType({**_NAMED_RULES, **{name: _NAMED_RULES[other] for name, other in _SYNONYMS.items()}})


def kind(recipe: Recipe) -> Rule:
    """Returns the update rule of a recipe (Adam where it names none)."""
    return RULES[recipe.optimizer or "adam"]


def by_rule(recipe: Recipe, weights: WeightSet) -> Iterator[tuple[Rule, WeightSet]]:
    """Yields the rules of a run with the weights that each updates."""
    rule = kind(recipe)
    if not rule.rest:
        yield rule, weights
        return
    matrices = weights.only(*MATRICES)
    yield rule, matrices
    yield (
        RULES[rule.rest],
        WeightSet({weight: n for weight, n in weights.weights.items() if weight not in matrices.weights}),
    )


def moments(recipe: Recipe, rule: Rule, weights: WeightSet, dense: int, expert: int) -> float:
    """Returns the bytes of the states that one rank keeps of ``weights``, shared by ``dense`` and ``expert`` ranks."""
    elements = weights.dense / dense + weights.expert / expert
    return sum(
        sum(
            n * _shaped_bytes(state, weight, expert if weight.expert else dense)
            for weight, n in weights.weights.items()
        )
        if state.factored or state.narrow
        else state_width(recipe, state) * elements
        for state in rule.states
    )


def _shaped_bytes(state: State, weight: Weight, ranks: int) -> float:
    """Returns the bytes of a state of one weight on each of ``ranks`` that cut its rows, where its shape matters."""
    elements = weight.elements / ranks
    if not state.factored:
        return (4.0 if elements < _NARROW_FROM else state.width) * elements
    if least(weight.rows, weight.columns) < _FACTOR_FROM:
        return state.width * elements
    return state.width * weight.count * (weight.rows / ranks + weight.columns)


def scratch(recipe: Recipe, weights: WeightSet, dense: int, expert: int, bf16_moments: bool = True) -> float:
    """Returns the bytes that an eager step adds while it lasts: states widened and working tensors, of all weights at
    once or of the largest tensor where each has kernels of its own."""
    nbytes = 4.0 * len(widened(recipe, bf16_moments)) * (weights.dense / dense + weights.expert / expert)
    for rule, part in by_rule(recipe, weights):
        if not rule.scratch:
            continue
        sizes = [(w.elements / (1 if rule.rest else expert if w.expert else dense), n) for w, n in part.weights.items()]
        largest = max((size / w.count for (size, _), w in zip(sizes, part.weights, strict=True)), default=0.0)
        nbytes += rule.scratch * (largest if rule.each_tensor else sum(size * n for size, n in sizes))
    return nbytes


def state_width(recipe: Recipe, state: State) -> float:
    """Returns the bytes of a state's element, in the recipe's type (only the precision-aware optimizer reads it)."""
    stated = state.stated and recipe.use_precision_aware_optimizer and getattr(recipe, state.stated)
    return WIDTH[stated] if stated else state.width


def widened(recipe: Recipe, bf16_moments: bool) -> tuple[str, ...]:
    """Returns the types of the stored states that the step copies to fp32 and back, for all weights at once.

    The update kernel reads moments in fp32 or, where ``bf16_moments``, both in bf16; a master in fp16 is copied too
    (NVIDIA/TransformerEngine@d0067d0da pytorch/optimizers/fused_adam.py, ``get_unscaled_state``, ``_apply_scale``).
    """
    if not recipe.use_precision_aware_optimizer or kind(recipe) is not RULES["adam"]:
        return ()
    words = (recipe.exp_avg_dtype or "fp32", recipe.exp_avg_sq_dtype or "fp32")
    kept = () if bf16_moments and words == ("bf16", "bf16") else words
    master = ("fp16",) if recipe.main_params_dtype == "fp16" else ()
    return tuple(word for word in (*kept, *master) if word != "fp32")
