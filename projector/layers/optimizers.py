"""What an optimizer keeps of each weight and what its step reads and writes: the one table of update rules.

Memory folds over the states, time over the passes. A kernel that fuses a rule reads and writes everything once; a rule in
plain tensor operations makes a pass for each, one after the other, unless a compiler joins them.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from projector.dataclass import dataclass
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
    """A tensor kept for each weight. ``width``: bytes of an element, its share of a scale with it; ``stated``: the recipe
    field that may say another type; ``factored``: row and column sums in place of a matrix; ``narrow``: quantised by
    blocks, small tensors in fp32."""

    name: str
    width: float = 4.0
    stated: str = ""
    factored: bool = False
    narrow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass over the elements: (times read, times written) of gradient, weight and states, and (bytes read, bytes
    written) of what lives only in the step."""

    name: str
    gradient: tuple[int, int] = (0, 0)
    weight: tuple[int, int] = (0, 0)
    state: tuple[int, int] = (0, 0)
    scratch: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``compiled``: the passes where a compiler joins tensor operations (empty: as eager). ``each_tensor``: kernels are
    launched for each tensor, not for thousands at a time. ``rest``: rule of the weights outside :data:`MATRICES`, which are
    updated whole. ``scratch``: bytes of an element that live while the eager step works on it."""

    states: tuple[State, ...]
    eager: tuple[Pass, ...]
    compiled: tuple[Pass, ...] = ()
    each_tensor: bool = False
    rest: str = ""
    scratch: float = 0.0

    def passes(self, compiled: bool) -> tuple[Pass, ...]:
        return self.compiled if compiled and self.compiled else self.eager


def _fused(name: str) -> tuple[Pass, ...]:
    return (Pass(name=name, gradient=(1, 0), weight=(1, 1), state=(1, 1)),)


def _adam(first: State, second: State, each_tensor: bool = False) -> Rule:
    return Rule(states=(first, second), eager=_fused("adam"), each_tensor=each_tensor)


def _blocks(name: str, width: float, block: int) -> State:
    return State(name=name, width=width + 4.0 / block, narrow=True)


_FIRST = State(name="exp_avg", stated="exp_avg_dtype")
_SECOND = State(name="exp_avg_sq", stated="exp_avg_sq_dtype")
_ADAM = _adam(_FIRST, _SECOND)  # apex, TransformerEngine and torch (fused=True): one multi-tensor kernel
_LION = Rule(states=(_FIRST,), eager=_fused("lion"))
_ADAM_8BIT = _adam(_blocks("exp_avg", 1.0, _BLOCK_8), _blocks("exp_avg_sq", 1.0, _BLOCK_8), each_tensor=True)

#: pytorch/pytorch@051d6a09 torch/optim/_adafactor.py, Shazeer and Stern (arXiv:1804.04235) without first moment: norm of
#: the weight, row and column norms of the gradient, their product, divided, clamped, its inverse root, times the
#: gradient, its norm, scaled, added.
_ADAFACTOR = Rule(
    states=(State(name="exp_avg_sq", factored=True),),
    eager=(
        Pass(name="weight_norm", weight=(1, 0)),
        Pass(name="decay", weight=(1, 1)),
        Pass(name="rows", gradient=(1, 0), state=(1, 1)),
        Pass(name="columns", gradient=(1, 0)),
        Pass(name="product", scratch=(0.0, 4.0)),
        Pass(name="divide", scratch=(4.0, 4.0)),
        Pass(name="clamp", scratch=(4.0, 4.0)),
        Pass(name="root", scratch=(4.0, 4.0)),
        Pass(name="times_gradient", gradient=(1, 0), scratch=(4.0, 4.0)),
        Pass(name="update_norm", scratch=(4.0, 0.0)),
        Pass(name="scale", scratch=(4.0, 4.0)),
        Pass(name="add", weight=(1, 1), scratch=(4.0, 0.0)),
    ),
    # a reduction ends a fused loop: the sums, the norm of the update, the update itself
    compiled=(
        Pass(name="factors", gradient=(1, 0), weight=(1, 0), state=(1, 1)),
        Pass(name="update_norm", gradient=(1, 0)),
        Pass(name="add", gradient=(1, 0), weight=(1, 1)),
    ),
    each_tensor=True,  # torch's default here, for the sake of memory
    scratch=4.0,
)
#: NVIDIA-NeMo/Emerging-Optimizers@fd77292 orthogonalized_optimizer.py, muon_utils.py: decay, momentum, Nesterov, norm,
#: division, to bf16 and back, scale, add; the products between are :mod:`projector.step.muon`.
_MUON = Rule(
    states=(_FIRST,),
    eager=(
        Pass(name="decay", weight=(1, 1)),
        Pass(name="momentum", gradient=(1, 0), state=(1, 1)),
        Pass(name="nesterov", gradient=(1, 0), state=(1, 0), scratch=(0.0, 4.0)),
        Pass(name="norm", scratch=(4.0, 0.0)),
        Pass(name="normalise", scratch=(4.0, 4.0)),
        Pass(name="to_bf16", scratch=(4.0, 2.0)),
        Pass(name="to_fp32", scratch=(2.0, 4.0)),
        Pass(name="scale", scratch=(4.0, 4.0)),
        Pass(name="add", weight=(1, 1), scratch=(4.0, 0.0)),
    ),
    compiled=(
        Pass(name="momentum", gradient=(1, 0), state=(1, 1), scratch=(0.0, 2.0)),
        Pass(name="normalise", scratch=(2.0, 2.0)),
        Pass(name="add", weight=(1, 1), scratch=(2.0, 0.0)),
    ),
    each_tensor=True,
    rest="adam",
    scratch=8.0,  # Nesterov momentum in fp32, an iterate and the next in bf16
)
#: NVIDIA/apex csrc/multi_tensor_lamb.cu: norms of the weights, the update in the gradient's place, its norms, the step.
_LAMB = Rule(
    states=(_FIRST, _SECOND),
    eager=(
        Pass(name="weight_norm", weight=(1, 0)),
        Pass(name="update", gradient=(1, 1), weight=(1, 0), state=(1, 1)),
        Pass(name="update_norm", gradient=(1, 0)),
        Pass(name="add", gradient=(1, 0), weight=(1, 1)),
    ),
)
#: facebookresearch/schedule_free@00835729 adamw_schedulefree.py, ten torch._foreach operations; z and second moment.
_SCHEDULE_FREE = Rule(
    states=(State(name="z"), _SECOND),
    eager=(
        Pass(name="second_moment_decay", scratch=(4.0, 4.0)),
        Pass(name="second_moment", gradient=(1, 0), scratch=(4.0, 4.0)),
        Pass(name="root", scratch=(4.0, 4.0)),
        Pass(name="epsilon", scratch=(4.0, 4.0)),
        Pass(name="divide", gradient=(1, 1), scratch=(4.0, 0.0)),
        Pass(name="decay", gradient=(1, 1), weight=(1, 0)),
        Pass(name="average", weight=(1, 1), scratch=(4.0, 0.0)),
        Pass(name="add", gradient=(1, 0), weight=(1, 1)),
        Pass(name="z", gradient=(1, 0), scratch=(4.0, 4.0)),
    ),
    compiled=_fused("schedule_free"),
    scratch=4.0,
)

RULES = MappingProxyType(
    {
        "adam": _ADAM,
        "adamw": _ADAM,
        # one kernel a tensor, states dequantised and quantised in it (bitsandbytes optim/optimizer.py,
        # optimizer_update_8bit_blockwise; pytorch/ao optim/adam.py, compiled)
        "adam_8bit": _ADAM_8BIT,
        "adam_fp8": _ADAM_8BIT,
        "adam_4bit": _adam(_blocks("exp_avg", 0.5, _BLOCK_4), _blocks("exp_avg_sq", 0.5, _BLOCK_4), each_tensor=True),
        "sgd": Rule(states=(State(name="momentum_buffer", stated="exp_avg_dtype"),), eager=_fused("sgd")),
        "sgd_no_momentum": Rule(states=(), eager=_fused("sgd")),
        "lion": _LION,
        "lion_8bit": Rule(states=(_blocks("exp_avg", 1.0, _BLOCK_8),), eager=_fused("lion"), each_tensor=True),
        "adafactor": _ADAFACTOR,
        "lamb": _LAMB,
        "schedule_free_adamw": _SCHEDULE_FREE,
        "muon": _MUON,
        "dist_muon": _MUON,
    }
)


def kind(recipe: Recipe) -> Rule:
    """The update rule of a recipe (Adam where it names none)."""
    return RULES[recipe.optimizer or "adam"]


def divided(recipe: Recipe, weights: WeightSet) -> Iterator[tuple[Rule, WeightSet]]:
    """The rules of a run with the weights that each updates."""
    rule = kind(recipe)
    if not rule.rest:
        yield rule, weights
        return
    matrices = weights.only(*MATRICES)
    yield rule, matrices
    yield RULES[rule.rest], WeightSet({each: n for each, n in weights.weights.items() if each not in matrices.weights})


def moments(recipe: Recipe, rule: Rule, weights: WeightSet, dense: int, expert: int) -> float:
    """Returns the bytes of the states that one rank keeps of ``weights``, shared by ``dense`` and ``expert`` ranks."""
    own = weights.dense / dense + weights.expert / expert
    return sum(
        sum(n * _bytes(state, weight, expert if weight.expert else dense) for weight, n in weights.weights.items())
        if state.factored or state.narrow
        else state_width(recipe, state) * own
        for state in rule.states
    )


def _bytes(state: State, weight: Weight, ranks: int) -> float:
    """Bytes of one state of one weight on each of ``ranks`` that cut its rows, where they depend on its shape."""
    own = weight.elements / ranks
    if not state.factored:
        return (4.0 if own < _NARROW_FROM else state.width) * own
    if least(weight.rows, weight.columns) < _FACTOR_FROM:
        return state.width * own
    return state.width * weight.count * (weight.rows / ranks + weight.columns)


def scratch(recipe: Recipe, weights: WeightSet, dense: int, expert: int, bf16_moments: bool = True) -> float:
    """Returns the bytes that an eager step adds while it lasts: states widened and working tensors, of all weights at
    once or of the largest tensor where each has kernels of its own."""
    found = 4.0 * len(widened(recipe, bf16_moments)) * (weights.dense / dense + weights.expert / expert)
    for rule, part in divided(recipe, weights):
        if not rule.scratch:
            continue
        each = [(w.elements / (1 if rule.rest else expert if w.expert else dense), n) for w, n in part.weights.items()]
        most = max((size / w.count for (size, _), w in zip(each, part.weights, strict=True)), default=0.0)
        found += rule.scratch * (most if rule.each_tensor else sum(size * n for size, n in each))
    return found


def state_width(recipe: Recipe, state: State) -> float:
    """Returns the bytes of an element of a state, in the type that the recipe states (read by the precision-aware
    optimizer alone)."""
    stated = state.stated and recipe.use_precision_aware_optimizer and getattr(recipe, state.stated)
    return WIDTH[stated] if stated else state.width


def widened(recipe: Recipe, bf16_moments: bool) -> tuple[str, ...]:
    """Types of the stored states that the step copies to fp32 and back, for all weights at once.

    The update kernel reads moments in fp32 or, where ``bf16_moments``, both in bf16; a master in fp16 is copied too
    (NVIDIA/TransformerEngine@d0067d0da pytorch/optimizers/fused_adam.py, ``get_unscaled_state``, ``_apply_scale``).
    """
    if not recipe.use_precision_aware_optimizer or kind(recipe) is not _ADAM:
        return ()
    words = (recipe.exp_avg_dtype or "fp32", recipe.exp_avg_sq_dtype or "fp32")
    kept = () if bf16_moments and words == ("bf16", "bf16") else words
    master = ("fp16",) if recipe.main_params_dtype == "fp16" else ()
    return tuple(word for word in (*kept, *master) if word != "fp32")
