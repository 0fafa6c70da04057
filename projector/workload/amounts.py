"""Amounts as people write them: ``15T`` tokens."""

from __future__ import annotations

import re

TOKENS = "a number of tokens from 1 to 1e18: 15T, 300B, 14.8e12"
_TOKENS = re.compile(r"(\d+(?:\.\d*)?(?:e\+?\d+)?)\s*([kmbt]?)", re.IGNORECASE)
_TIMES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_MOST = 1e18


def tokens(text: str) -> float | None:
    """None for what is none of :data:`TOKENS`."""
    match = _TOKENS.fullmatch(text.strip())
    number = float(match[1]) * _TIMES[match[2].lower()] if match else 0.0
    return number if 1 <= number <= _MOST else None
