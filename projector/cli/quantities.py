"""Words of a command line that several commands read alike: tokens of a run, the price of a GPU-hour."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from projector.errors import InputError

if TYPE_CHECKING:
    from projector.plan.price import Price

__all__ = ["price", "tokens"]

_TOKENS = re.compile(r"(\d+(?:\.\d*)?(?:e\+?\d+)?)\s*([kmbt]?)", re.IGNORECASE)
_TIMES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_MOST = 1e18


def tokens(text: str) -> float:
    """``15T``, ``300B``, ``14.8e12``, for argparse."""
    match = _TOKENS.fullmatch(text.strip())
    number = float(match[1]) * _TIMES[match[2].lower()] if match else 0.0
    if not 1 <= number <= _MOST:
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected a number of tokens from 1 to 1e18: 15T, 300B, 14.8e12"
        )
    return number


def price(text: str) -> Price:
    """Of a GPU-hour: a number, or a file, for argparse; raises :class:`InputError` with every mistake of a file."""
    from projector.plan.price import read_price

    try:
        return read_price(text)
    except InputError as error:
        if all(problem.where == "--price" for problem in error.problems):
            expected = error.problems[0].expected
            raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}") from None
        raise
