"""Reports what is wrong with an input: every mistake of a file at once, in one shape."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TypeVar

from projector.dataclass import dataclass

#: ``Problem.found`` where a file is missing.
NO_FILE = "no such file"
_MOST_TEXT = 300
_MOST_EXPECTED = 3_000
_MOST_PROBLEMS = 100
_MOST_LINES = 16_384  # characters of all mistakes together
_T = TypeVar("_T")


def truncate(text: str, most: int) -> str:
    """Returns ``text``, or of a longer one its first characters and ``…``: ``most`` characters in all."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def plain(text: object, most: int = _MOST_TEXT) -> str:
    """Returns ``text`` for one line of a terminal or a log: control characters escaped, cut behind ``most`` characters."""
    line = truncate(str(text), most)
    return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


class _Short(reprlib.Repr):
    """A ``repr`` that never fails, shows what people write in full, and cuts what a machine or an attacker wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxdict, self.maxlist, self.maxtuple, self.maxset = 3, 12, 24, 24, 12
        self.maxstring, self.maxother, self.maxlong = 300, 300, 60

    def repr1(self, x: object, level: int) -> str:
        try:
            return str(super().repr1(x, level))
        except Exception:  # an integer of 5,000 digits, a __repr__ that raises
            return f"<{type(x).__name__}>"


_SHORT = _Short()


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: it names the file (or other origin), the key inside it, what stood there and what was expected."""

    where: str
    key: str
    found: object
    expected: str

    def __str__(self) -> str:
        place = ": ".join(plain(part) for part in (self.where, self.key) if part)
        if isinstance(self.found, str) and self.found == NO_FILE:
            return f"{place} does not exist"
        return f"{place}: found {_SHORT.repr(self.found)}, expected {plain(self.expected, _MOST_EXPECTED)}"


class InputError(ValueError):
    """Raised by every loader with *all* problems of its input; a command line prints them and exits with 2."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(self.lines()))

    def __reduce__(self) -> tuple[type[InputError], tuple[tuple[Problem, ...]]]:
        return InputError, (self.problems,)  # so that it can come back from another process

    def lines(self) -> list[str]:
        """Returns what to print, one mistake a line; of thousands the first, and how many more."""
        texts = [str(problem) for problem in self.problems[:_MOST_PROBLEMS]]
        lengths = accumulate(map(len, texts))
        shown = [text for text, length in zip(texts, lengths, strict=True) if length <= _MOST_LINES] or texts[:1]
        more = len(self.problems) - len(shown)
        return [*shown, f"and {more} more mistakes"] if more else shown


def raise_all(problems: Sequence[Problem]) -> None:
    """Raises :class:`InputError` with all of ``problems``, where there are any."""
    if problems:
        raise InputError(problems)


@contextmanager
def collecting_into(problems: list[Problem]) -> Iterator[None]:
    """Adds the problems of the block to ``problems``, and goes on behind the block."""
    try:
        yield
    except InputError as error:
        problems += error.problems


def or_none(problems: list[Problem], read: Callable[[], _T]) -> _T | None:
    """Returns what ``read`` returns; None where it raises :class:`InputError`, whose problems join ``problems``."""
    try:
        return read()
    except InputError as error:
        problems += error.problems
        return None


class Unsupported(ValueError):
    """A valid workload that no model here can project; the text is the reason shown in the results table."""

    def __init__(self, reason: str) -> None:
        super().__init__(plain(reason, _MOST_EXPECTED))


#: The errors of a workload without a projection.
Refusal = InputError | Unsupported


class NoMeasurement(ValueError):
    """Benchmark mode has no table for this GPU and no such device at hand; reads ``no measurement for <gpu>``.

    Nothing is simulated in its place.
    """


def unknown(key: str, words: Iterable[str], known: Sequence[str], where: str = "command line") -> list[Problem]:
    """Returns a problem at ``key`` for each of ``words`` that is not ``known``."""
    return [Problem(where, key, word, nearest(word, known)) for word in words if word not in known]


def nearest(word: str, known: Sequence[str]) -> str:
    """Returns text for ``Problem.expected`` that names up to three of ``known`` that are like ``word``, those with the
    same beginning first; where none is like it, the first of them."""
    text = str(word).lower()
    close = difflib.get_close_matches(text, list(known), n=6, cutoff=0.5)
    close = sorted(close, key=lambda name: not name.startswith(text))[:3]
    if close:
        return f"a known name; nearest: {', '.join(close)}"
    head = ", ".join(sorted(known)[:8])
    return f"a known name, such as {head}"
