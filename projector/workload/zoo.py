"""Published architectures by name: one YAML file a family in ``zoo/``, each entry with its source.

A file holds ``family``, optional ``defaults`` and ``models``; an entry holds the fields of
:class:`~projector.workload.model.Model`, ``aliases`` (free text by which results tables call it),
``parameters_published``, ``parameters_active`` and, for shapes that a results table completes itself, ``template: true``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from projector.dataclass import dataclass
from projector.errors import InputError, Problem, nearest
from projector.workload.model import Model
from projector.workload.model_schema import merge, model_from_mapping, model_to_mapping
from projector.workload.names import Alias, find_alias, run_together

_ENTRY_KEYS = ("aliases", "parameters_published", "parameters_active", "template")
_NAME = re.compile(r"^ +(?:- )?name: *([^\s#]+)", re.MULTILINE)
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
    return tuple(sorted(_files()))


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


@cache
def entry(name: str) -> Entry:
    """The zoo entry ``name``. Raises :class:`InputError` with the nearest names when there is none."""
    if name not in _files():
        raise InputError([Problem("model zoo", "model", name, expected(name))])
    raw = _described(_files()[name])[name]
    model, problems = model_from_mapping({k: v for k, v in raw.items() if k not in _ENTRY_KEYS}, f"zoo {name}", "")
    if model is None:
        raise InputError(problems)
    return Entry(
        model=model,
        aliases=tuple(str(alias) for alias in raw.get("aliases", ())),
        parameters_published=_number(raw, "parameters_published"),
        parameters_active=_number(raw, "parameters_active"),
        template=bool(raw.get("template", False)),
    )


def _number(raw: Mapping[str, Any], key: str) -> float | None:
    return float(raw[key]) if key in raw else None  # "8.03e9" is text in YAML


def is_template(name: str) -> bool:
    """Whether ``name`` fixes only a family's style: layers, widths and heads must come from who uses it."""
    return entry(name).template


def named(text: str) -> str | None:
    """The zoo name that is all of ``text`` but for owner, edition and spelling (``Qwen/Qwen3-8B-Base``), or None.

    A word more may be another architecture: :func:`find` guesses, this does not.
    """
    if text in _files():
        return text
    last = text.rstrip("/").rpartition("/")[2]
    name = _spelled().get(run_together(last)) or _spelled().get(run_together(_EDITION.sub("", last)))
    return None if name is None or is_template(name) else name


def find(text: str) -> str | None:
    """The zoo name that free text such as ``"LLAMA3.1_405B"`` or ``"DeepSeek-V3 671B (4 layers)"`` means, or None."""
    if text in _files():
        return text
    return find_alias(text, _aliases())


def expected(text: str) -> str:
    """What to tell somebody who wrote ``text`` for a model name."""
    guess = find(text)
    return f"a zoo name; nearest: {guess}" if guess else nearest(text, names())


@cache
def _files() -> Mapping[str, Path]:
    """The file of each entry by the entry's name, from the lines ``name: …`` alone: who asks for one model waits for one
    file to be parsed."""
    return {
        name: path
        for path in sorted((Path(__file__).parent / "zoo").glob("*.yaml"))
        for name in _NAME.findall(path.read_text(encoding="utf-8"))
    }


@cache
def _described(path: Path) -> Mapping[str, Mapping[str, Any]]:
    """Every entry of a file by name, with the file's defaults and family merged in."""
    import yaml

    content = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    defaults = {"family": content["family"], **content.get("defaults", {})}
    return {raw["name"]: merge(defaults, raw) for raw in content["models"]}


@cache
def _spelled() -> Mapping[str, str]:
    return {alias.text: alias.name for alias in reversed(_aliases())}


@cache
def _aliases() -> tuple[Alias, ...]:
    return tuple(
        Alias.of(str(alias), name, _number(raw, "parameters_published"))
        for path in dict.fromkeys(_files().values())
        for name, raw in _described(path).items()
        for alias in (name, *raw.get("aliases", ()))
    )
