"""The ``assumed`` column of a row as its entries."""

from __future__ import annotations


def entries(assumed: str) -> list[str]:
    """What the column lists, one entry for each field that was filled in."""
    return [word for word in assumed.split("; ") if word]
