"""What a record states of its recipe: framework arguments by their names, every other value by its words.

Two values that disagree are both kept: the stronger one in the recipe, the other one among the unread words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields as dataclass_fields
from functools import cache

from harness.evidence.ingest import vocabulary
from harness.evidence.ingest.parallel import SIZES
from harness.evidence.ingest.record import Record, boolean, integer, number
from projector.workload.field_facts import about_of
from projector.workload.recipe import Recipe
from projector.workload.value_checks import CHOICES

_KINDS = {field.name: str(field.type) for field in dataclass_fields(Recipe)}
_DECIDED = {*SIZES, "etp", "precision", "lora"}  # by parallel.py and recipe.py
_SYNONYMS = {"float32": "fp32", "bfloat16": "bf16", "allreduce": "allgather"}


class Said:
    """Fields with the values that the record states for them, the strongest first."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.settings: dict[str, object] = {}
        self.usual: dict[str, object] = {}

    def add(self, key: str, settings: Mapping[str, object], usual: Mapping[str, object]) -> None:
        """Adds settings of ``key``. ``usual``: what the words at ``key`` mean where nothing states otherwise."""
        for name, value in settings.items():
            before = self.settings.setdefault(name, value)
            if before != value:
                self._record.leave(key, f"{name}={_plain(value)} where {_plain(before)} is stated too")
        self.usual = {**usual, **self.usual}


def settings_of(record: Record, gpu: str) -> dict[str, object]:
    """Returns fields of ``Recipe``, and names that :mod:`recipe` works out, from all that the record states of them."""
    said = Said(record)
    read = {key: place for key in record.values if (place := vocabulary.by_key().get(plain_key(key)))}
    ranks = {name: i for i, name in enumerate(vocabulary.subjects())}
    order = sorted(read, key=lambda key: (ranks[read[key][0].name], read[key][1]))
    first = [key for key in order if read[key][0].name == "recompute"]
    _read_words(record, said, first, read, gpu)
    _read_arguments(record, said)
    _read_words(record, said, [key for key in order if key not in first], read, gpu)
    return {**said.usual, **said.settings}


def plain_key(key: str) -> str:
    """Returns the key without the section of the record in which it stands."""
    return key.removeprefix("other.").removeprefix("args.")


def _read_words(
    record: Record, said: Said, keys: Iterable[str], subjects: Mapping[str, tuple[vocabulary.Subject, int]], gpu: str
) -> None:
    for key in keys:
        subject = subjects[key][0]
        text = spoken(record.get(key))
        if subject.name == "precision":
            text = vocabulary.part_for(text, gpu)
        reading = vocabulary.read(subject.name, text)
        if text and not reading.understood and subject.refused:
            record.refuse(f"{subject.refused}: {text!r}")
        elif reading.unread:
            record.leave(key, ", ".join(reading.unread))
        said.add(key, reading.settings, reading.usual)


def spoken(value: object) -> str:
    """Returns a value of any type as words."""
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value).strip()


def _read_arguments(record: Record, said: Said) -> None:
    names = _argument_names()
    stated = [(*names[plain], key) for key in record.values if (plain := plain_key(key)) in names]
    for _, field, kind, key in sorted(stated):
        value = record.get(key)
        typed = _typed(field, kind, value)
        if typed is None:  # what a field can hold may stand before text in brackets
            head, bracket, rest = str(value).partition("(")
            typed = _typed(field, kind, head.strip()) if bracket else None
            record.leave(key, str(value) if typed is None else f"({rest}")
        if typed is None:
            continue
        record.map(field, typed, plain_key(key))
        if field != "sync_free_stage" or typed != 0:  # 0 is how Primus spells "off"
            said.add(key, *(({}, {field: typed}) if kind == "otherwise" else ({field: typed}, {})))


@cache
def _argument_names() -> dict[str, tuple[int, str, str]]:
    """Maps the name of an argument to its rank among the names of its field, the field, and how the value is meant."""
    arguments: dict[str, tuple[int, str, str]] = {}
    about = about_of(Recipe)
    for field in sorted(set(_KINDS) - _DECIDED):
        declared = (name for names in about[field].names.values() for name in names if "." not in name)
        direct = (field, *declared, *about[field].also)
        more = vocabulary.arguments()
        for kind, names in (
            ("same", direct),
            *((kind, str(more[kind].get(field, "")).split()) for kind in ("opposite", "fp32", "same", "otherwise")),
        ):
            for name in names:
                if name not in vocabulary.by_key():
                    arguments.setdefault(name, (len(arguments), field, kind))
    return arguments


def _typed(field: str, kind: str, value: object) -> object | None:
    """Returns the value as the field holds it; None where the field cannot."""
    text = _SYNONYMS.get(str(value).lower(), str(value).lower())
    if kind == "fp32":
        return {"fp32": False, "bf16": True}.get(text)
    wanted = _KINDS[field]
    if "bool" in wanted:
        flag = boolean(value)
        return None if flag is None else flag != (kind == "opposite")
    if wanted.startswith("int"):
        return integer(value)
    if wanted.startswith("float"):
        return number(value)
    if "tuple[" in wanted:
        words = tuple(value) if isinstance(value, (list, tuple)) else tuple(str(value).split())
        return words if all(word in CHOICES.get(field, words) for word in words) else None
    if field not in CHOICES:
        return str(value)
    return text if text in CHOICES[field] else None


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
