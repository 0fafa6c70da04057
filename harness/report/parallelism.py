"""The parallel sizes and the sharding of a run, by which a reader groups rows."""

from __future__ import annotations

from harness.contracts.results import RunFacts

#: Recipe key → its name in a report, and the value where a recipe does not state it.
DEGREES = {
    "tp": ("TP", "1"),
    "pp": ("PP", "1"),
    "ep": ("EP", "1"),
    "cp": ("CP", "1"),
    "data_parallel_sharding": ("data-parallel sharding", "framework's own"),
}


def degrees(facts: RunFacts) -> dict[str, str]:
    """Returns the values by recipe key; empty texts where the source states no whole configuration."""
    if not facts.complete:
        return dict.fromkeys(DEGREES, "")
    return {key: facts.differs.get(key, usual) for key, (_, usual) in DEGREES.items()}


def order(value: str) -> tuple[int, str]:
    """Returns a sort key: degrees by size, then words by the alphabet."""
    return (int(value), "") if value.isdecimal() else (1 << 30, value)
