"""What is wrong with an input: every mistake of a file at once, in one shape."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["InputError", "NoMeasurement", "Problem", "Unsupported", "nearest"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: the file (or other origin), the key inside it, what stood there and what was expected."""

    where: str
    key: str
    found: object
    expected: str

    def __str__(self) -> str:
        place = f"{self.where}: {self.key}" if self.key else self.where
        return f"{place}: found {self.found!r}, expected {self.expected}"


class InputError(ValueError):
    """Raised by every loader with *all* problems of its input; a command line prints them and exits with 2."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(str(p) for p in self.problems))


class Unsupported(ValueError):
    """A valid workload that no model here can project; the text is the reason shown in the results table."""


class NoMeasurement(ValueError):
    """Benchmark mode has no table for this GPU and no such device at hand; reads ``no measurement for <gpu>``.

    Nothing is simulated in its place.
    """


def nearest(word: str, known: Sequence[str], n: int = 3) -> str:
    """``"one of a, b, c"`` with the nearest of ``known`` first, for use as ``Problem.expected``."""
    close = difflib.get_close_matches(str(word).lower(), list(known), n=n, cutoff=0.5)
    if close:
        return f"a known name; nearest: {', '.join(close)}"
    head = ", ".join(sorted(known)[:8])
    return f"a known name, such as {head}"
