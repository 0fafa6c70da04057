"""The assumptions of a plan beside the step: each a parameter with its source and the 90 % range in which it is moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from projector.errors import Problem, nearest, raise_all
from projector.io.files import read_yaml
from projector.parameter import FIELDS, Parameter, parameter

Ranges = Mapping[str, Parameter]

NODE = parameter(
    8, kind="published", source="GPUs of the nodes whose failures are counted: arXiv 2410.21680", unit="GPUs"
)
_TABLE: Mapping[str, Mapping[str, Any]] = read_yaml(Path(__file__).with_suffix(".yaml"))
ASSUMPTIONS: Ranges = {
    name: parameter(**{key: row[key] for key in FIELDS if key in row}) for name, row in _TABLE.items()
}
#: The words of a table for each name; the last four are no assumptions but come from projection and prices.
WORDS = {name: str(row["words"]) for name, row in _TABLE.items()} | {
    "step_seconds": "seconds of a step (projected)",
    "slowest_chip": "step with another spread of clocks",
    "price_per_gpu_hour": "price of a GPU-hour",
    "energy_price_per_kwh": "price of a kWh",
}


def assumed(texts: Sequence[str]) -> Ranges:
    """Returns :data:`ASSUMPTIONS` with the values of ``KEY=VALUE`` or ``KEY=VALUE,LOW,HIGH`` texts in their place; a
    value without a range is certain. Raises :class:`InputError` with every mistake."""
    ranges, problems = dict(ASSUMPTIONS), list[Problem]()
    for text in texts:
        key, _, values = text.partition("=")
        name = key.strip().replace("-", "_")
        if name not in ASSUMPTIONS:
            problems.append(Problem("--assume", "", text, nearest(name, tuple(ASSUMPTIONS))))
            continue
        low, high = _TABLE[name]["limits"]
        value = ranged(values.split(","), low, high, ASSUMPTIONS[name].unit, "command line")
        if value is None:
            expected = f"{name}=VALUE or VALUE,LOW,HIGH: numbers from {low:g} to {high:g}, VALUE between LOW and HIGH"
            problems.append(Problem("--assume", "", text, expected))
            continue
        ranges[name] = value
    raise_all(problems)
    return ranges


def ranged(values: Sequence[object], low: float, high: float, unit: str, source: str) -> Parameter | None:
    """Returns the parameter of one number, or of a number with its range (value, low, high); None where they are not
    finite, ordered and in bounds."""
    numbers = [_number(each) for each in values]
    if len(numbers) not in (1, 3) or not all(isfinite(each) and low <= each <= high for each in numbers):
        return None
    value, lowest, highest = numbers if len(numbers) == 3 else numbers * 3
    if not lowest <= value <= highest:
        return None
    return Parameter(value, "assumed", source, lowest, highest, unit)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return float("nan")
    try:
        return float(value)
    except (ValueError, OverflowError):
        return float("nan")


def ends(given: Parameter) -> tuple[float, float, float]:
    """Returns (low, value, high) of a parameter; without a range the value thrice."""
    return (given if given.low is None else given.low, given.value, given if given.high is None else given.high)
