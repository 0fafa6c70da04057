"""Writes measured runs as YAML text without anything that is empty or default."""

from __future__ import annotations

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
    yield "stack", _nested_text(run.stack)
    if run.model is not None:
        yield "model", _model_text(run.model)
    if run.model_name and (run.model is None or run.model_name != run.model.name):
        yield "model_name", flow(run.model_name)
    if run.recipe is not None:
        yield "recipe", _nested_text(run.recipe)
    yield "measured", _nested_text(run.measured)
    if run.group:
        yield "group", flow(run.group)
    if run.switches:
        yield "switches", flow(dict(run.switches))
    for name, texts in (("assumed", run.assumed), ("unread", run.unread)):
        if texts:
            yield name, _list_text(texts)
    for name, text in (("problem", run.problem), ("doubt", run.doubt), ("notes", run.notes)):
        if text:
            yield name, flow(text)


def _list_text(texts: tuple[str, ...]) -> str:
    return flow(list(texts))


@lru_cache(maxsize=512)
def _nested_text(value: Source | Stack | Measured | Recipe) -> str:
    return flow(to_mapping(value))


@lru_cache(maxsize=512)
def _model_text(model: Model) -> str:
    return flow(_model_value(model))


def flow(value: object) -> str:
    """Returns one line of YAML."""
    return _inside(value) if isinstance(value, (list, dict)) else _written(value)


def _inside(value: object) -> str:
    """Returns the text of a value inside brackets, where a text may need other quotes. Each text and each figure is the
    library's; collections are put together here, since it takes thirty times as long for one."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_inside(key)}: {_inside(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inside, value))}]"
    return str(value) if type(value) is int else _written(value, listed=True)


@lru_cache(maxsize=8192, typed=True)
def _written(value: object, listed: bool = False) -> str:
    """Returns the library's text of a scalar, on a line of its own or as ``listed`` in brackets."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    layout: dict[str, Any] = {"width": 1_000_000, "allow_unicode": True, "sort_keys": False}
    text = yaml.dump([value] if listed else value, Dumper=dumper, default_flow_style=True, **layout)
    whole = str(text).removesuffix("...\n").strip()
    return whole[1:-1] if listed else whole


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
