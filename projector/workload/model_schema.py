"""Reads and writes model mappings: what may be left out, how changes to a base combine."""

from __future__ import annotations

from collections.abc import Mapping

from projector.errors import Problem
from projector.workload.layer_pattern import expand as expand_letters
from projector.workload.layer_pattern import expand as expand_pattern
from projector.workload.model import Model
from projector.workload.moe_layer_freq import expand, numbers
from projector.workload.structure import parse_dataclass
from projector.workload.value_checks import LIMITS, range_problems, unreported, word_problems


def model_from_mapping(mapping: Mapping[str, object], where: str, prefix: str) -> tuple[Model | None, list[Problem]]:
    """Reads a full model mapping. Fields that follow from others may be left out: see :func:`_with_derived`. Returns
    the model, or None, and every mistake."""
    completed, problems = _with_derived(mapping, where, prefix)
    model, further = parse_dataclass(Model, completed, where, prefix)
    problems += further
    problems += word_problems(completed, where, prefix)
    problems += unreported(range_problems(completed, where, prefix), problems)
    return (None if problems else model), problems


def merge(base: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    """Returns ``base`` with ``changes``: nested mappings change field by field; a pattern of MoE layers follows a
    new layer count.

    A pattern written for another number of layers keeps its head (the dense layers stand first): it is cut, or
    continued with its last value.
    """
    merged = dict(base)
    for key, change in changes.items():
        old = merged.get(key)
        merged[key] = {**old, **change} if isinstance(old, Mapping) and isinstance(change, Mapping) else change
    moe, layers = merged.get("moe"), merged.get("num_layers")
    changed_moe = changes.get("moe")
    stated = isinstance(changed_moe, Mapping) and "moe_layer_freq" in changed_moe
    if isinstance(moe, Mapping) and not stated and isinstance(layers, int) and not isinstance(layers, bool):
        freq = moe.get("moe_layer_freq")
        if isinstance(freq, (list, tuple)) and freq and 0 < layers <= LIMITS["num_layers"]:
            merged["moe"] = {**moe, "moe_layer_freq": _refit(list(freq), layers)}
    _refit_ratios(merged, changes)
    _refit_mixers(merged, changes)
    return merged


def _refit_mixers(merged: dict[str, object], changes: Mapping[str, object]) -> None:
    """Fits the letters of mixers to a new layer count: the first of them, or the last again and again."""
    text, layers = merged.get("mixer_pattern"), changes.get("num_layers")
    if "mixer_pattern" in changes or not isinstance(text, str) or not text or type(layers) is not int:
        return
    if 0 < layers <= LIMITS["num_layers"]:
        merged["mixer_pattern"] = "".join(str(each) for each in _refit(list(expand_letters(text)), layers))


def _refit_ratios(merged: dict[str, object], changes: Mapping[str, object]) -> None:
    """Fits ratios of compressed attention to a new layer count: the first ones, and the last, of prediction depths."""
    compressed, layers, change = merged.get("compressed"), changes.get("num_layers"), changes.get("compressed")
    if not isinstance(compressed, Mapping) or type(layers) is not int or not 0 < layers <= LIMITS["num_layers"]:
        return
    ratios = numbers(compressed.get("compress_ratios"), LIMITS["num_layers"])
    stated = isinstance(change, Mapping) and "compress_ratios" in change
    if not stated and isinstance(ratios, (list, tuple)) and ratios:
        merged["compressed"] = {
            **compressed,
            "compress_ratios": [*_refit(list(ratios[:-1] or ratios), layers), ratios[-1]],
        }


def _with_derived(mapping: Mapping[str, object], where: str, prefix: str) -> tuple[dict[str, object], list[Problem]]:
    """Fills what the literature leaves implicit: MHA groups, head width H/heads, family = name, MoE in every layer."""
    given = {str(key): value for key, value in mapping.items()}
    given.setdefault("family", given.get("name", ""))
    heads, hidden = given.get("num_attention_heads"), given.get("hidden_size")
    if "num_query_groups" not in given and heads is not None:
        given["num_query_groups"] = heads
    if "kv_channels" not in given and type(heads) is int and type(hidden) is int and heads > 0:
        given["kv_channels"] = hidden // heads
    pattern = given.get("hybrid_layer_pattern")
    if isinstance(pattern, str):
        given |= _from_pattern(pattern, given)
    moe, layers = given.get("moe"), given.get("num_layers")
    per_layer = given.get("per_layer")
    if isinstance(per_layer, Mapping):
        longest = layers if type(layers) is int and layers < LIMITS["num_layers"] else 0
        given["per_layer"] = {key: numbers(value, longest) for key, value in per_layer.items()}
    compressed = given.get("compressed")
    if isinstance(compressed, Mapping) and "compress_ratios" in compressed:
        ratios = numbers(compressed["compress_ratios"], layers if type(layers) is int and layers < 10_000 else 0)
        given["compressed"] = {**compressed, "compress_ratios": ratios}
    if not isinstance(moe, Mapping) or type(layers) is not int or layers <= 0:
        return given, []
    if layers > LIMITS["num_layers"]:  # reported as out of range: nothing is built for each of them
        return {**given, "moe": {**moe, "moe_layer_freq": []}}, []
    freq, expected = expand(moe.get("moe_layer_freq", 1), layers)
    if expected:
        problem = Problem(where, f"{prefix}moe.moe_layer_freq", moe.get("moe_layer_freq"), expected)
        return {**given, "moe": {**moe, "moe_layer_freq": []}}, [problem]
    return {**given, "moe": {**moe, "moe_layer_freq": list(freq)}}, []


def _from_pattern(pattern: str, given: Mapping[str, object]) -> dict[str, object]:
    """Returns the fields that follow from letters of layers: how many layers, and which have experts."""
    letters = expand_pattern(pattern)
    derived: dict[str, object] = {} if "num_layers" in given else {"num_layers": len(letters)}
    moe = given.get("moe")
    if isinstance(moe, Mapping) and given.get("num_layers", len(letters)) == len(letters):
        derived["moe"] = {**moe, "moe_layer_freq": [int(letter == "E") for letter in letters]}
    return derived


def _refit(freq: list[object], layers: int) -> list[object]:
    return freq[:layers] + [freq[-1]] * (layers - len(freq))
