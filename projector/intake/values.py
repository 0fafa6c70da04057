"""Reads values as other tools print them: Python literals, enum members, torch types, YAML scalars."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from projector.errors import InputError, Problem

T = TypeVar("T")

_ENUM = re.compile(r"^[A-Za-z_]\w*\.([A-Za-z_]\w*)$")
_TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "uint8": "fp8", "float": "fp32", "half": "fp16"}
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")
_LARGEST_INTEGER, _LARGEST = 10**15, 1e30  # above every count and rate; what is larger overflows further on
_LONGEST = 100_000  # characters of a literal: 10,000 layers have theirs in less
_NONE = ("None", "null", "~", "")  # a lower-case none is a word: "no recomputation", "no graphs"


def literal(text: object) -> object:
    """Returns the value of a printed text: ``None``, ``True``, numbers, lists and tuples; else the text. A value that is no
    text is returned unchanged."""
    if not isinstance(text, str):
        return text
    bare = text.strip()
    lowered = bare.lower()
    if bare in _NONE:
        return None
    if lowered in _TRUE or lowered in _FALSE:
        return lowered in _TRUE
    try:
        if len(bare) <= _LONGEST:
            with warnings.catch_warnings():  # Python's own about texts such as 8e, which are no literals
                warnings.simplefilter("ignore")
                return ast.literal_eval(bare)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        pass
    try:
        return float(bare)
    except ValueError:
        return bare


def program(text: str, where: str) -> ast.Module:
    """Parses a Python program, which is not run. Raises :class:`InputError` for a text that is none."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise InputError([Problem(where, "", str(error)[:120], "a Python program")]) from None


def at(content: object, *keys: str) -> Any:
    """Returns the value at ``keys`` of nested mappings; None where there is none."""
    for key in keys:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


def section(content: object, key: str) -> Mapping[str, Any]:
    """Returns the mapping at ``key`` of ``content``; empty where there is none."""
    value = at(content, key)
    return value if isinstance(value, Mapping) else {}


