"""Finds which names a loader reads by running the loader, so that no separate list of names is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache

from projector.intake.values import Reader

#: Answers that lead a loader down its branches: nothing, off, on, sizes, and the words that stand for several of them.
_ANSWERS = (None, True, False, 1, 2, "8", "none", "full", "selective", "hybrid")
_MIXTURES = 24  # of on and off by name: branches that a mixture of switches opens


class _Answers(Mapping[str, object]):
    """Acts as a configuration that holds every name, and remembers which names were looked up."""

    def __init__(self, answer: Callable[[str], object]) -> None:
        self._answer, self.asked = answer, set[str]()

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return True

    def __getitem__(self, name: str) -> object:
        return self._answer(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.asked)

    def __len__(self) -> int:
        return len(self.asked)


@cache
def names_read(loaders: tuple[Callable[[Reader], object], ...]) -> frozenset[str]:
    """Returns every name that one of ``loaders`` looks up in some configuration, with its negated spellings."""
    found: set[str] = set()
    for answers in _configurations():
        for load in loaders:
            try:
                load(Reader(answers))
            except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError):
                continue  # an answer that fits no value: what was asked before it counts
            finally:
                found |= answers.asked
    return frozenset(found)


def _tossed(salt: int, name: str) -> bool:
    return bool(hashlib.blake2b(name.encode(), digest_size=1, salt=bytes([salt])).digest()[0] & 1)


def _configurations() -> Iterable[_Answers]:
    for constant in _ANSWERS:
        yield _Answers(lambda _, constant=constant: constant)  # type: ignore[misc]
    for salt in range(_MIXTURES):
        yield _Answers(lambda name, salt=salt: _tossed(salt, name))  # type: ignore[misc]
