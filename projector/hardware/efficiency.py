"""Efficiency parameters of a GPU: its own file, then its architecture's, then its vendor's, key by key.

Each file of ``efficiency/`` is ``parameters: {key: {value, kind, source, low, high}}``; ``kind`` is ``datasheet``,
``derived``, ``published``, ``fitted`` or ``measured``. The nearest file that has a key wins. Meaning of the keys:
``efficiency/README.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from projector.errors import InputError, Problem
from projector.hardware.types import Efficiency, Gpu, Parameter
from projector.io.files import parse_yaml, read_text

__all__ = ["load", "of", "parse"]

_FOLDER = Path(__file__).parent / "efficiency"
_KINDS = ("datasheet", "derived", "published", "fitted", "measured")
_FIELDS = ("value", "kind", "source", "low", "high")


@cache
def load(gpu_name: str) -> Efficiency:
    """Parameters of a catalogue GPU. Raises ``InputError`` for an unknown GPU or a broken file."""
    from projector.hardware.catalogue import gpu

    return of(gpu(gpu_name))


def of(device: Gpu) -> Efficiency:
    """Parameters of any device: its vendor's, its architecture's, its name's, then those of its own efficiency file.

    Raises ``InputError`` for a file that is broken, or named by the device and not there.
    """
    if not device.efficiency_file:
        return _shipped(device.vendor, device.arch, device.name)
    shipped = _shipped(device.vendor, device.arch, device.name).parameters
    return Efficiency(gpu=device.name, parameters={**shipped, **_named(Path(device.efficiency_file))})


@cache
def _shipped(vendor: str, arch: str, name: str) -> Efficiency:
    """One object for one device, so that kernel models remember what they priced on it."""
    merged: dict[str, Parameter] = {}
    for stem in (vendor, arch, name):
        merged.update(_file(stem.lower()))
    return Efficiency(gpu=name, parameters=merged)


@cache
def _file(stem: str) -> Mapping[str, Parameter]:
    path = _FOLDER / f"{stem}.yaml"
    return parse(path.read_text(encoding="utf-8"), str(path)) if path.is_file() else {}


def _named(path: Path) -> Mapping[str, Parameter]:
    return parse(read_text(path, "a readable file of efficiency parameters"), str(path))


def parse(text: str, where: str) -> Mapping[str, Parameter]:
    """Parameters of one file's text. Raises ``InputError`` with every mistake."""
    data = parse_yaml(text, where)
    found = data.get("parameters") if isinstance(data, Mapping) else None
    if not isinstance(found, Mapping):
        raise InputError([Problem(where, "parameters", found, "a mapping of parameters")])
    problems: list[Problem] = []
    parameters = {str(key): _parameter(cell, where, f"parameters.{key}", problems) for key, cell in found.items()}
    if problems:
        raise InputError(problems)
    return parameters


def _parameter(cell: object, where: str, key: str, problems: list[Problem]) -> Parameter:
    if not isinstance(cell, Mapping):
        problems.append(Problem(where, key, cell, "a mapping with value, kind and source"))
        return Parameter(0.0, "", "")
    problems.extend(
        Problem(where, f"{key}.{k}", cell[k], f"one of {', '.join(_FIELDS)}") for k in cell if k not in _FIELDS
    )
    numbers: dict[str, float | None] = {}
    for name in ("value", "low", "high"):
        raw = cell.get(name)
        good = isinstance(raw, int | float) and not isinstance(raw, bool)
        numbers[name] = float(raw) if good else None  # type: ignore[arg-type]
        if not good and (raw is not None or name == "value"):
            problems.append(Problem(where, f"{key}.{name}", raw, "a number"))
    if cell.get("kind") not in _KINDS:
        problems.append(Problem(where, f"{key}.kind", cell.get("kind"), f"one of {', '.join(_KINDS)}"))
    if not cell.get("source"):
        problems.append(Problem(where, f"{key}.source", cell.get("source"), "where the value comes from"))
    value = numbers["value"]
    return Parameter(
        value=0.0 if value is None else value,
        kind=str(cell.get("kind")),
        source=str(cell.get("source")),
        low=numbers["low"],
        high=numbers["high"],
    )
