"""Writes measured runs as YAML text without anything that is empty or default."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from harness.contracts.runs import Measured, MeasuredRun, Source, Stack
from projector.workload import zoo
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.structure import to_mapping


def to_yaml(runs: Iterable[MeasuredRun]) -> str:
    """Returns the YAML text of ``runs``: one block per run, nested parts in one line each."""
    return "\n".join(("- " + "\n  ".join(f"{name}: {text}" for name, text in _field_texts(run)) + "\n") for run in runs)


def _field_texts(run: MeasuredRun) -> Iterator[tuple[str, str]]:
    yield "id", flow(run.id)
    yield "source", _nested_text(run.source)
    yield "gpu", flow(run.gpu)
    yield "gpus", flow(run.gpus)
    if run.gpus_per_node is not None:
        yield "gpus_per_node", flow(run.gpus_per_node)
    if run.cluster:
        yield "cluster", flow(run.cluster)
    yield "stack", _stack_text(run.stack)
    if run.model is not None:
        yield "model", _model_text(run.model)
    name = "" if run.model is not None and run.model_name == run.model.name else run.model_name
    if name:
        yield "model_name", flow(name)
    if run.recipe is not None:
        yield "recipe", _recipe_text(run.recipe)
    yield "measured", _nested_text(run.measured)
    if run.group:
        yield "group", flow(run.group)
    if run.switches:
        yield "switches", flow(dict(run.switches))
    if run.assumed:
        yield "assumed", _list_text(run.assumed)
    if run.unread:
        yield "unread", _list_text(run.unread)
    if run.problem:
        yield "problem", flow(run.problem)
    if run.doubt:
        yield "doubt", flow(run.doubt)
    if run.notes:
        yield "notes", flow(run.notes)


@lru_cache(maxsize=512)
def _list_text(texts: tuple[str, ...]) -> str:
    return flow(list(texts))


def _nested_text(value: Source | Stack | Measured) -> str:
    return flow(to_mapping(value))


@lru_cache(maxsize=512)
def _stack_text(stack: Stack) -> str:
    return _nested_text(stack)


@lru_cache(maxsize=512)
def _recipe_text(recipe: Recipe) -> str:
    return flow(to_mapping(recipe))


@lru_cache(maxsize=512)
def _model_text(model: Model) -> str:
    return flow(_model_value(model))


def flow(value: object) -> str:
    """Returns one line of YAML. What needs no quotes is written here: the library takes thirty times as long."""
    text = _unquoted_text(value)
    return text if text is not None else dumped(value)


_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./ -]*[A-Za-z0-9]")
#: A sentence on a line of its own: a space and a letter keep it from being a number, a date or a word of YAML.
_SENTENCE = re.compile(r"(?=\S* )(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9][A-Za-z0-9_./%(),;+ -]*[A-Za-z0-9)%]")
_INDEXED = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*\[\d+\]")  # quoted inside brackets, where its own would end a list
_RESERVED = frozenset(("null", "true", "false", "yes", "no", "on", "off"))
_LONGEST = 120
_LONGEST_SENTENCE = 1000


def _unquoted_text(value: object, inside: bool = False) -> str | None:
    """Returns the library's text for numbers, plain words and collections of them; None for other values."""
    kind = type(value)
    if kind is str:
        return _plain_text(str(value), inside)
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        return str(value)
    if kind is float:
        text = repr(value)
        return text if text.replace(".", "", 1).removeprefix("-").isdecimal() else None
    if isinstance(value, list):
        return _flat_list(value) if kind is list and value else None
    if isinstance(value, dict):
        return _flat_mapping(value) if kind is dict and value else None
    return None


def _plain_text(value: str, inside: bool) -> str | None:
    if len(value) < _LONGEST:
        if _WORD.fullmatch(value) and value.lower() not in _RESERVED and "  " not in value:
            return value
        if inside:
            return f"'{value}'" if _INDEXED.fullmatch(value) else None
    whole = not inside and len(value) < _LONGEST_SENTENCE and _SENTENCE.fullmatch(value) and "  " not in value
    return value if whole else None


def _flat_list(value: list[object]) -> str | None:
    parts: list[str] = []
    for item in value:
        if (text := _unquoted_text(item, True)) is None:
            return None
        parts.append(text)
    return f"[{', '.join(parts)}]"


def _flat_mapping(value: dict[object, object]) -> str | None:
    parts: list[str] = []
    for key, item in value.items():
        name, text = _unquoted_text(key, True), _unquoted_text(item, True)
        if name is None or text is None:
            return None
        parts.append(f"{name}: {text}")
    return f"{{{', '.join(parts)}}}"


def dumped(value: object) -> str:
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    layout: dict[str, Any] = {"width": 1_000_000, "allow_unicode": True, "sort_keys": False}
    text = yaml.dump(value, Dumper=dumper, default_flow_style=True, **layout)
    return str(text).removesuffix("...\n").strip()


def _model_value(model: Model) -> object:
    """Returns a zoo name, the changes to a model of the zoo, or the whole mapping."""
    if model.name not in zoo.names():
        return to_mapping(model)
    base = zoo.load(model.name)
    if base == model:
        return model.name
    return {"base": model.name, **_changes(to_mapping(base), to_mapping(model), model)}


def _changes(old: Mapping[str, object], new: Mapping[str, object], model: object) -> dict[str, object]:
    changed: dict[str, object] = {}
    for key in {**old, **new}:
        before, after = old.get(key), new.get(key, getattr(model, key))
        if before == after:
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changed[key] = _changes(before, after, getattr(model, key))
        else:
            changed[key] = _layer_pattern(after) if key == "moe_layer_freq" else after
    return changed


def _layer_pattern(freq: object) -> object:
    """Returns ``([0]*3+[1]*58)`` for dense layers followed by MoE layers (Megatron's spelling), else the list."""
    if not isinstance(freq, (list, tuple)) or 1 not in freq:
        return freq
    dense = list(freq).index(1)
    moe = len(freq) - dense
    return f"([0]*{dense}+[1]*{moe})" if list(freq) == [0] * dense + [1] * moe else list(freq)
