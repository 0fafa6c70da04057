"""Numbers as logs print them: thousands separated by commas, exponents, units; a broken one is None, never an error."""

from __future__ import annotations

import math
import re

__all__ = ["NUMBER", "finite", "group", "loss", "whole"]

#: A positive number in a regular expression, as one group.
NUMBER = r"([0-9][0-9,]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?)"
#: Auxiliary losses (``load_balancing_loss``, ``mtp_1 loss``) stand beside the one of the language model.
_BEFORE = r"(?:(?<=lm loss)|(?<=reduced_train_loss)|(?<=\s\sloss)|(?<=[|,;]\sloss))"
_LOSS = re.compile(rf"loss{_BEFORE}[:=]\s{{0,9}}{NUMBER}")
_MOST_DIGITS = 18  # of an iteration or a batch: more is no count


def finite(text: str) -> float | None:
    """A finite number, or None."""
    try:
        value = float(text.replace(",", "") if "," in text else text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def group(match: re.Match[str] | None, index: int = 1) -> float | None:
    """A group of a match as a number; None without a match."""
    return finite(match[index]) if match else None


def loss(line: str) -> float | None:
    """The loss of the language model that a step's line prints; None where it prints none, or NaN."""
    return group(_LOSS.search(line)) if "loss" in line else None


def whole(text: str) -> int | None:
    """A count; None where it is none, or has more digits than any count."""
    bare = text.replace(",", "")
    return int(bare) if bare.isdecimal() and len(bare) <= _MOST_DIGITS else None
