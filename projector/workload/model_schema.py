"""Reads and writes model mappings: what may be left out, how changes to a base combine."""

from __future__ import annotations

from collections.abc import Mapping

from projector.errors import Problem
from projector.workload import moe_layer_freq
from projector.workload.layer_pattern import expand
from projector.workload.model import Model
from projector.workload.moe_layer_freq import numbers
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
    layers = merged.get("num_layers")
    if type(layers) is int and 0 < layers <= LIMITS["num_layers"]:
        _refit_layers(merged, changes, layers)
    return merged


def _refit_layers(merged: dict[str, object], changes: Mapping[str, object], layers: int) -> None:
    """Fits what has an entry for each layer to their number where ``changes`` do not state it: the first entries, or the
    last again and again; of ratios of compressed attention the last is that of prediction depths."""

    def stated(part: str, field: str) -> bool:
        change = changes.get(part)
        return isinstance(change, Mapping) and field in change

    moe, compressed, text = merged.get("moe"), merged.get("compressed"), merged.get("mixer_pattern")
    freq = moe.get("moe_layer_freq") if isinstance(moe, Mapping) else None
    if isinstance(moe, Mapping) and isinstance(freq, list | tuple) and freq and not stated("moe", "moe_layer_freq"):
        merged["moe"] = {**moe, "moe_layer_freq": _refit(list(freq), layers)}
    if "num_layers" not in changes:
        return
    if isinstance(compressed, Mapping) and not stated("compressed", "compress_ratios"):
        ratios = numbers(compressed.get("compress_ratios"), LIMITS["num_layers"])
        if isinstance(ratios, list | tuple) and ratios:
            fitted = [*_refit(list(ratios[:-1] or ratios), layers), ratios[-1]]
            merged["compressed"] = {**compressed, "compress_ratios": fitted}
    if "mixer_pattern" not in changes and isinstance(text, str) and text:
        merged["mixer_pattern"] = "".join(map(str, _refit(list(expand(text)), layers)))


def _with_derived(mapping: Mapping[str, object], where: str, prefix: str) -> tuple[dict[str, object], list[Problem]]:
    """Fills what the literature leaves implicit: MHA groups, head width H/heads, family = name, MoE in every layer."""
    given = {str(key): value for key, value in mapping.items()}
    given.setdefault("family", given.get("name", ""))
    heads, hidden = given.get("num_attention_heads"), given.get("hidden_size")
    if "num_query_groups" not in given and heads is not None:
        given["num_query_groups"] = heads
    if "kv_channels" not in given and type(heads) is int and type(hidden) is int and heads > 0:
        given["kv_channels"] = hidden // heads
    pattern, moe = given.get("hybrid_layer_pattern"), given.get("moe")
    if isinstance(pattern, str):  # says how many layers there are, and which have experts
        letters = expand(pattern)
        given.setdefault("num_layers", len(letters))
        if isinstance(moe, Mapping) and given["num_layers"] == len(letters):
            given["moe"] = {**moe, "moe_layer_freq": [int(letter == "E") for letter in letters]}
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
    freq, expected = moe_layer_freq.expand(moe.get("moe_layer_freq", 1), layers)
    if expected:
        problem = Problem(where, f"{prefix}moe.moe_layer_freq", moe.get("moe_layer_freq"), expected)
        return {**given, "moe": {**moe, "moe_layer_freq": []}}, [problem]
    return {**given, "moe": {**moe, "moe_layer_freq": list(freq)}}, []


def _refit(freq: list[object], layers: int) -> list[object]:
    return freq[:layers] + [freq[-1]] * (layers - len(freq))
