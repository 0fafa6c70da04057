"""One loosely typed record, looked up by canonical keys; remembers what was read, assumed and refused."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from harness.evidence.csvcell import plain
from harness.evidence.ingest.logs.numbers import finite
from projector.intake.dialect import words
from projector.io.files import read_yaml
from projector.workload.field_facts import about_of
from projector.workload.recipe import Recipe

T = TypeVar("T")
#: Which key each of the usual spellings of a column means.
_SAID = read_yaml(Path(__file__).with_name("columns.yaml"))
_WORD = {word: one for one, spelt in _SAID.pop("words").items() for word in spelt.split()}
_UNITS: dict[str, dict[str, float]] = _SAID.pop("units")
_FIGURES = {spelt: key for key, spellings in _SAID.pop("figures").items() for spelt in spellings}
_TOLD = {
    section: {key: spelt.split() for keys, spelt in told.items() for key in words(keys)}
    for section, told in _SAID.items()
}
#: What counts steps by the second, and is no time of one.
_STEPS_A_SECOND = re.compile(r"(?:steps?|its?|iters?|iterations?) ?(?:/|per) ?(?:s|sec|second)s?\b", re.IGNORECASE)
_DECLARED = {name: (*told.names.get("megatron", ()), *told.also) for name, told in about_of(Recipe).items()}
TOP_KEYS, METRIC_KEYS, ARCH_KEYS = (frozenset(_TOLD[section]) for section in ("run", "metrics", "arch"))
ALIASES = {
    spelling: key if section == "run" else f"{section}.{key}"
    for section, told in _TOLD.items()
    for key, spelt in told.items()
    for spelling in (*spelt, *(_DECLARED.get(key, ()) if section == "run" else ()))
    if spelling != key
}
#: Key of an architecture → field of the model that it is.
FIELDS = {key: spelt[0] if spelt else key for key, spelt in _TOLD["arch"].items()}

#: What a table without a column of a run is told.
COLUMNS_OF_A_RUN = (
    "columns of a run, such as model, gpu, gpus, tp, step_seconds (of a chart of W&B: those of one run, exported alone)"
)
_NO_MEMORY = re.compile(r"(?:oom|out[- ]of[- ]memory)\b.*")
_EMPTY = {"", "-", "—", "n/a", "na", "nan", "null", "unknown", "not stated", "?"}
# Keys whose text ``none`` says something: no sharding, no recompute, no pipeline. A framework argument's does too.
_NONE_MEANS = {"zero", "recompute", "schedule"}
_LARGEST = 1e18  # beyond any count, size or rate of training: nonsense
#: Attributes of a record that reading fills.
_LEFT = ("used", "mapped", "assumed", "refused", "doubts", "unread")
_NESTED = ("args", "config_exports", "env")
#: A figure with its unit, and perhaps its share of all there is: ``110.95 GiB (60.2%)``.
_WITH_UNIT = re.compile(r"\s*([\d.,]+)\s*([a-zA-Z][a-zA-Z/]*)\s*(?:\([\d.]+\s?%\)\s*)?")
#: Between thousands, as a comma is: with three digits behind it.
_BLANKS = re.compile(r"(?<=\d)[ \u00a0\u202f](?=\d{3}(?!\d))")
_BETWEEN, _HUMP = re.compile(r"[\W_]+"), re.compile(r"(?<=[a-z])(?=[A-Z][a-z])")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_LISTED = reprlib.Repr()
_LISTED.maxstring = _LISTED.maxother = 80
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def normal(header: str) -> str:
    """Returns a header in lower snake case: ``Tokens / s / GPU`` → ``tokens_s_gpu``, ``MicroBatchSize`` →
    ``micro_batch_size``. A letter of any alphabet stays: ``step time (µs)`` is no ``step_time_s``."""
    return _BETWEEN.sub("_", _HUMP.sub("_", header).lower().replace("#", "num ")).strip("_")


def number(value: object) -> float | None:
    """Reads a finite number, or a text that is one (``"1,234.5"``); None for anything else. Booleans are not numbers."""
    if isinstance(value, str):
        value = finite(_BLANKS.sub("", value))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < _LARGEST else None


def integer(value: object) -> int | None:
    """Reads a whole number, or a text that is one; None for 2.5 and for words."""
    parsed = number(value)
    return int(parsed) if parsed is not None and parsed == int(parsed) else None


def boolean(value: object) -> bool | None:
    """Reads a boolean, 0/1 or one of the usual words; None for anything else."""
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)) and value in (0, 1):
        return bool(value)
    return _WORDS.get(value.strip().lower()) if isinstance(value, str) else None


def shown(value: object) -> str:
    """Returns a value as a message quotes it: its ``repr``, shortened, whatever its size and depth."""
    return _LISTED.repr(value)


def one_line(value: object) -> str:
    """Returns a value as text of one line."""
    text = str(value)
    return (text if text.isprintable() else _CONTROLS.sub(" ", text)).strip()


def _without_unit(value: object, key: str) -> object:
    """Converts ``"1.5s"`` to 1.5 where the key has that unit; returns any other value as it is."""
    if not isinstance(value, str) or value.rstrip()[-1:].isdecimal():
        return value
    match = _WITH_UNIT.fullmatch(value)
    factor = _UNITS.get(key, {}).get(match[2].lower()) if match else None
    plain = number(match[1]) if match else None
    return value if factor is None or plain is None else plain * factor


@lru_cache(maxsize=4096)
def _stated(key: str, text: str) -> tuple[str, str] | None:
    """Returns key and text of a cell that states something: where memory stands, that there was not enough is the status."""
    word = text.strip().lower()
    says_none = key in _NONE_MEANS or key.startswith("other.")
    if word in _EMPTY or (word == "none" and not says_none):
        return None
    failed = key.startswith("metrics.") and _NO_MEMORY.fullmatch(word)
    return ("metrics.status", "out-of-memory") if failed else (key, text)


def _misfit_text(value: object, key: str, what: str) -> str:
    if isinstance(value, str) and (read := finite(_BLANKS.sub("", value))) is not None:
        value = read
    large = isinstance(value, (int, float)) and abs(value) >= _LARGEST
    return f"{key} = {shown(value)} is beyond any training" if large else f"{key} is not {what}: {shown(value)}"


class Record:
    """Values by dotted canonical keys (``tp``, ``arch.layers``, ``metrics.iteration_ms``, ``other.recompute_modules``).

    Flat records (a CSV) are sorted into the same sections by their column names; ``columns`` renames columns first. Empty
    texts and nulls count as absent.
    """

    def __init__(self, data: Mapping[str, object], where: str, columns: Mapping[str, str] | None = None) -> None:
        self._reset(where)
        names = {normal(old): new for old, new in (columns or {}).items()}
        for key, value in data.items():
            self._add(names.get(normal(str(key)), str(key)), value)

    def _reset(self, where: str) -> None:
        self.where = where
        self.values: dict[str, object] = {}
        self.used: set[str] = set()
        self.mapped: list[str] = []
        self.assumed: list[str] = []
        self.refused: list[str] = []
        self.doubts: list[str] = []
        self.unread: dict[str, str] = {}

    @classmethod
    def of_cells(cls, keys: Sequence[str], cells: Sequence[str], where: str) -> Record:
        """Builds a record from one row's cells under canonical ``keys``; undoes the shielding of :mod:`csvcell`."""
        record = cls.__new__(cls)
        record._reset(where)
        for key, cell in zip(keys, cells, strict=False):
            if cell and (stated := _stated(key, plain(cell))) is not None:
                record._put(*stated)
        return record

    def told(self) -> dict[str, Any]:
        """Returns copies of what reading has left on this record, by attribute."""
        return {name: getattr(self, name).copy() for name in _LEFT}

    def tell(self, told: Mapping[str, Any]) -> None:
        """Takes what reading has left on a record of the same values."""
        for name, left in told.items():
            setattr(self, name, left.copy())

    def _add(self, key: str, value: object) -> None:
        head, _, rest = key.partition(".")
        if isinstance(value, Mapping) and head in ("arch", "metrics", "other") and not rest:
            for inner, item in value.items():
                if head == "other" and inner in _NESTED and isinstance(item, Mapping):
                    for name, leaf in item.items():
                        self._set(f"other.{inner}.{name}", leaf)
                else:
                    named = section(str(inner))
                    self._set(named if named.startswith(f"{head}.") else f"{head}.{inner}", item)
        else:
            self._set(key if rest else section(key), value)

    def _set(self, key: str, value: object) -> None:
        stated = _stated(key, value) if isinstance(value, str) else (key, value)
        if value is not None and stated is not None:
            self._put(*stated)

    def _put(self, key: str, value: object) -> None:
        before = self.values.setdefault(key, value)
        if before is not value and str(before) != str(value):
            self.leave(key, value)

    def get(self, *keys: str) -> object | None:
        """Returns the first stated value among ``keys`` and marks it used; None where none is stated."""
        for key in keys:
            if key in self.values:
                self.used.add(key)
                return self.values[key]
        return None

    def text(self, *keys: str) -> str:
        value = self.get(*keys)
        return "" if value is None else one_line(value)

    def integer(self, *keys: str) -> int | None:
        """Reads a whole number; a stated value that is none is refused by name."""
        return self._read(keys, integer, "a whole number")

    def number(self, *keys: str) -> float | None:
        return self._read(keys, number, "a number")

    def _read(self, keys: Sequence[str], parse: Callable[[object], T | None], what: str) -> T | None:
        value = self.get(*keys)
        parsed = None if value is None else parse(_without_unit(value, keys[0]))
        if parsed is None and value is not None:
            self._misfit(value, keys, what)
        return parsed

    def positive(self, *keys: str) -> float | None:
        """Reads a number above zero; any other stated value is refused."""
        parsed = self.number(*keys)
        if parsed is not None and parsed <= 0:
            self.refuse(f"{keys[0].rpartition('.')[2]} = {parsed:g} is not positive")
            return None
        return parsed

    def flag(self, *keys: str) -> bool | None:
        """Reads True or False; a stated value that is neither is left unread."""
        value = self.get(*keys)
        parsed = boolean(value)
        if parsed is None and value is not None:
            self.leave(next(key for key in keys if key in self.values), value)
        return parsed

    def leave(self, key: str, words: object) -> None:
        """Keeps words at a key that nobody reads with the run, and reports them."""
        text, before = one_line(words), self.unread.get(key, "")
        if text and text not in before.split(", "):
            self.unread[key] = f"{before}, {text}" if before else text

    def _misfit(self, value: object, keys: Sequence[str], what: str) -> None:
        """Leaves a value that is no number unread at a framework's argument; refuses it among a run's own sizes."""
        key = next(key for key in keys if key in self.values)
        if key.startswith("other."):
            self.leave(key, value)
        else:
            self.refuse(_misfit_text(value, key, what))

    def map(self, field: str, value: object, key: str = "") -> None:
        self.mapped.append(f"{field}={value}" + (f" ({key})" if key and key != field else ""))

    def assume(self, text: str) -> None:
        if text not in self.assumed:
            self.assumed.append(text)

    def refuse(self, reason: str) -> None:
        if reason not in self.refused:
            self.refused.append(reason)

    def unused(self) -> Iterator[str]:
        """Returns the keys that nobody looked at."""
        return (key for key in self.values if key not in self.used)


def figure_of(header: str) -> str:
    """Returns the figure that a header names with its unit, by its words and their order; empty where it names none."""
    words = " ".join(filter(None, (_WORD.get(word, word) for word in normal(header).split("_"))))
    a_second = words == "step s" and _STEPS_A_SECOND.search(header.replace("_", " ")) is not None
    return "steps_per_s" if a_second else _FIGURES.get(words, "")


def section(header: str) -> str:
    """Returns the canonical key of a flat column: a known name, a figure by its words and their order, a metric, an
    architecture key, or a framework argument."""
    name = normal(header)
    figure = figure_of(header)
    name = figure if figure == "steps_per_s" else ALIASES.get(name) or figure or name
    if "." in name or name in TOP_KEYS:
        return name
    known = next((kind for kind, keys in (("metrics", METRIC_KEYS), ("arch", ARCH_KEYS)) if name in keys), None)
    return f"{known}.{name}" if known else f"other.{header.strip()}"


def known_key(key: str) -> bool:
    """Returns whether a canonical key is one that some part of a run is read from."""
    return not key.startswith("other.")