class Reader:
    """Reads loosely typed settings as typed values, and remembers which were read and which did not fit.

    ``problems`` collects ``(key, value, expected)``; ``used`` every key that was looked at and present.
    """

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._settings = settings
        self.used: set[str] = set()
        self.problems: list[tuple[str, object, str]] = []
        self.inner: dict[str, Reader] = {}

    @property
    def unread(self) -> dict[str, object]:
        """Returns the settings that no call has read."""
        return {name: value for name, value in self._settings.items() if name not in self.used}

    def has(self, *names: str) -> bool:
        """Returns whether one of ``names`` is present with a value."""
        return any(self.raw(name) is not None for name in names)

    def stated(self, name: str) -> bool:
        """Returns whether ``name`` is present, even with None as its value."""
        return name in self._settings

    def integer(self, *names: str) -> int | None:
        """Returns the first of ``names`` that has a value, as a whole number (``"8"`` and ``8.0`` are)."""
        return self._first(names, _integer, "a whole number")

    def count(self, name: str) -> int | None:
        """Returns the whole number of ``name``; reports a problem below 1."""
        found = self.integer(name)
        if found is None or found > 0:
            return found
        self.problems.append((name, found, "a whole number above 0"))
        return None

    def number(self, *names: str) -> float | None:
        """Returns the first of ``names`` that has a value, as a number."""
        return self._first(names, _number, "a number")

    def flag(self, *names: str) -> bool | None:
        """Returns the first of ``names`` with a value, as true or false; ``no_x`` and ``disable_x`` negate x."""
        for name in names:
            for spelling, negative in ((name, False), (f"no_{name}", True), (f"disable_{name}", True)):
                value = self.raw(spelling)
                if value is None:
                    continue
                if value in (0, 1):
                    return bool(value) != negative
                self.problems.append((spelling, value, "true or false"))
                return None
        return None

    def word(self, *names: str) -> str | None:
        """Returns the first of ``names`` with a value, as text without enum prefix; torch types get short names."""
        return self._first(names, word_of, "a word")

    def text(self, name: str) -> str:
        """Returns the value of ``name`` as text, empty without one; numbers are converted to text."""
        value = self.raw(name)
        if isinstance(value, (str, int, float, type(None))):
            return "" if value is None else str(value)
        self.problems.append((name, value, "a text"))
        return ""

    def choice(self, name: str, known: Collection[str]) -> str | None:
        """Returns the word of ``name``; reports a problem, and returns None, where it is none of ``known``."""
        word = self.word(name)
        if word is None or word in known:
            return word
        self.problems.append((name, word, f"one of {', '.join(known)}"))
        return None

    def words(self, *names: str) -> tuple[str, ...] | None:
        """Returns the words of a list, or of one text separated by commas or blanks, in brackets or not."""
        return self._first(names, _words, "a list of words")

    def named(self, kinds: Mapping[str, str]) -> dict[str, Any]:
        """Returns field to value by a table of names: ``integer: a b|c`` reads whole numbers a, and b by the name b or c."""
        several = ((kind, each.split("|")) for kind, names in kinds.items() for each in names.split())
        return {names[0]: getattr(self, kind)(*names) for kind, names in several}

    def integers(self, *names: str) -> tuple[int, ...] | None:
        """Returns the whole numbers of a list, or of one text separated by commas."""
        return self._first(names, integers_of, "a list of whole numbers")

    def _first(self, names: Sequence[str], read: Callable[[object], T | None], expected: str) -> T | None:
        """Returns ``read`` of the first of ``names`` that has a value; reports a problem where ``read`` gives None."""
        for name in names:
            value = self.raw(name)
            if value is not None:
                found = read(value)
                if found is None:
                    self.problems.append((name, value, expected))
                return found
        return None

    def within(self, name: str) -> Reader:
        """Returns a reader of the mapping at ``name`` (empty where there is none), which shares this reader's problems."""
        value = self.raw(name)
        if value is not None and not isinstance(value, Mapping):
            self.problems.append((name, value, "a mapping"))
        inner = Reader(value if isinstance(value, Mapping) else {})
        inner.problems = self.problems
        return self.inner.setdefault(name, inner)

    def raw(self, name: str) -> object:
        """Returns the value of ``name`` as it stands, None when absent."""
        if name not in self._settings:
            return None
        self.used.add(name)
        value = self._settings[name]
        return literal(value) if isinstance(value, str) and _looks_literal(value) else value


def _looks_literal(text: str) -> bool:
    """Returns whether ``text`` spells a number, a truth value or None; lists stay text for their own parser."""
    bare = text.strip()
    if bare in _NONE or bare.lower() in (*_TRUE, *_FALSE):
        return True
    bare = bare.lower()
    return re.fullmatch(r"[-+]?(\d+(\.\d*)?|\.\d+)(e[-+]?\d+)?", bare) is not None


def _integer(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and abs(value) < _LARGEST_INTEGER else None


def _number(value: object) -> float | None:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _LARGEST
    return float(value) if plain else None  # type: ignore[arg-type]


def word_of(value: object) -> str | None:
    """Returns the short name of a text: an enum's member, a torch type's short name; None for a value that is no text."""
    if not isinstance(value, str):
        return None
    bare = _ENUM.sub(r"\1", value)
    return _TYPES.get(bare, bare)


def _words(value: object) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return tuple(part for part in re.split(r"[,\s]+", value.strip("[] ")) if part)
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return tuple(_ENUM.sub(r"\1", item) for item in value)
    return None


def integers_of(value: object) -> tuple[int, ...] | None:
    """Returns the whole numbers of a list, or of texts separated by commas; None for anything else."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, str) for item in value):
        value = ",".join(value)
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,15}(\s*,\s*\d{1,15})*\s*", value):
        value = [int(part) for part in value.split(",")]
    if type(value) is int:
        value = [value]
    return tuple(value) if isinstance(value, (list, tuple)) and all(type(item) is int for item in value) else None
