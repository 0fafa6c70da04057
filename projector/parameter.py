"""Constants that know where they come from: a number with its unit, kind, source, range, and whether it was chosen on
rows that are scored.

A :class:`Parameter` is a ``float`` (a :class:`Count` an ``int``), so formulas read as before, and what they give is a
plain number. In code one is declared where it is used, alone or as a table whose entries share a source::

    SHARE = parameter(0.87, kind="published", source="nvbandwidth on H100 PCIe 5.0")
    LINK = parameter({"volta": 15.8e9, "ampere": 31.5e9}, unit="B/s", kind="datasheet", source="PCIe 3.0 and 4.0")

In a file one is ``key: {value: 3.0, kind: published, source: …, low: 2.0, high: 6.0}``; the unit is that of the name
(``launch_us``) unless ``unit`` states it. ``projector constants`` lists all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, NoReturn, Self, TypeVar, cast

from projector.errors import Problem

KINDS = ("datasheet", "derived", "published", "measured", "fitted", "assumed")
FIELDS = ("value", "unit", "kind", "source", "low", "high", "scored")
_UNITS = {
    "tflops": "TFLOP/s",
    "us": "us",
    "ms": "ms",
    "gbs": "GB/s",
    "tbs": "TB/s",
    "bytes": "B",
    "gib": "GiB",
    "mib": "MiB",
    "kib": "KiB",
    "mhz": "MHz",
    "watts": "W",
    "steps": "steps",
}
_DECLARED: dict[str, list[Parameter | Count]] = {}
T = TypeVar("T")


class _Sourced:
    """The provenance of a number. ``kind``: one of ``KINDS``; ``low``, ``high``: the range in which it may be moved;
    ``scored``: it was chosen while looking at measured runs on which projections are scored."""

    value: float
    unit: str
    kind: str
    source: str
    low: float | None
    high: float | None
    scored: bool

    def __new__(
        cls,
        value: float,
        kind: str = "",
        source: str = "",
        low: float | None = None,
        high: float | None = None,
        unit: str = "1",
        scored: bool = False,
    ) -> Self:
        new: Any = super().__new__(cls, value)  # type: ignore[call-arg]
        new.__dict__.update(value=new.real, unit=unit, kind=kind, source=source, low=low, high=high, scored=scored)
        return cast(Self, new)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a parameter is fixed: {name}")

    def said(self, source: str) -> Self:
        """Returns the same number with another source."""
        return type(self)(self.value, self.kind, source, self.low, self.high, self.unit, self.scored)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.value, self.kind, self.source, self.low, self.high, self.unit, self.scored)


class Parameter(_Sourced, float):
    """A real number with its provenance."""


class Count(_Sourced, int):
    """A whole number with its provenance."""


def parameter(
    value: T, *, kind: str, source: str, unit: str = "1", low: float | None = None, high: float | None = None,
    scored: bool = False,
) -> T:  # fmt: skip
    """Returns ``value`` with every number in it (also inside mappings and tuples) as a parameter of the calling module.

    Raises ``ValueError`` for a number outside [low, high], an unknown kind, or no source.
    """
    numbers: list[Parameter | Count] = []

    def sourced(item: Any) -> Any:
        if isinstance(item, Mapping):
            return {key: sourced(each) for key, each in item.items()}
        if isinstance(item, tuple):
            whole = [sourced(each) for each in item]
            return type(item)(*whole) if hasattr(item, "_fields") else tuple(whole)
        if isinstance(item, bool | str) or not isinstance(item, int | float):
            return item
        one = (Count if isinstance(item, int) else Parameter)(item, kind, source, low, high, unit, scored)
        wrong = next(_wrong(one), None)
        if wrong is not None:
            raise ValueError(f"parameter {wrong[0]}: found {wrong[1]!r}, expected {wrong[2]}")
        numbers.append(one)
        return one

    sourced_value: T = sourced(value)
    _DECLARED.setdefault(sys._getframe(1).f_globals["__name__"], []).extend(numbers)
    return sourced_value


def read(cell: object, where: str, key: str, problems: list[Problem]) -> Parameter:
    """Returns the parameter ``key`` of a file; every mistake of its cell goes to ``problems``."""
    if not isinstance(cell, Mapping):
        problems.append(Problem(where, key, cell, "a mapping with value, kind and source"))
        return Parameter(0.0)
    problems.extend(
        Problem(where, f"{key}.{name}", cell[name], f"one of {', '.join(FIELDS)}")
        for name in cell
        if name not in FIELDS
    )
    numbers: dict[str, float | None] = {}
    for name in ("value", "low", "high"):
        raw = cell.get(name)
        good = isinstance(raw, int | float) and not isinstance(raw, bool)
        numbers[name] = float(raw) if good else None  # type: ignore[arg-type]
        if not good and (raw is not None or name == "value"):
            problems.append(Problem(where, f"{key}.{name}", raw, "a number"))
    value, unit, scored = numbers["value"], cell.get("unit", named_unit(key)), cell.get("scored", False)
    if not isinstance(scored, bool):
        problems.append(Problem(where, f"{key}.scored", scored, "true or false"))
    number = Parameter(
        0.0 if value is None else value,
        str(cell.get("kind")),
        str(cell.get("source") or ""),
        numbers["low"],
        numbers["high"],
        str(unit),
        scored is True,
    )
    problems.extend(
        Problem(where, f"{key}.{name}", cell.get(name), expected)
        for name, _, expected in _wrong(number)
        if name != "value" or value is not None
    )
    return number


def _wrong(number: Parameter | Count) -> Iterator[tuple[str, object, str]]:
    if number.kind not in KINDS:
        yield "kind", number.kind, f"one of {', '.join(KINDS)}"
    if not number.source.strip():
        yield "source", number.source, "where the value comes from"
    if not isfinite(number.value):
        yield "value", number.value, "a finite number"
    low, high = number.low, number.high
    if (low is not None and number.value < low) or (high is not None and number.value > high):
        yield "value", number.value, f"a number from {low} to {high}"


def named_unit(name: str) -> str:
    """Returns the unit that a name carries, such as us in ``gemm.launch_us.cublaslt``; 1 where it carries none."""
    words = (word for part in reversed(name.split(".")) if "_" in part for word in part.split("_")[1:])
    return next((_UNITS[word] for word in words if word in _UNITS), "1")


def declared(module: str) -> Mapping[str, Parameter | Count]:
    """Returns the parameters of an imported module by name: ``_SHARE``, ``_LINK.volta``. Raises ``LookupError`` where
    one has no name."""
    unnamed = {id(each): each for each in _DECLARED.get(module, ())}
    named: dict[str, Parameter | Count] = {}

    def look(name: str, item: Any) -> None:
        if id(item) in unnamed:
            named[name] = unnamed.pop(id(item))
        elif isinstance(item, Mapping):
            for key, each in item.items():
                look(f"{name}.{key}", each)
        elif isinstance(item, tuple):
            for at, each in enumerate(item):
                look(f"{name}.{getattr(item, '_fields', range(len(item)))[at]}", each)

    for name, item in vars(sys.modules[module]).items():
        if unnamed:
            look(name, item)
    if unnamed:
        raise LookupError(
            f"{module}: a parameter that no name of the module holds, of value {next(iter(unnamed.values()))}"
        )
    return named
