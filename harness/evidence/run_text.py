"""Writes measured runs as YAML text without anything that is empty or default."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from harness.contracts.runs import REQUIRED, MeasuredRun
from projector.workload import zoo
from projector.workload.model import Model
from projector.workload.structure import to_mapping


def to_yaml(runs: Iterable[MeasuredRun]) -> str:
    """Returns the YAML text of ``runs``: one block per run, nested parts in one line each."""
    return "\n".join(("- " + "\n  ".join(f"{name}: {text}" for name, text in _field_texts(run)) + "\n") for run in runs)


#: The fields of a run in the order in which they are written; all but those of ``REQUIRED`` where they hold something.
_FIELDS = (
    *("id", "source", "gpu", "gpus", "gpus_per_node", "cluster", "stack", "model", "model_name", "recipe", "measured"),
    *("group", "switches", "assumed", "unread", "problem", "doubt", "notes"),
)


def _field_texts(run: MeasuredRun) -> Iterator[tuple[str, str]]:
    for name in _FIELDS:
        value = getattr(run, name)
        repeats = name == "model_name" and run.model is not None and value == run.model.name
        if name in REQUIRED or (value and not repeats):
            yield name, _text(value)


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return flow(dict(value))
    if isinstance(value, tuple):
        return flow(list(value))
    return flow(value) if isinstance(value, str | int) else _nested_text(value)


@lru_cache(maxsize=1024)
def _nested_text(value: object) -> str:
    return flow(_model_value(value) if isinstance(value, Model) else to_mapping(value))


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
