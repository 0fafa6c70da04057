"""Adds the flags of a command, which are rows of a table: ``flags.yaml`` beside the commands of its program.

A section of the table is a command, with its ``examples``, or begins with ``+`` and holds what several commands have. Its
rows are flags by all their names, and groups of flags by their titles (which are of several words). Behind a flag stands
the help of a switch, or the words of ``add_argument`` with these beside them: ``either``, a number that flags share of
which one may be given; ``type``, a reader of this file with its bounds (``whole 1 8``); ``action``: ``again`` (a value each
time), ``many`` (values each time), ``toggle`` (``--no-`` negates it). ``+NAME`` among the rows stands for another section,
``--json`` alone for the flag that most commands have, ``defaults`` for what no flag says.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from projector.cli.parser import Parser
from projector.errors import InputError

if TYPE_CHECKING:
    from projector.plan.price import Price

Rows = Mapping[str, Any]
NOTHING: Rows = MappingProxyType({})
_ACTIONS: Rows = {
    "again": {"action": "append", "default": []},
    "many": {"action": "extend", "nargs": "+", "default": []},
    "toggle": {"action": argparse.BooleanOptionalAction},
}
JSON = "one JSON document on stdout instead of tables"


def add_command(parser: Parser, command: Callable[[argparse.Namespace], object], known: Rows = NOTHING) -> None:
    """Adds the flags of the command of ``parser``, whose namespace then carries the function to call (``command``) and
    all flags (``options``). ``known``: as for :func:`add`."""
    rows = dict(_table(parser.table)[parser.prog.split()[-1]])
    parser.examples = rows.pop("examples")
    parser.description = rows.pop("description", parser.description)
    usage = rows.pop("usage", None)
    if "+selection" in rows:
        from projector.cli.options import add_selection

        known = {"+selection": add_selection, **known}
    _add(parser, rows, known, parser.table)
    parser.usage = usage or parser.usage
    parser.set_defaults(command=command, options=parser.flags)


def add(parser: Any, section: str, known: Rows = NOTHING, table: Path = Parser.table) -> None:
    """Adds a section of ``table`` to a parser or to one of its groups.

    ``known``: what Python knows, under the word of the table that stands for it: readers, actions, sections that a
    function adds; and further words of ``add_argument``, under the first name of their flag."""
    _add(parser, _table(table)[section], known, table)


@cache
def _table(path: Path) -> Mapping[str, Rows]:
    from projector.io.files import read_yaml

    table: Mapping[str, Rows] = read_yaml(path)
    return table


def _add(parser: Any, rows: Rows, known: Rows, table: Path) -> None:
    alternatives: dict[int, Any] = {}
    for name, row in rows.items():
        if name == "defaults":
            parser.set_defaults(**row)
        elif name in known and name.startswith("+"):
            known[name](parser)
        elif name.startswith("+"):
            _add(parser, _table(table)[name], known, table)
        elif " " in name and not name.startswith("-"):
            _add(parser.add_argument_group(name), row, known, table)
        else:
            names = name.split()
            settings = {**_settings(row, known), **known.get(names[0], {})}
            number = settings.pop("either", 0)
            if number and number not in alternatives:
                alternatives[number] = parser.add_mutually_exclusive_group()
            alternatives.get(number, parser).add_argument(*names, **settings)


def _settings(row: str | Rows | None, known: Rows) -> dict[str, Any]:
    """Returns the words of ``add_argument`` for a row."""
    if not isinstance(row, Mapping):
        return {"action": "store_true", "help": row or JSON}
    settings = dict(row)
    if "type" in settings:
        name, *bounds = settings["type"].split()
        settings["type"] = known[name] if name in known else _READERS[name](*bounds)
    action = settings.get("action", "")
    if action in known:
        settings["action"] = known[action]
    return deepcopy({**settings, **_ACTIONS.get(action, NOTHING)})  # a list may be added to


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Returns a reader of whole numbers within bounds, for argparse."""
    words = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"

    def read(text: str) -> int:
        number = int(text) if text.strip().lstrip("+").isdecimal() and len(text) < 20 else least - 1
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"found {text!r}, expected {words}")
        return number

    return read


def quantity(unit: str, low: float, high: float) -> Callable[[str], float]:
    """Returns a reader of a number of ``unit``, for argparse, within bounds that tell it from a number of another unit."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"found {text!r}, expected a number of {unit} from {low:g} to {high:g}")
        return number

    return read


def fraction(text: str) -> float:
    """Reads a number from 0 to 10, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 10:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a fraction, such as 0.05 for five points")
    return value


def tokens(text: str) -> float:
    """Reads ``15T``, ``300B`` or ``14.8e12``, for argparse."""
    from projector.workload import amounts

    number = amounts.tokens(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {amounts.TOKENS}")
    return number


def price(text: str) -> Price:
    """Reads the price of a GPU-hour, a number or a file, for argparse, with every mistake of a file."""
    from projector.plan.price import read_price

    try:
        return read_price(text)
    except InputError as error:
        if all(problem.where == "--price" for problem in error.problems):
            expected = error.problems[0].expected
            raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}") from None
        raise argparse.ArgumentTypeError("; ".join(error.lines())) from None  # argparse hides any other ValueError


#: Readers by their names in a table, made of the words behind the name.
_READERS: Mapping[str, Callable[..., Callable[[str], Any]]] = {
    "whole": lambda *bounds: whole(*map(int, bounds)),
    "quantity": lambda unit, *bounds: quantity(unit, *map(float, bounds)),
    "fraction": lambda: fraction,
    "tokens": lambda: tokens,
    "price": lambda: price,
    "path": lambda: Path,
}
