"""Which known name a piece of free text means: words are compared, not spelling."""

from __future__ import annotations

import re
from collections.abc import Sequence

from projector.dataclass import dataclass

_WORD = re.compile(r"[a-z]+|\d+(?:\.\d+)*[bmt](?![a-z])|\d+(?:\.\d+)*")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([bmt])")
_UNIT = {"m": 1e6, "b": 1e9, "t": 1e12}


@dataclass(frozen=True, slots=True)
class Alias:
    """A spelling of ``name``. ``size``: parameters that a size word right after it must be near to (None: any)."""

    text: str
    name: str
    size: float | None

    @classmethod
    def of(cls, text: str, name: str, parameters: float | None) -> Alias:
        """``*`` in ``text`` stands for one word of any kind."""
        sized = any(_SIZE.fullmatch(word) for word in _words(text))
        return cls(run_together(text), name, None if sized else parameters)


def find_alias(text: str, aliases: Sequence[Alias]) -> str | None:
    """The name of the alias that covers the earliest, then the longest run of words of ``text``.

    Punctuation and case do not count, and letters that belong together may be apart (``DeepSeekV3``, ``deepseek-v3``).
    An alias without a size is refused where the text goes on with a size that differs from the model's by more than
    a tenth (``DeepSeek-V3 16B`` is no 671B model).
    """
    words = _words(text)
    known = {alias.text: alias for alias in reversed(aliases)}
    wild = [alias for alias in aliases if "*" in alias.text]
    for start in range(len(words)):
        for stop in range(len(words), start, -1):
            run = _join(words[start:stop])
            match = known.get(run) or next((a for a in wild if _fits(a.text, run)), None)
            if match is not None and _size_agrees(match, words[stop:]):
                return match.name
    return None


def run_together(text: str) -> str:
    """``text`` without case and punctuation, as :attr:`Alias.text` has it."""
    return _join(_words(text))


def _words(text: str) -> list[str]:
    return re.findall(_WORD.pattern + r"|\*", text.lower())


def _join(words: Sequence[str]) -> str:
    """Words run together, but two numbers stay apart: ``llama 3 8b`` is not ``llama 38b``."""
    joined = ""
    for word in words:
        joined += "_" + word if joined[-1:].isalnum() and _numeric(joined) and word[0].isdigit() else word
    return joined


def _numeric(joined: str) -> bool:
    return bool(re.search(r"\d[bmt]?$", joined))


def _fits(pattern: str, run: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", r"_?[\d.]+[bmt]?"), run) is not None


def _size_agrees(alias: Alias, rest: Sequence[str]) -> bool:
    stated = _SIZE.fullmatch(rest[0]) if rest else None
    if alias.size is None or stated is None:
        return True
    return abs(float(stated[1]) * _UNIT[stated[2]] / alias.size - 1) <= 0.1
