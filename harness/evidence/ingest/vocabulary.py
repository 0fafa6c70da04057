"""What the words of a table say of a recipe: one reader for all subjects, which leaves no word unaccounted for.

``vocabulary.yaml`` holds, subject by subject, expressions and the settings that they mean. A word of a value is taken by
one of them, is of those that say nothing (``common``), or is *unread* and handed back.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from projector import frameworks
from projector.dataclass import dataclass
from projector.intake import known_settings
from projector.io.files import read_yaml
from projector.workload import zoo

_FILE = Path(__file__).with_name("vocabulary.yaml")
_WORD = re.compile(r"[^\s()\[\]{},;:'\"=|]*[^\W_][^\s()\[\]{},;:'\"=|]*")
_FILE_NAME = re.compile(r"\S+\.(?:ya?ml|sh|py|md|toml|json|slurm)")
_LETTERS = re.compile(r"[a-z]+")
_DENIED = re.compile(r"\b(?:not?|non|without|never|w/o)[ -]$", re.IGNORECASE)
_TAKEN = " ; "
_LONGEST = 1000  # characters of a value that are read
#: Fields whose text keeps its letters as they are.
_VERBATIM = ("pipeline_model_parallel_layout",)


@dataclass(frozen=True)
class Reading:
    """The meaning of a value. ``settings``: what its words mean; ``usual``: what holds where nothing else says otherwise;
    ``unread``: the words that nothing took. ``understood``: whether the text says anything, or nothing on purpose."""

    settings: Mapping[str, object]
    usual: Mapping[str, object]
    unread: tuple[str, ...]
    understood: bool


@dataclass(frozen=True)
class Subject:
    """The keys that the subject is read from, the strongest first, its expressions in order, and why a row is refused whose
    text nobody understands (empty: the words are unread, the row stays)."""

    name: str
    keys: tuple[str, ...]
    words: tuple[tuple[re.Pattern[str], Mapping[str, object], Mapping[str, object]], ...]
    refused: str


@cache
def subjects() -> Mapping[str, Subject]:
    """Returns every subject by its name, in the order of the file."""
    return MappingProxyType({name: _subject(name, raw) for name, raw in _content()["subjects"].items()})


@cache
def by_key() -> Mapping[str, tuple[Subject, int]]:
    """Returns for each key the subject that reads it, and the place of the key among the keys of that subject."""
    return MappingProxyType({key: (item, i) for item in subjects().values() for i, key in enumerate(item.keys)})


#: Patterns of switches.
_SWITCHES = {True: r"^(?:true|yes|on|1)$", False: r"^(?:false|no|off|none|0)$"}


def _subject(name: str, raw: Mapping[str | bool, object]) -> Subject:
    words = []
    for pattern, settings in raw.items():
        if pattern not in ("keys", "refused"):
            hard = dict(settings or {})  # type: ignore[call-overload]
            usual = hard.pop("usual", {})
            text = _SWITCHES[pattern] if isinstance(pattern, bool) else pattern
            words.append((re.compile(text, re.IGNORECASE), hard, usual))
    return Subject(name, tuple(str(raw.get("keys", "")).split()), tuple(words), str(raw.get("refused", "")))


@cache
def _content() -> dict[str, dict[str, Any]]:
    content: dict[str, dict[str, Any]] = read_yaml(_FILE)
    return content


@cache
def common() -> frozenset[str]:
    """Returns the words that say nothing in any value."""
    return frozenset(str(_content()["common"]).split())


@lru_cache(maxsize=4096)
def read(subject: str, text: str) -> Reading:
    """Reads what ``text`` says of a subject. Of two contradicting words the first counts, the other is unread."""
    settings: dict[str, object] = {}
    usual: dict[str, object] = {}
    understood = False
    unread_words = [f"{len(text) - _LONGEST} characters more"] if len(text) > _LONGEST else []
    rest_of_text = text[:_LONGEST]
    for pattern, hard, soft in subjects()[subject].words:

        def take(match: re.Match[str], hard: Mapping[str, object] = hard, soft: Mapping[str, object] = soft) -> str:
            nonlocal understood
            said = {name: _filled(name, value, match) for name, value in hard.items()}
            other = (settings.get(name, value) != value for name, value in said.items() if not isinstance(value, tuple))
            if _means_another(match) or any(other):
                return match[0]
            if said.pop("unmodelled", False):
                unread_words.append(match[0])
            for name, value in said.items():
                settings[name] = _merged(settings.get(name), value)
            for name, value in soft.items():
                usual.setdefault(name, _filled(name, value, match))
            understood = understood or bool(said or soft)
            return _TAKEN

        rest_of_text = pattern.sub(take, rest_of_text)
    rest = (*unread_words, *unread(rest_of_text, named(subject)))
    return Reading(settings, usual, rest, understood or not rest)


def _means_another(match: re.Match[str]) -> bool:
    """Returns whether a match is empty, begins or ends in a word (``fp8`` in ``config_fp8``) or is denied."""
    start, end = match.span()
    around = match.string[max(0, start - 1) : start + 1], match.string[end - 1 : end + 1]
    return (
        start == end
        or _DENIED.search(match.string[:start]) is not None
        or any(len(pair) == 2 and re.fullmatch(r"\w\w", pair) is not None for pair in around)
    )


def unread(text: str, names: Collection[str] = ()) -> Iterator[str]:
    """Yields the unread words of a text, adjacent ones together. ``names``: words that count as read."""
    for part in text.split(_TAKEN.strip()):
        words = (word.rstrip(".") for word in _WORD.findall(part))
        rest = [word for word in words if word.lower() not in common() and not _FILE_NAME.fullmatch(word)]
        rest = [word for word in rest if not (names and all(map(names.__contains__, _LETTERS.findall(word.lower()))))]
        if rest:
            yield " ".join(rest)


@cache
def named(subject: str) -> frozenset[str]:
    """Returns words of the names that a subject may hold beside its own words: of models, or of frameworks."""
    texts = {
        "model": lambda: (alias for name in zoo.names() for alias in (name, *zoo.entry(name).aliases)),
        "framework": lambda: (alias for name in frameworks.names() for alias in (name, *frameworks.load(name).aliases)),
    }
    known = texts[subject]() if subject in texts else ()
    return frozenset(word for text in known for word in _LETTERS.findall(text.lower()))


def _filled(name: str, value: object, match: re.Match[str]) -> object:
    """Puts the groups of a match in place of ``\\1``, and the first group that matched in place of ``\\+``."""
    if isinstance(value, list):
        return tuple(_filled(name, item, match) for item in value)
    if not isinstance(value, str) or "\\" not in value:
        return value
    groups = [match[0], *((group or "") for group in match.groups())]
    first = next(filter(None, groups[1:]), "")
    text = re.sub(r"\\(\d)", lambda at: groups[int(at[1])], value).replace("\\+", first)
    if name in _VERBATIM:
        return text
    if size := re.fullmatch(r"(\d+) ([MG])iB", text, re.IGNORECASE):
        return int(size[1]) << (30 if size[2] in "Gg" else 20)
    return int(text) if text.isdigit() else float(text) if re.fullmatch(r"\d*\.\d+", text) else text.lower()


def _merged(before: object, value: object) -> object:
    if isinstance(before, tuple) and isinstance(value, tuple):
        return tuple(dict.fromkeys((*before, *value)))
    return value


@cache
def arguments() -> Mapping[str, Mapping[str, object]]:
    """Returns further names of framework arguments, by how their value is meant: see the file."""
    return MappingProxyType(_content()["arguments"])


@lru_cache(maxsize=4096)
def changes_nothing(key: str, value: str) -> bool:
    """Returns whether a key that nobody reads changes neither seconds nor bytes at this value."""
    name = key.rpartition(".")[2]
    alone = known_settings.sort({name.lower(): value}, frozenset(), "", written=False)
    return _neutral_keys().fullmatch(key) is not None or not alone.unmodelled


@cache
def _neutral_keys() -> re.Pattern[str]:
    return re.compile("|".join(re.escape(name).replace(r"\*", ".*") for name in str(_content()["neutral"]).split()))


def part_for(text: str, gpu: str) -> str:
    """Returns the part of ``"… (32x32 on GB200/B200; 128x128 on H100)"`` that is said of this GPU."""
    family = re.sub(r"_.*", "", gpu.lower())
    parts = re.split(r"([;()])", text)
    others = [
        bool(re.search(r"\bon [A-Z]+\d", part)) and not re.search(rf"\b{re.escape(family)}\b", part.lower())
        for part in parts
    ]
    return "".join(part for part, other in zip(parts, others, strict=True) if not other)
