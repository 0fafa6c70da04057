"""Reads a hardware YAML file into a checked mapping: every mistake becomes a ``Problem``, none stops the reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from projector.errors import InputError, Problem, nearest
from projector.hardware.types import DTYPES, stated_of
from projector.io.documents import as_mapping, parse_json
from projector.io.files import read_text, read_yaml
from projector.io.typed import hints, target_of

#: Endings of files of hardware.
SUFFIXES = (".yaml", ".yml", ".json")
_CATALOGUE = Path(__file__).parent
_BASES = ("clusters", "gpus")
_OWN = ("name", "title", "aliases", "notes")
#: The source of a figure that a file on a base, or a user on the command line, states without one.
_WITHOUT = "for a what-if"
WHAT_IF = f"assumed, {_WITHOUT}"
_OF_CLUSTERS = ("gpu", "host", "intra", "inter", "outer", "collectives")  # begin keys that no GPU has
_UNSOURCED = ("name", "title", "aliases", "notes", "sources", "base", "gpu")
#: Keys in SI units: the key of these files, and its unit.
_SI: Mapping[str, tuple[str, float]] = {
    "hbm_bytes_per_s": ("memory_bandwidth_tbs", 1e12),
    "memory_bytes": ("memory_gib", 2.0**30),
    "usable_memory_bytes": ("usable_memory_gib", 2.0**30),
    "peak_flops": ("peak_tflops", 1e12),
    "bandwidth_bytes_per_s": ("bandwidth_gbs", 1e9),
    "latency_s": ("latency_us", 1e-6),
}
KINDS = ("datasheet", "derived", "published", "fitted", "measured", "assumed")


def read_mapping(path: Path) -> dict[str, Any]:
    """Returns the mapping at the top of a YAML or JSON file. Raises InputError when it is missing, broken or something
    else."""
    json = path.suffix == ".json"
    return dict(as_mapping(parse_json(read_text(path), str(path)) if json else read_yaml(path), str(path)))


def read_described(path: Path) -> dict[str, Any]:
    """Returns the mapping of a file of hardware. On a ``base`` (``gpus/NAME`` or ``clusters/NAME`` of the catalogue;
    NAME alone is a cluster where the file states what only clusters have, else a GPU) it states what differs: mappings
    field by field, null for what is not there. Names and notes of the base do not count. A figure that a file of the
    catalogue states needs a source of its own; elsewhere it is assumed, for a what-if, and without a name the file
    describes the base itself, changed."""
    from projector.hardware.catalogue import find_gpu

    stated = in_units(read_mapping(path), str(path))
    if "base" not in stated:
        return stated
    name = stated.pop("base")
    known = [f"{folder}/{file.stem}" for folder in _BASES for file in sorted((_CATALOGUE / folder).glob("*.yaml"))]
    folder = "clusters" if any(key.startswith(_OF_CLUSTERS) for key in stated) else "gpus"
    spelled = (name, f"{folder}/{name}", f"{folder}/{find_gpu(str(name))}", f"clusters/{name}")
    found = next((each for each in spelled if each in known), None)
    if found is None:
        names = known if "/" in str(name) else [each.partition("/")[2] for each in known if each.startswith(folder)]
        raise InputError([Problem(str(path), "base", name, nearest(str(name), names))])
    base = read_described(_CATALOGUE / f"{found}.yaml")
    return _merged(base, stated) if path.parent.parent == _CATALOGUE else changed(base, stated)


def in_units(stated: Mapping[str, Any], where: str, prefix: str = "") -> dict[str, Any]:
    """Returns ``stated`` in the words and units of these files, where it has SI ones. Raises InputError for a figure
    that stands in both."""
    converted: dict[str, Any] = {}
    for key, value in stated.items():
        word, unit = _SI.get(key, (key, 0.0))
        if unit and word in stated:
            raise InputError([Problem(where, prefix + key, value, f"one of the two: {word} says {stated[word]}")])
        inner = isinstance(value, Mapping) and not unit
        converted[word] = in_units(value, where, f"{prefix}{key}.") if inner else _scaled(value, unit)
    return converted


def _scaled(value: Any, unit: float) -> Any:
    if isinstance(value, Mapping):
        return {key: _scaled(each, unit) for key, each in value.items()}
    number = as_number(value) if unit else value
    return number / unit if unit and isinstance(number, int | float) else value


def as_number(value: object) -> object:
    """Returns a number that YAML takes for text: ``4e12``, where it wants ``4.0e+12``."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def changed(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``base`` with what ``own`` states, for a what-if: what has no source is assumed, and what follows from it
    follows (matrix operations a clock from the peak, usable memory from all of it)."""
    own = in_units(own, "")
    stated = dict(own)
    if isinstance(peaks := own.get("peak_tflops"), Mapping) and "flops_per_clock" not in own:
        old, rates = base.get("peak_tflops", {}), base.get("flops_per_clock", {})
        same = [key for key, peak in peaks.items() if key in rates and key in old and isinstance(peak, (int, float))]
        stated["flops_per_clock"] = {key: rates[key] * peaks[key] / old[key] for key in same}
    size, follows = own.get("memory_gib"), "memory_gib" in base and "usable_memory_gib" not in own
    if isinstance(size, (int, float)) and follows:
        stated["usable_memory_gib"] = base["usable_memory_gib"] * size / base["memory_gib"]
    sourced = {each for source in _sources(own) for each in source["values"]}
    keys = [key for key, value in stated.items() if value is not None and key not in _UNSOURCED]
    for key in tuple(keys):
        if isinstance(value := stated[key], Mapping):
            keys += [f"{key}.{name}" for name, each in value.items() if each is not None]
    unsourced = [key for key in keys if key not in sourced]
    if unsourced and isinstance(own.get("sources", []), list):
        stated["sources"] = [*own.get("sources", []), {"title": _WITHOUT, "kind": "assumed", "values": unsourced}]
    named = {"name": base["name"], "title": f"{base.get('title', base['name'])}, changed"}
    return named | _merged(base, stated) | ({} if "gpu" in base else {"base": base["name"]})


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = {key: value for key, value in base.items() if key not in _OWN}
    stated = {*own, *(each for source in _sources(own) for each in source["values"])}
    for key, value in own.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = {name: each for name, each in {**old, **value}.items() if each is not None}
            stated |= {f"{key}.{name}" for name in value}
        else:
            merged[key] = value
    remaining = _sources(base)
    for source in remaining:
        source["values"] = [each for each in source["values"] if each not in stated]
    added = own.get("sources", [])
    merged["sources"] = [each for each in remaining if each["values"]] + added if isinstance(added, list) else added
    return {key: value for key, value in merged.items() if value is not None}


def _sources(mapping: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the sources that are well formed; :meth:`Reader.sources` reports the others."""
    entries = mapping.get("sources")
    named = [each for each in (entries if isinstance(entries, list) else []) if isinstance(each, dict)]
    return [dict(each) for each in named if isinstance(each.get("values"), list)]


