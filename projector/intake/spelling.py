"""Whether a name nobody knows is a known one misspelt: a slip of the pen, words left out or in another order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_SHORT = 12  # letters: below, one slip at most; from there on two
_SHORTEST = 4  # letters: shorter names are a slip of anything
_FEWEST_WORDS = 4  # of a name that lacks one of them and still means it


def normal(name: str) -> str:
    """A setting's name as Python spells it: no leading dashes, ``_`` for ``-``, lower case."""
    return name.strip().lstrip("-").replace("-", "_").lower()


def misspelt(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """The names of ``known`` that ``name`` misspells, nearest first; empty: it is a name of its own."""
    word = normal(name)
    found = [(distance, each) for each in known if (distance := _distance(word, each)) is not None]
    return tuple(each for _, each in sorted(found)[:3])


def _distance(word: str, known: str) -> int | None:
    if word == known:
        return 0
    if re.sub(r"\d+", "#", word) == re.sub(r"\d+", "#", known):
        return None  # fp4 beside fp8: other numbers, another setting
    if Counter(known.split("_")) < Counter(word.split("_")):
        return None  # v_head_dim beside head_dim: a word more, a setting more special
    least = min(len(word), len(known))
    allowed = 0 if least < _SHORTEST else 1 if least < _SHORT else 2
    bare, other = word.replace("_", ""), known.replace("_", "")
    if bare == other:
        return 1
    if abs(len(bare) - len(other)) <= allowed and (slips := _slips(bare, other, allowed)) <= allowed:
        return slips
    return 3 if _reworded(word.split("_"), known.split("_")) else None


def _reworded(words: list[str], known: list[str]) -> bool:
    """The same words in another order, or all but one of four or more."""
    missing = Counter(known) - Counter(words)
    extra = Counter(words) - Counter(known)
    return not extra and missing.total() <= (1 if len(known) >= _FEWEST_WORDS else 0)


def _slips(a: str, b: str, most: int) -> int:
    """Letters inserted, left out, replaced or swapped with their neighbour (optimal string alignment); cut off above
    ``most``."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        before, last, row = row, before, [i]
        for j, other in enumerate(b, 1):
            cost = min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return most + 1
    return row[-1]
