"""How a run splits its model and state, as a reader groups rows by it."""

from __future__ import annotations

from harness.contracts.results import RunFacts

#: Recipe key → its name in a report, and what it is where a recipe does not say.
DEGREES = {
    "tp": ("TP", "1"),
    "pp": ("PP", "1"),
    "ep": ("EP", "1"),
    "cp": ("CP", "1"),
    "data_parallel_sharding": ("data-parallel sharding", "framework's own"),
}


def degrees(facts: RunFacts) -> dict[str, str]:
    """Values by recipe key; empty texts where the source states no whole configuration."""
    if not facts.complete:
        return dict.fromkeys(DEGREES, "")
    return {key: facts.differs.get(key, usual) for key, (_, usual) in DEGREES.items()}


def order(value: str) -> tuple[int, str]:
    """A sort key: degrees by size, then words by the alphabet."""
    return (int(value), "") if value.isdecimal() else (1 << 30, value)