class Reader:
    """Takes typed values out of a mapping and collects what is wrong with them.

    A getter returns a usable stand-in after a mistake, so that one pass finds all mistakes of a file.
    """

    def __init__(self, mapping: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self.mapping = mapping
        self.where = where
        self.prefix = prefix
        self.problems: list[Problem] = []

    def inside(self, key: str, mapping: Mapping[str, Any]) -> Reader:
        """Returns a reader of what stands at ``key``, whose mistakes are this one's."""
        inner = Reader(mapping, self.where, f"{self.prefix}{key}.")
        inner.problems = self.problems
        return inner

    def fail(self, key: str, found: object, expected: str) -> None:
        self.problems.append(Problem(self.where, self.prefix + key, found, expected))

    def known(self, keys: Sequence[str]) -> None:
        """Refuses keys that are not in ``keys``."""
        allowed = [*keys, *(word for word, (key, _) in _SI.items() if key in keys)]
        for key in self.mapping:
            if key not in keys:
                self.fail(str(key), key, nearest(str(key), allowed))

    def fields(self, kind: Any, **usual: Any) -> dict[str, Any]:
        """Returns the values of the fields that a dataclass says files state, in its units. ``usual``: by name, for
        fields that the file leaves out."""
        values: dict[str, Any] = {}
        defaults = {each.name: each.default for each in fields(kind) if each.default is not MISSING} | usual
        for name, each in stated_of(kind).items():
            key, (target, _) = each.key or name, target_of(hints(kind)[name])
            if key not in self.mapping and name in defaults and not each.needed:
                values[name] = defaults[name]
            elif target is str:
                values[name] = self.choice(key, each.words) if each.words else self.text(key)
            elif target is bool:
                values[name] = self.switch(key)
            elif target is int:
                values[name] = self.integer(key, int(each.least), int(each.most))
            elif target is float:
                values[name] = self.number(key, each.least, each.most) * each.unit
            else:
                rates = self.rates(key, DTYPES, each.least, each.most)
                values[name] = {dtype: value * each.unit for dtype, value in rates.items()}
        return values

    def text(self, key: str) -> str:
        value = self.mapping.get(key)
        if not isinstance(value, str) or not value.strip():
            self.fail(key, value, "a non-empty text")
            return "?"
        return value

    def choice(self, key: str, allowed: Sequence[str], default: str | None = None) -> str:
        value = self.mapping.get(key, default)
        if value not in allowed:
            self.fail(key, value, f"one of {', '.join(allowed)}")
            return allowed[0]
        return str(value)

    def number(self, key: str, low: float, high: float) -> float:
        """Returns a number within [low, high]."""
        return self._checked(key, self.mapping.get(key), low, high)

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value: Any = as_number(self.mapping.get(key, default))
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not low <= value <= high or value != int(value):
            self.fail(key, self.mapping.get(key, default), f"a whole number from {low} to {high}")
            return low
        return int(value)

    def switch(self, key: str) -> bool:
        """Returns true or false; false where nothing is said."""
        value = self.mapping.get(key, False)
        if not isinstance(value, bool):
            self.fail(key, value, "true or false")
        return value is True

    def rates(self, key: str, names: Sequence[str], low: float, high: float) -> dict[str, float]:
        """Returns a mapping from operand type to a number within [low, high]; at least one entry."""
        value = self.mapping.get(key)
        if not isinstance(value, dict) or not value:
            self.fail(key, value, f"a mapping from operand type ({', '.join(names)}) to a number")
            return {}
        for name in value:
            if name not in names:
                self.fail(f"{key}.{name}", name, nearest(str(name), list(names)))
        return {str(k): self._checked(f"{key}.{k}", v, low, high) for k, v in value.items()}

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.mapping.get(key, [])
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            self.fail(key, value, "a list of texts")
            return ()
        return tuple(value)

    def sources(self, must_cover: Sequence[str]) -> tuple[str, ...]:
        """Returns the lines of ``sources``, a list of {title, kind, values} that covers each name of ``must_cover``."""
        value = self.mapping.get("sources")
        if not isinstance(value, list) or not value:
            self.fail("sources", value, "a list of {title, kind, values}")
            return ()
        lines: list[str] = []
        covered: set[str] = set()
        for i, entry in enumerate(value):
            key = f"sources[{i}]"
            if not isinstance(entry, dict) or set(entry) != {"title", "kind", "values"}:
                self.fail(key, entry, "exactly the keys title, kind, values")
                continue
            if entry["kind"] not in KINDS:
                self.fail(f"{key}.kind", entry["kind"], f"one of {', '.join(KINDS)}")
            if not isinstance(entry["values"], list):
                self.fail(f"{key}.values", entry["values"], "a list of keys of this file")
                continue
            covered.update(map(str, entry["values"]))
            lines.append(f"{', '.join(map(str, entry['values']))}: {entry['kind']}, {entry['title']}")
        for name in must_cover:
            if name not in covered:
                self.fail("sources", f"nothing for {name}", "a source for every value")
        return tuple(lines)

    def _checked(self, key: str, value: object, low: float, high: float) -> float:
        value = as_number(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            self.fail(key, value, f"a number from {low:g} to {high:g}")
            return low
        return float(value)


def keys_of(kind: Any) -> tuple[str, ...]:
    """Returns the keys of the fields that a dataclass says files state."""
    return tuple(each.key or name for name, each in stated_of(kind).items())


def written(item: Any, digits: int) -> dict[str, Any]:
    """Returns what a file states of an object, to so many digits: the inverse of :meth:`Reader.fields`. Fields at their
    default are left out."""

    def plain(value: Any, unit: float) -> Any:
        if isinstance(value, Mapping):
            return {key: plain(each, unit) for key, each in value.items()}
        return float(f"{value / unit:.{digits}g}") if isinstance(value, float) else value

    usual = {each.name: each.default for each in fields(item)}
    return {
        each.key or name: plain(value, each.unit)
        for name, each in stated_of(type(item)).items()
        if (value := getattr(item, name)) != usual[name]
    }
