"""Reads amounts as people write them: ``15T`` tokens of a run, ``32k`` of a sequence."""

from __future__ import annotations

import re

TOKENS = "a number of tokens from 1 to 1e18: 15T, 300B, 14.8e12"
_TOKENS = re.compile(r"(\d+(?:\.\d*)?(?:e\+?\d+)?)\s*([kmbt]?)", re.IGNORECASE)
_TIMES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_MOST = 1e18
#: ``32k`` tokens of a sequence are 32,768 everywhere in the field; a budget of training tokens counts by thousands.
_SUFFIXES = {"k": 1 << 10, "m": 1 << 20}
_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([km])i?", re.IGNORECASE)


def tokens(text: str) -> float | None:
    """Returns the number of tokens; None for a text that is none of :data:`TOKENS`."""
    match = _TOKENS.fullmatch(text.strip())
    number = float(match[1]) * _TIMES[match[2].lower()] if match else 0.0
    return number if 1 <= number <= _MOST else None


def count(value: object) -> object:
    """Returns ``"32k"`` (tokens or samples) as the whole number 32,768, also inside a list; any other value comes
    back as it stands."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(count, value))
    match = _COUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    number = float(match[1]) * _SUFFIXES[match[2].lower()] if match else 0.5
    return int(number) if number.is_integer() else value
