"""Words of a command line that several commands read alike: tokens of a run, the price of a GPU-hour."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from projector.errors import InputError
from projector.workload import amounts

if TYPE_CHECKING:
    from projector.plan.price import Price


def tokens(text: str) -> float:
    """``15T``, ``300B``, ``14.8e12``, for argparse."""
    number = amounts.tokens(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {amounts.TOKENS}")
    return number


def price(text: str) -> Price:
    """Of a GPU-hour: a number, or a file, for argparse, with every mistake of a file."""
    from projector.plan.price import read_price

    try:
        return read_price(text)
    except InputError as error:
        if all(problem.where == "--price" for problem in error.problems):
            expected = error.problems[0].expected
            raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}") from None
        raise argparse.ArgumentTypeError("; ".join(error.lines())) from None  # argparse hides any other ValueError
