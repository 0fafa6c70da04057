"""What is wrong with a workload as a whole: numbers out of range, sizes that do not divide, words nobody knows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from operator import attrgetter

from projector.errors import Problem
from projector.io.typed import of_type
from projector.memo import Recent, Same
from projector.workload import layout
from projector.workload.checks import LIMITS, range_problems, unreported, word_problems
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

__all__ = ["known", "problems", "remember", "value_problems"]


def problems(workload: Workload, where: str = "") -> tuple[Problem, ...]:
    """Every mistake of ``workload``. Empty: it can be laid out, though a model may still not support it.

    When types are wrong or numbers out of range only these are listed: what divides what means nothing then.
    """
    found, sound = _of_values(workload, where)
    if sound:
        model = workload.model
        found += _model(model, where)
        found += _divisions(workload, where)
        found += layout.problems(model, workload.recipe, where)
        found += _combinations(workload, where)
    return tuple(found)


def value_problems(workload: Workload, where: str = "") -> tuple[Problem, ...]:
    """Mistakes of single values: types, words, ranges. (Not of what goes together: :func:`problems`.)"""
    return tuple(_of_values(workload, where)[0])


def _of_values(workload: Workload, where: str) -> tuple[list[Problem], bool]:
    """Mistakes of single values, and whether sizes may be set against each other."""
    if known(workload):
        return _gpus(workload.gpus, where), not _gpus(workload.gpus, where)
    types = of_type(workload, Workload, where)
    if types and not (isinstance(getattr(workload, "model", None), Model) and isinstance(workload.recipe, Recipe)):
        return types, False
    model, recipe = workload.model, workload.recipe
    ranges = [*_gpus(workload.gpus, where), *_ranges(model, where, "model."), *_ranges(recipe, where, "recipe.")]
    found = [*types, *unreported(ranges, types), *_words(recipe, where, "recipe."), *_words(model, where, "model.")]
    if not found:
        remember(workload)
    return found, not (types or ranges)


_SIZES = ("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch_size", "global_batch_size", "seq_length")
_sizes = attrgetter(*_SIZES)
_rest = attrgetter(*(f.name for f in fields(Recipe) if f.name not in _SIZES))
_SOUND: Recent[bool] = Recent(4096)
"""Models, and values of recipes without their sizes, of which no single value is wrong. Frozen, so they stay so."""


def known(workload: Workload) -> bool:
    """Whether all single values but the number of GPUs were looked at before: those of a search differ in sizes alone."""
    model, recipe = getattr(workload, "model", None), getattr(workload, "recipe", None)
    if type(workload) is not Workload or type(model) is not Model or type(recipe) is not Recipe:
        return False
    if (
        type(workload.gpus) is not int
        or type(workload.framework) is not str
        or type(workload.framework_date) is not str
    ):
        return False
    if not all(type(size) is int and 1 <= size <= _SMALL for size in _sizes(recipe)):
        return False
    try:
        return Same(model) in _SOUND and _values_of(recipe) in _SOUND
    except TypeError:  # a value without a hash is none that was sound
        return False


_SMALL = 1_000_000  # what every size may be, see LIMITS


def remember(workload: Workload) -> None:
    """That no single value of it is wrong."""
    for key in (Same(workload.model), _values_of(workload.recipe)):
        _SOUND.get(key, lambda: True)


def _values_of(recipe: Recipe) -> tuple[object, ...]:
    """The values with their types: 1, 1.0 and True are equal, but not equally right."""
    rest = _rest(recipe)
    return (*map(type, rest), *rest)


def _words(item: object, where: str, prefix: str) -> list[Problem]:
    return word_problems(_values(item), where, prefix)


def _ranges(item: object, where: str, prefix: str) -> list[Problem]:
    """Of the numbers of ``item`` and of the parts inside it (mla, moe, lora)."""
    values = _values(item)
    nested = {
        name: _values(value) for name, value in values.items() if is_dataclass(value) and not isinstance(value, type)
    }
    return range_problems({**values, **nested}, where, prefix)


def _values(item: object) -> dict[str, object]:
    return {f.name: getattr(item, f.name) for f in fields(item)}  # type: ignore[arg-type]


def _gpus(gpus: int, where: str) -> list[Problem]:
    if type(gpus) is int and 1 <= gpus <= LIMITS["gpus"]:
        return []
    return [Problem(where, "gpus", gpus, f"a whole number from 1 to {LIMITS['gpus']}")]


def _model(model: Model, where: str) -> Iterable[Problem]:
    if model.num_query_groups > model.num_attention_heads or model.num_attention_heads % model.num_query_groups:
        expected = f"a divisor of num_attention_heads = {model.num_attention_heads}"
        yield Problem(where, "model.num_query_groups", model.num_query_groups, expected)
    moe = model.moe
    if moe is None:
        return
    if moe.moe_router_topk > moe.num_experts:
        yield Problem(where, "model.moe.moe_router_topk", moe.moe_router_topk, f"at most {moe.num_experts} experts")
    if len(moe.moe_layer_freq) != model.num_layers or any(freq not in (0, 1) for freq in moe.moe_layer_freq):
        expected = f"one 0 or 1 per layer: {model.num_layers}"
        yield Problem(where, "model.moe.moe_layer_freq", f"{len(moe.moe_layer_freq)} entries", expected)
    if any(moe.moe_layer_freq) and not moe.moe_ffn_hidden_size:
        yield Problem(where, "model.moe.moe_ffn_hidden_size", 0, "the width of one expert")
    if moe.moe_router_num_groups and moe.num_experts % moe.moe_router_num_groups:
        expected = f"a divisor of num_experts = {moe.num_experts}"
        yield Problem(where, "model.moe.moe_router_num_groups", moe.moe_router_num_groups, expected)


def _divisions(workload: Workload, where: str) -> Iterable[Problem]:
    model, recipe, gpus = workload.model, workload.recipe, workload.gpus
    for key, value, name, of in _dividends(workload):
        if of % value:
            yield Problem(where, f"recipe.{key}", value, f"a divisor of {name} = {of}")
    if model.num_query_groups % recipe.tp and recipe.tp % model.num_query_groups:
        expected = f"a divisor or a multiple of num_query_groups = {model.num_query_groups}"
        yield Problem(where, "recipe.tp", recipe.tp, expected)
    size = recipe.tp * recipe.pp * recipe.cp
    if gpus % size:
        yield Problem(where, "gpus", gpus, f"a multiple of tp · pp · cp = {size}")
        return
    if model.moe is not None and gpus % (recipe.etp * recipe.ep * recipe.pp):
        expected = f"a multiple of etp · ep · pp = {recipe.etp * recipe.ep * recipe.pp}"
        yield Problem(where, "gpus", gpus, expected)
    batch = recipe.micro_batch_size * workload.dp
    if recipe.global_batch_size % batch:
        expected = f"a multiple of micro_batch_size · dp = {recipe.micro_batch_size} · {workload.dp} = {batch}"
        yield Problem(where, "recipe.global_batch_size", recipe.global_batch_size, expected)
    shard = recipe.data_parallel_shard_size
    if shard and (workload.dp * recipe.cp) % shard:
        expected = f"a divisor of the {workload.dp * recipe.cp} data-parallel ranks"
        yield Problem(where, "recipe.data_parallel_shard_size", shard, expected)


def _dividends(workload: Workload) -> Iterable[tuple[str, int, str, int]]:
    """(key, divisor, name, dividend): every size of the recipe and what it must divide."""
    model, recipe = workload.model, workload.recipe
    yield "tp", recipe.tp, "num_attention_heads", model.num_attention_heads
    dense = model.moe is None or not all(model.moe.moe_layer_freq)
    if dense:
        yield "tp", recipe.tp, "ffn_hidden_size", model.ffn_hidden_size
    if model.moe is not None:
        yield "ep", recipe.ep, "num_experts", model.moe.num_experts
        yield "etp", recipe.etp, "moe_ffn_hidden_size", model.moe.moe_ffn_hidden_size
        if model.moe.moe_shared_expert_intermediate_size:
            yield "tp", recipe.tp, "shared expert width", model.moe.moe_shared_expert_intermediate_size
    sequence = recipe.seq_length
    if recipe.cp > 1:  # a causal sequence is cut into 2·cp parts, two for each rank (Megatron-LM, TransformerEngine)
        yield "cp", 2 * recipe.cp, "seq_length (in 2·cp parts)", sequence
    if recipe.sequence_parallel and sequence % recipe.cp == 0:
        yield "tp", recipe.tp, "seq_length / cp (sequence_parallel)", sequence // recipe.cp


def _combinations(workload: Workload, where: str) -> Iterable[Problem]:
    model, recipe = workload.model, workload.recipe
    if recipe.vpp > 1 and recipe.pp == 1:
        yield Problem(where, "recipe.vpp", recipe.vpp, "pp > 1 for virtual stages")
    if model.moe is None:
        for key, harmless in (
            ("ep", (1,)),
            ("etp", (1, recipe.tp)),
        ):  # Megatron-LM gives dense models its default of etp
            if getattr(recipe, key) not in harmless:
                yield Problem(where, f"recipe.{key}", getattr(recipe, key), "1: the model has no experts")
    layers = recipe.recompute_num_layers
    too_many = (
        layers is not None and layers > model.num_layers and recipe.recompute_method != "block"
    )  # block: all there are
    if recipe.recompute_granularity == "full" and too_many:
        expected = f"at most num_layers = {model.num_layers}"
        yield Problem(where, "recipe.recompute_num_layers", layers, expected)
    if recipe.recompute_saved and recipe.recompute_granularity not in ("full", None):
        expected = "recompute_granularity: full, whose replay these outputs are spared"
        yield Problem(where, "recipe.recompute_saved", list(recipe.recompute_saved), expected)
    offloaded = recipe.cpu_offloading_num_layers
    if offloaded is not None and offloaded >= model.num_layers:
        expected = f"less than num_layers = {model.num_layers}"
        yield Problem(where, "recipe.cpu_offloading_num_layers", offloaded, expected)
    outside = [layer for layer in recipe.recompute_layer_ids or () if not 0 <= layer < model.num_layers]
    if outside:
        expected = f"layer numbers from 0 to {model.num_layers - 1}"
        yield Problem(where, "recipe.recompute_layer_ids", outside, expected)
