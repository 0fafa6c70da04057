"""Published architectures by name: one YAML file a family in ``zoo/``, each entry with its source.

A file holds ``family``, optional ``defaults`` and ``models``; an entry holds the fields of
:class:`~projector.workload.model.Model`, ``aliases`` (free text by which results tables call it),
``parameters_published``, ``parameters_active`` and, for shapes that a results table completes itself, ``template: true``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from projector.dataclass import dataclass
from projector.errors import InputError, Problem, nearest
from projector.workload.model import Model
from projector.workload.model_schema import merge, model_from_mapping, model_to_mapping
from projector.workload.names import Alias, find_alias, run_together

_ENTRY_KEYS = ("aliases", "parameters_published", "parameters_active", "template")
_EDITION = re.compile(r"[-_](base|instruct|chat|hf|it|pt|thinking|bf16|\d{4})(?=[-_]|$)", re.IGNORECASE)  # of one shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A zoo model and what stands beside it. ``parameters_published``: total, without multi-token prediction;
    ``parameters_active``: those of one token, embedding and output layer included."""

    model: Model
    aliases: tuple[str, ...]
    parameters_published: float | None
    parameters_active: float | None
    template: bool


@cache
def names() -> tuple[str, ...]:
    """Every name that :func:`load` knows, sorted."""
    return tuple(sorted(_entries()))


def load(name: str, **overrides: Any) -> Model:
    """The published model ``name``, with ``overrides`` of its fields (``moe`` and ``mla`` field by field).

    Raises :class:`InputError` for an unknown name or an override that does not fit.
    """
    model = entry(name).model
    if not overrides:
        return model
    mapping = merge(model_to_mapping(model), overrides)
    changed, problems = model_from_mapping(mapping, f"model {name}", "")
    if changed is None:
        raise InputError(problems)
    return changed


def entry(name: str) -> Entry:
    """The zoo entry ``name``. Raises :class:`InputError` with the nearest names when there is none."""
    found = _entries().get(name)
    if found is None:
        raise InputError([Problem("model zoo", "model", name, expected(name))])
    return found


def is_template(name: str) -> bool:
    """Whether ``name`` fixes only a family's style: layers, widths and heads must come from who uses it."""
    return entry(name).template


def named(text: str) -> str | None:
    """The zoo name that is all of ``text`` but for owner, edition and spelling (``Qwen/Qwen3-8B-Base``), or None.

    A word more may be another architecture: :func:`find` guesses, this does not.
    """
    if text in _entries():
        return text
    last = text.rstrip("/").rpartition("/")[2]
    name = _spelled().get(run_together(last)) or _spelled().get(run_together(_EDITION.sub("", last)))
    return None if name is None or is_template(name) else name


def find(text: str) -> str | None:
    """The zoo name that free text such as ``"LLAMA3.1_405B"`` or ``"DeepSeek-V3 671B (4 layers)"`` means, or None."""
    if text in _entries():
        return text
    return find_alias(text, _aliases())


def expected(text: str) -> str:
    """What to tell somebody who wrote ``text`` for a model name."""
    guess = find(text)
    return f"a zoo name; nearest: {guess}" if guess else nearest(text, names())


@cache
def _entries() -> Mapping[str, Entry]:
    entries: dict[str, Entry] = {}
    for family, raw in _raw():
        name = str(raw.get("name"))
        given = {key: value for key, value in raw.items() if key not in _ENTRY_KEYS}
        model, problems = model_from_mapping({**given, "family": family}, f"zoo {name}", "")
        if model is None or name in entries:
            raise InputError(problems or [Problem("model zoo", "name", name, "a name that no other entry has")])
        published = raw.get("parameters_published")
        entries[name] = Entry(
            model=model,
            aliases=tuple(str(alias) for alias in raw.get("aliases", ())),
            parameters_published=None if published is None else float(published),
            parameters_active=float(raw["parameters_active"]) if "parameters_active" in raw else None,
            template=bool(raw.get("template", False)),
        )
    return MappingProxyType(entries)


def _raw() -> list[tuple[str, dict[str, Any]]]:
    """Every entry of every file with the file's defaults merged in, and its family."""
    import yaml

    reader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found = []
    folder = resources.files(__package__).joinpath("zoo")
    for path in sorted(folder.iterdir(), key=lambda item: item.name):
        if not path.name.endswith(".yaml"):
            continue
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=reader)
        for raw in content["models"]:
            family = raw.get("family", content["family"])
            found.append((family, merge(content.get("defaults", {}), raw)))
    return found


@cache
def _spelled() -> Mapping[str, str]:
    return {alias.text: alias.name for alias in reversed(_aliases())}


@cache
def _aliases() -> tuple[Alias, ...]:
    return tuple(
        Alias.of(alias, name, item.parameters_published)
        for name, item in _entries().items()
        for alias in (name, *item.aliases)
    )
