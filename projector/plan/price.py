"""Reads the price of a GPU-hour from a user's file: no price is known here.

price_per_gpu_hour: {value: 2.0, low: 1.8, high: 2.5}    # or one number
currency: USD
source: offer of 3 March, servers and network included
energy_price_per_kwh: 0.09                               # only what is paid beside the GPU-hours
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from projector.dataclass import dataclass
from projector.errors import InputError, Problem, nearest, raise_all
from projector.hardware import catalogue
from projector.hardware.yaml_file import Reader, read_mapping
from projector.parameter import Parameter
from projector.plan.assumptions import ranged

_LEAST, _MOST = 1e-6, 1e6
_EXPECTED = f"a number from {_LEAST:g} to {_MOST:g}, or value, low and high with low ≤ value ≤ high"
_KEYS = ("price_per_gpu_hour", "energy_price_per_kwh", "price_by_gpu", "currency", "source")
_ENDS = ("value", "low", "high")


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Prices with their ranges. ``ranges``: ``price_per_gpu_hour``, ``energy_price_per_kwh`` or both, in ``currency``
    (empty: not stated); ``by_gpu``: the price of a GPU-hour by GPU, where it is stated so."""

    ranges: Mapping[str, Parameter] = field(default_factory=dict)
    by_gpu: Mapping[str, Parameter] = field(default_factory=dict)
    currency: str = ""
    source: str = ""

    def at(self, gpu: str) -> Mapping[str, Parameter]:
        """Returns ``ranges`` with the price of ``gpu``."""
        return {**self.ranges, **({"price_per_gpu_hour": self.by_gpu[gpu]} if gpu in self.by_gpu else {})}

    def gpu_hour(self, gpu: str) -> float | None:
        """Returns the price of a GPU-hour alone; None where it is not stated."""
        price = self.at(gpu).get("price_per_gpu_hour")
        return None if price is None else float(price)


def unstated(gpu: str) -> InputError:
    """Returns the refusal of a price that states none of ``gpu``."""
    return InputError([Problem("--price", "", f"none of {gpu}", "price_per_gpu_hour, or one of it in price_by_gpu")])


def read_price(text: str) -> Price:
    """Returns the price in ``text``: a number (of a GPU-hour), ``h100=2,mi300x=1.8``, or a file. Raises
    :class:`InputError` with every mistake of it."""
    if not Path(text).exists() and ("," in text or "=" in text):
        return _from_list(text)
    try:
        value = float(text)
    except ValueError:
        return _from_file(Path(text))
    price = ranged([value], _LEAST, _MOST, "per GPU-hour", "command line")
    if price is None:
        raise InputError([Problem("--price", "", text, f"a file, or {_EXPECTED.partition(',')[0]}")])
    return Price(ranges={"price_per_gpu_hour": price}, source="command line")


def _from_list(text: str) -> Price:
    pairs = [each.partition("=") for each in text.split(",")]
    try:
        cells = {name.strip(): float(value) for name, _, value in pairs}
    except ValueError:
        expected = "a number, a file, or a number for each GPU (h100=2,mi300x=1.8)"
        raise InputError([Problem("--price", "", text, expected)]) from None
    read = Reader({"price_by_gpu": cells}, "--price")
    by_gpu = _by_gpu(read, "command line")
    if len(cells) < len(pairs):
        read.fail("", text, "one price for each GPU")
    raise_all(read.problems)
    return Price(by_gpu=by_gpu, source="command line")


def _from_file(path: Path) -> Price:
    read = Reader(read_mapping(path), str(path))
    read.known(_KEYS)
    source, currency = read.text("source"), read.text("currency")
    ranges = {}
    for key in _KEYS[:2]:
        if key in read.mapping:
            price = _parameter(read.mapping[key], key, source)
            if price is None:
                read.fail(key, read.mapping[key], _EXPECTED)
            else:
                ranges[key] = price
    by_gpu = _by_gpu(read, source)
    if not ranges and not by_gpu and not read.problems:
        read.fail(_KEYS[0], None, _EXPECTED)
    raise_all(read.problems)
    return Price(ranges=ranges, by_gpu=by_gpu, currency=currency, source=source)


def _by_gpu(read: Reader, source: str) -> dict[str, Parameter]:
    cells = read.mapping.get("price_by_gpu", {})
    if not isinstance(cells, Mapping):
        read.fail("price_by_gpu", cells, "a mapping from GPU to price")
        return {}
    prices = {}
    for name, cell in cells.items():
        gpu, price = catalogue.find_gpu(str(name)), _parameter(cell, _KEYS[0], source)
        if gpu is None:
            read.fail(f"price_by_gpu.{name}", name, nearest(str(name), catalogue.gpu_names()))
        if price is None:
            read.fail(f"price_by_gpu.{name}", cell, _EXPECTED)
        if gpu in prices:
            read.fail(f"price_by_gpu.{name}", cell, f"one price for {gpu}")
        if gpu and price:
            prices[gpu] = price
    return prices


def _parameter(cell: object, key: str, source: str) -> Parameter | None:
    if isinstance(cell, Mapping) and set(cell) not in ({"value"}, set(_ENDS)):
        return None
    values = [cell[name] for name in _ENDS if name in cell] if isinstance(cell, Mapping) else [cell]
    if any(isinstance(each, str) for each in values):
        return None
    return ranged(values, _LEAST, _MOST, "per GPU-hour" if key == _KEYS[0] else "per kWh", source)
