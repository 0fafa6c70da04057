"""Finds the known name that an unknown one misspells: wrong letters, words left out or in another order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

_SHORT = 12  # letters: below, one slip at most; from there on two
_SHORTEST = 4  # letters: shorter names are a slip of anything
_FEWEST_WORDS = 4  # of a name that lacks one of them and still means it


def normal(name: str) -> str:
    """Returns a setting's name as Python spells it: no leading dashes, ``_`` for ``-``, lower case."""
    return name.strip().lstrip("-").replace("-", "_").lower()


def misspelt(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of ``known`` that ``name`` misspells, nearest first; empty for a name unlike all of them."""
    word = normal(name)
    found = [(distance, each) for each in known if (distance := _distance(word, each)) is not None]
    return tuple(each for _, each in sorted(found)[:3])


def _distance(word: str, known: str) -> int | None:
    if word == known:
        return 0
    (words, bare, plain), (others, other, form) = _form(word), _form(known)
    least = min(len(word), len(known))
    allowed = 0 if least < _SHORTEST else 1 if least < _SHORT else 2
    near = abs(len(bare) - len(other)) <= allowed
    if not near and not words.keys() <= others.keys():
        return None
    if plain == form:
        return None  # fp4 beside fp8: other numbers, another setting
    if others < words:
        return None  # v_head_dim beside head_dim: a word more, a setting more special
    if bare == other:
        return 1
    if near and (slips := _slips(bare, other, allowed)) <= allowed:
        return slips
    return 3 if _reworded(words, others) else None


@lru_cache(maxsize=4096)
def _form(name: str) -> tuple[Counter[str], str, str]:
    """Returns how often each word of ``name`` stands in it, its letters alone, and the name with a sign for its numbers."""
    return Counter(name.split("_")), name.replace("_", ""), re.sub(r"\d+", "#", name)


def _reworded(words: Counter[str], known: Counter[str]) -> bool:
    """Returns whether both have the same words in another order, or all but one of four or more."""
    return words <= known and (known - words).total() <= (1 if known.total() >= _FEWEST_WORDS else 0)


def _slips(a: str, b: str, most: int) -> int:
    """Counts letters inserted, left out, replaced or swapped with a neighbour (optimal string alignment); cut off above
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
