"""What is wrong with a workload as a whole: numbers out of range, sizes that do not divide, words nobody knows."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import fields
from functools import cache, lru_cache
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from projector.errors import Problem
from projector.io.typed import of_type
from projector.memo import Recent, Same, but
from projector.workload import fast_domain, layout, summa
from projector.workload.checks import LIMITS, range_problems, unreported, word_problems
from projector.workload.declared import Mistake
from projector.workload.layer_kinds import (
    Attention,
    Dense,
    GatedDeltaNet,
    KimiDelta,
    Lightning,
    Mamba1,
    Mamba2,
    Parallel,
    SharedBlock,
)
from projector.workload.layer_pattern import MIXERS, MLPS, SIZES, expand, mistake
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.sparse import BlockAttention
from projector.workload.workload import Workload


def problems(workload: Workload, where: str = "", split: bool | None = None) -> tuple[Problem, ...]:
    """Returns every mistake of ``workload``. Empty: it can be laid out, though a model may still not support it.
    ``split``: the rule for layers that do not divide, where the recipe leaves it to the framework.

    When types are wrong or numbers out of range only these are listed: what divides what means nothing then.
    """
    found, sound = _of_values(workload, where)
    if sound:
        model = workload.model
        alone, layers = _of_model(Same(model), where)
        found += alone
        found += layers or told(workload, where, _divisions(workload))
        if not (alone or layers):  # where a layer has no sizes, nobody can split the layers
            found += layout.problems(model, _splitting(workload.recipe, split), where)
        found += told(workload, where, _combinations(workload))
    return tuple(found)


def _splitting(recipe: Recipe, split: bool | None) -> Recipe:
    open_ = split is not None and recipe.allow_uneven_pipeline_split is None
    return but(recipe, allow_uneven_pipeline_split=split) if open_ else recipe


def told(root: object, where: str, mistakes: Iterable[Mistake]) -> tuple[Problem, ...]:
    """Returns each mistake as a :class:`Problem`; what it does not say it found is what stands under its key in
    ``root``."""
    return tuple(
        Problem(where, key, found[0] if found else attrgetter(key)(root), expected)
        for key, expected, *found in mistakes
    )


def value_problems(workload: Workload) -> tuple[Problem, ...]:
    """Mistakes of single values: types, words, ranges. (Not of what goes together: :func:`problems`.)"""
    return tuple(_of_values(workload, "")[0])


def _of_values(workload: Workload, where: str) -> tuple[list[Problem], bool]:
    """Mistakes of single values, and whether sizes may be set against each other."""
    if known(workload):
        wrong = _gpus(workload.gpus, where)
        return wrong, not wrong
    types = of_type(workload, Workload, where)
    if types and not (isinstance(getattr(workload, "model", None), Model) and isinstance(workload.recipe, Recipe)):
        return types, False
    model, recipe = workload.model, workload.recipe
    sizes, words = _nested(model), _nested(recipe)
    ranges = _gpus(workload.gpus, where)
    ranges += [*range_problems(sizes, where, "model."), *range_problems(words, where, "recipe.")]
    found = [*types, *unreported(ranges, types)]
    found += [*word_problems(words, where, "recipe."), *word_problems(sizes, where, "model.")]
    if not found:
        remember(workload)
    return found, not (types or ranges)


LAYOUT_SIZES = ("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch_size", "global_batch_size", "seq_length")
_sizes = attrgetter(*LAYOUT_SIZES)
_rest = attrgetter(*(f.name for f in fields(Recipe) if f.name not in LAYOUT_SIZES))
_FORMS: Recent[object] = Recent(4096)
_SOUND: Recent[bool] = Recent(4096)
"""Models, and values of recipes without their sizes, of which no single value is wrong. Frozen, so they stay so."""


def known(workload: Workload) -> bool:
    """Whether all single values but the number of GPUs were looked at before: those of a search differ in sizes alone."""
    if getattr(workload, "__dict__", _NOTHING).get(_KNOWN):
        return True
    model, recipe = getattr(workload, "model", None), getattr(workload, "recipe", None)
    if type(workload) is not Workload or type(model) is not Model or type(recipe) is not Recipe:
        return False
    if (
        type(workload.gpus) is not int
        or type(workload.framework) is not str
        or type(workload.framework_date) is not str
    ):
        return False
    sizes = _sizes(recipe)
    if {*map(type, sizes)} != {int} or min(sizes) < 1 or max(sizes) > _SMALL:
        return False
    try:
        found = Same(model) in _SOUND and form(recipe) in _SOUND
    except TypeError:  # a value without a hash is none that was sound
        return False
    if found:
        workload.__dict__[_KNOWN] = True
    return found


_KNOWN, _FORM = "_known", "_form"
_NOTHING: dict[str, object] = {}


#: Forwards in a schedule: seconds and half a gigabyte to order; published ones have some thousands.
_MOST_STEPS = 1 << 19
_SMALL = 1_000_000  # what every size may be, see LIMITS


def remember(workload: Workload) -> None:
    """That no single value of it is wrong."""
    for key in (Same(workload.model), form(workload.recipe)):
        _SOUND.get(key, lambda: True)


def form(recipe: Recipe) -> Hashable:
    """One object for all recipes that differ in :data:`LAYOUT_SIZES` alone: a key that costs nothing to compare.

    Values count with their types: 1, 1.0 and True are equal, but not equally right. Raises TypeError for a value without a
    hash."""
    found = recipe.__dict__.get(_FORM)
    if found is None:
        rest = _rest(recipe)
        found = recipe.__dict__[_FORM] = _FORMS.get((*map(type, rest), *rest), object)
    return found


def _nested(item: Any) -> dict[str, object]:
    """Values of ``item`` and of the parts inside it (mla, moe, lora), those as mappings."""
    values = _values(item)
    parts = {name: value for name, value in values.items() if hasattr(value, "__dataclass_fields__")}
    return values | {name: _values(value) for name, value in parts.items() if not isinstance(value, type)}


def _values(item: Any) -> dict[str, object]:
    return {name: getattr(item, name) for name in _names(type(item))}  # type: ignore[arg-type]


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


def _gpus(gpus: int, where: str) -> list[Problem]:
    if type(gpus) is int and 1 <= gpus <= LIMITS["gpus"]:
        return []
    return [Problem(where, "gpus", gpus, f"a whole number from 1 to {LIMITS['gpus']}")]


@lru_cache(maxsize=256)
def _of_model(model: Same[Model], where: str) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
    """Mistakes of the model alone: of its sizes, and of its layers."""
    alone = SimpleNamespace(model=model.value)
    return told(alone, where, _model(model.value)), told(alone, where, _layers(model.value))


def _model(model: Model) -> Iterator[Mistake]:
    if (v := model.vision) is not None:
        for key, of in (("num_attention_heads", v.hidden_size), ("patch_size", v.image_size)):
            if of % getattr(v, key):
                yield f"model.vision.{key}", f"a divisor of {of}"
        if model.encoder is not None:
            yield "model.vision", "nothing beside an encoder", "a vision tower"
    if model.num_query_groups > model.num_attention_heads or model.num_attention_heads % model.num_query_groups:
        yield "model.num_query_groups", f"a divisor of num_attention_heads = {model.num_attention_heads}"
    if not model.causal and model.window_size is not None:
        yield "model.window_size", "none: a window without a causal mask"
    if not (model.causal and model.vocab_size) and model.mtp_num_layers:
        yield "model.mtp_num_layers", "0: nothing is predicted token by token"
    if model.cla_share_factor > 1:
        apart = ("mla", "share_q_dim", "attention_k_eq_v", "hybrid_layer_pattern", "mixer_pattern", "compressed")
        other = [key for key in (*apart, "per_layer", "full_attention", "mtp_num_layers") if getattr(model, key)]
        if other:
            yield "model.cla_share_factor", f"1: layers do not share keys and values beside {', '.join(other)}"
    yield from _per_layer_inputs(model)
    moe = model.moe
    if moe is None:
        return
    if moe.moe_router_topk > moe.num_experts:
        yield "model.moe.moe_router_topk", f"at most {moe.num_experts} experts"
    if any(moe.moe_layer_freq) and not moe.moe_ffn_hidden_size:
        yield "model.moe.moe_ffn_hidden_size", "the width of one expert", 0
    if moe.moe_router_num_groups and moe.num_experts % moe.moe_router_num_groups:
        yield "model.moe.moe_router_num_groups", f"a divisor of num_experts = {moe.num_experts}"


_PATTERNS = ("hybrid_layer_pattern", "mixer_pattern")


def _per_layer_inputs(model: Model) -> Iterator[Mistake]:
    """Of AltUp, LAuReL, embeddings of every layer, and keys and values shared after their rotation (Gemma 3n)."""
    if model.altup_num_inputs == 1:
        yield "model.altup_num_inputs", "streams from 2 on, or 0"
    if bool(model.hidden_size_per_layer_input) != bool(model.vocab_size_per_layer_input):
        yield "model.hidden_size_per_layer_input", "vocab_size_per_layer_input beside it, and neither alone"
    apart = ("mla", "moe", "hyper_connections", "attn_res_block_size", "parallel_residual", "mtp_num_layers")
    beside = [name for name in (*apart, "compressed", *_PATTERNS) if getattr(model, name)]
    for name in ("altup_num_inputs", "laurel_rank", "hidden_size_per_layer_input", "num_kv_shared_layers"):
        if getattr(model, name) and beside:
            yield f"model.{name}", f"0 beside {', '.join(beside)}"
    shared = model.num_kv_shared_layers
    if shared and (shared >= model.num_layers or model.cla_share_factor > 1):
        yield "model.num_kv_shared_layers", f"less than num_layers = {model.num_layers}, and no cla_share_factor"


def _layers(model: Model) -> Iterator[Mistake]:
    """Of what says which layers the model has."""
    freq = model.moe.moe_layer_freq if model.moe else (0,) * model.num_layers
    if len(freq) != model.num_layers or any(each not in (0, 1) for each in freq):
        yield "model.moe.moe_layer_freq", f"one 0 or 1 per layer: {model.num_layers}", f"{len(freq)} entries"
    for key, letters in zip(_PATTERNS, ({**MIXERS, **MLPS}, MIXERS), strict=True):
        text = getattr(model, key)
        if text is not None and (wrong := mistake(text, letters, model.num_layers)):
            yield f"model.{key}", wrong
    text = expand(model.hybrid_layer_pattern or model.mixer_pattern or "")
    for letter, field in SIZES.items():
        if letter in text and getattr(model, field) is None:
            what = {**MIXERS, **MLPS}[letter]
            yield f"model.{field}", f"the sizes of {what}: {letter} stands in the pattern"
    if model.compressed is not None and len(model.compressed.compress_ratios) - model.num_layers not in (0, 1):
        expected = f"one entry a layer, and one for multi-token prediction: {model.num_layers + 1}"
        yield "model.compressed.compress_ratios", expected, f"{len(model.compressed.compress_ratios)} entries"
    if model.per_layer is not None:
        for each in fields(model.per_layer):
            values = getattr(model.per_layer, each.name)
            if values and len(values) != model.num_layers:
                yield f"model.per_layer.{each.name}", f"one entry a layer: {model.num_layers}", f"{len(values)} entries"


def _divisions(workload: Workload) -> Iterator[Mistake]:
    model, recipe, gpus = workload.model, workload.recipe, workload.gpus
    for key, value, name, of in _dividends(workload):
        if of % value:
            valid = ", ".join(str(size) for size in range(1, of + 1) if of % size == 0)
            yield f"recipe.{key}", f"a divisor of {name} = {of}" + f": {valid}" * (of < 1024), value
    if model.num_query_groups % recipe.tp and recipe.tp % model.num_query_groups:
        yield "recipe.tp", f"a divisor or a multiple of num_query_groups = {model.num_query_groups}"
    size = recipe.replica_ranks
    if gpus % size:
        yield "gpus", f"a multiple of tp · {'tp2 · ' if recipe.tp2 > 1 else ''}pp · cp = {size}"
        return
    if model.moe is not None and gpus % (recipe.etp * recipe.ep * recipe.pp):
        yield "gpus", f"a multiple of etp · ep · pp = {recipe.etp * recipe.ep * recipe.pp}"
    batch = recipe.micro_batch_size * workload.dp
    if recipe.global_batch_size % batch:
        expected = f"a multiple of micro_batch_size · dp = {recipe.micro_batch_size} · {workload.dp} = {batch}"
        if recipe.global_batch_size < batch:
            most = recipe.global_batch_size // recipe.micro_batch_size * size
            expected += f"; no more micro-batches: at most {most} GPUs are useful with this batch"
        yield "recipe.global_batch_size", expected
    steps = recipe.global_batch_size // batch * recipe.pp * recipe.vpp
    if steps > _MOST_STEPS:
        expected = f"at most {_MOST_STEPS:,} forwards of a chunk in a schedule, over all its ranks"
        found = f"{recipe.global_batch_size:,} sequences: {recipe.global_batch_size // batch:,} micro-batches a rank"
        yield "recipe.global_batch_size", expected, found
    shard = recipe.data_parallel_shard_size
    if shard and (workload.dp * recipe.cp) % shard:
        yield "recipe.data_parallel_shard_size", f"a divisor of the {workload.dp * recipe.cp} data-parallel ranks"


def _dividends(workload: Workload) -> Iterable[tuple[str, int, str, int]]:
    """Returns (key, divisor, name, dividend): every size of the recipe and what it must divide."""
    model, recipe = workload.model, workload.recipe
    for name, of in _split_sizes(model):
        yield "tp", recipe.tp, name, of
    if model.moe is not None:
        yield "ep", recipe.ep, "num_experts", model.moe.num_experts
        yield "etp", recipe.etp, "moe_ffn_hidden_size", model.moe.moe_ffn_hidden_size
        if model.moe.moe_shared_expert_intermediate_size:
            yield "tp", recipe.tp, "shared expert width", model.moe.moe_shared_expert_intermediate_size
    sequence = recipe.seq_length
    if recipe.cp > 1:  # a causal sequence is cut into 2·cp parts, two for each rank (Megatron-LM, TransformerEngine)
        parts = (2 * recipe.cp, "seq_length (in 2·cp parts)") if model.causal else (recipe.cp, "seq_length")
        yield "cp", *parts, sequence
    if recipe.sequence_parallel and sequence % recipe.cp == 0:
        yield "tp", recipe.tp, "seq_length / cp (sequence_parallel)", sequence // recipe.cp
        if model.encoder is not None and recipe.encoder_seq_length:
            yield "tp", recipe.tp, "encoder_seq_length (sequence_parallel)", recipe.encoder_seq_length


@lru_cache(maxsize=256)
def _split_sizes(model: Model) -> tuple[tuple[str, int], ...]:
    """(name, size) of what tensor parallelism splits in some layer."""
    found: dict[tuple[str, int], None] = {}
    for kind in dict.fromkeys((*model.tower_kinds, *model.layer_kinds)):
        seen = model.within(kind)
        mixer = kind.mixer.mamba if isinstance(kind.mixer, Parallel | SharedBlock) else kind.mixer
        if isinstance(kind.mixer, SharedBlock):
            found["ffn_hidden_size", seen.ffn_hidden_size] = None
        if isinstance(kind.mixer, Attention | BlockAttention | Parallel | SharedBlock):
            found["num_attention_heads", seen.num_attention_heads] = None
        if isinstance(mixer, Mamba2):
            found["mamba_num_heads", mixer.mamba_num_heads] = None
            found["mamba_num_groups", mixer.mamba_num_groups] = None
        elif isinstance(mixer, Mamba1):
            found["mamba1.inner", mixer.inner] = None
        elif isinstance(mixer, GatedDeltaNet):
            found["linear_num_key_heads", mixer.linear_num_key_heads] = None
            found["linear_num_value_heads", mixer.linear_num_value_heads] = None
        elif isinstance(mixer, KimiDelta | Lightning):
            found[f"{mixer.name}.num_heads", mixer.num_heads] = None
        if isinstance(kind.mlp, Dense):
            found["ffn_hidden_size", seen.ffn_hidden_size] = None
    return tuple(found)


def _combinations(workload: Workload) -> Iterator[Mistake]:
    model, recipe = workload.model, workload.recipe
    lengths = recipe.document_lengths or ()
    if model.vision is None:
        for key in ("images_per_sample", "freeze_language_model", "freeze_vision_model", "recompute_vision"):
            if getattr(recipe, key):
                yield f"recipe.{key}", f"nothing: {model.name} has no vision tower"
    elif (tokens := recipe.images // recipe.sequences * model.vision.image_tokens) > recipe.seq_length:
        yield "recipe.seq_length", f"at least {tokens}: the tokens of a sample's images stand among them"
    if recipe.encoder_seq_length and model.encoder is None:
        yield "recipe.encoder_seq_length", f"nothing: {model.name} has no encoder"
    if any(length < 1 for length in lengths) or sum(lengths) > recipe.seq_length:
        expected = f"lengths from 1 on, at most seq_length = {recipe.seq_length} in all"
        yield "recipe.document_lengths", expected, list(lengths)
    if recipe.dynamic_context_parallel and recipe.cp & (recipe.cp - 1):
        yield "recipe.cp", "a power of two: documents run on one each (dynamic_context_parallel)"
    yield from summa.problems(model, recipe)
    if recipe.fast_domain is not None and workload.gpus % recipe.replica_ranks == 0:
        yield from fast_domain.problems(recipe, workload.dp, None)
    if recipe.vpp > 1 and recipe.pp == 1:
        yield "recipe.vpp", "pp > 1 for virtual stages"
    if recipe.transformer_impl == "local" and recipe.quantised:
        yield "recipe.transformer_impl", f"transformer_engine: no other linears multiply in {recipe.precision}"
    if model.moe is None:
        for key, harmless in (("ep", (1,)), ("etp", (1, recipe.tp))):  # Megatron-LM's default of etp is tp
            if getattr(recipe, key) not in harmless:
                yield f"recipe.{key}", "1: the model has no experts"
    block = recipe.recompute_method == "block"  # which takes all there are
    if recipe.recompute_granularity == "full" and not block and (recipe.recompute_num_layers or 0) > model.num_layers:
        yield "recipe.recompute_num_layers", f"at most num_layers = {model.num_layers}"
    if recipe.recompute_saved and recipe.recompute_granularity not in ("full", None):
        expected = "recompute_granularity: full, whose replay these outputs are spared"
        yield "recipe.recompute_saved", expected, list(recipe.recompute_saved)
    if (recipe.cpu_offloading_num_layers or 0) >= model.num_layers:
        yield "recipe.cpu_offloading_num_layers", f"less than num_layers = {model.num_layers}"
    outside = [layer for layer in recipe.recompute_layer_ids or () if not 0 <= layer < model.num_layers]
    if outside:
        yield "recipe.recompute_layer_ids", f"layer numbers from 0 to {model.num_layers - 1}", outside
