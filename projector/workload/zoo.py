"""Finds published architectures by name: one YAML file a family in ``zoo/``, each entry with its source.

A file holds ``family``, optional ``defaults`` and ``models``; an entry holds the fields of
:class:`~projector.workload.model.Model`, ``aliases`` (free text by which results tables call it), ``parameters_published``,
``parameters_active`` and, for shapes that a results table completes itself, ``template: true``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from projector.dataclass import dataclass
from projector.errors import InputError, Problem, nearest
from projector.workload.model import Model
from projector.workload.model_schema import merge, model_from_mapping
from projector.workload.parameters import count
from projector.workload.structure import to_mapping

_ENTRY_KEYS = ("aliases", "parameters_published", "parameters_active", "template")
_NAME = re.compile(r"^ +(?:- )?name: *([^\s#]+)", re.MULTILINE)
_EDITION = re.compile(
    r"[-_](base|instruct|chat|hf|it|pt|thinking|bf16|mcore|\d{4})(?=[-_]|$)", re.IGNORECASE
)  # of one shape


_PADDING = 0.01  # of parameters or a vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A zoo model with facts about it. ``parameters_published``: total, without multi-token prediction;
    ``parameters_active``: those of one token, embedding and output layer included."""

    model: Model
    aliases: tuple[str, ...]
    parameters_published: float | None
    parameters_active: float | None
    template: bool


@cache
def names() -> tuple[str, ...]:
    """Returns every name that :func:`load` knows, sorted."""
    return tuple(sorted(_files()))


def load(name: str, **overrides: Any) -> Model:
    """Returns the published model ``name``, with ``overrides`` of its fields (``moe`` and ``mla`` field by field).

    Raises :class:`InputError` for an unknown name or an override that does not fit.
    """
    model = entry(name).model
    if not overrides:
        return model
    changed, problems = model_from_mapping(merge(to_mapping(model), overrides), f"model {name}", "")
    if changed is None:
        raise InputError(problems)
    return changed


@cache
def entry(name: str) -> Entry:
    """Returns the zoo entry ``name``. Raises :class:`InputError` with the nearest names when there is none."""
    if name not in _files():
        raise InputError([Problem("model zoo", "model", name, expected(name))])
    raw = _entries(_files()[name])[name]
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
    """Returns whether ``name`` fixes only a family's style: layers, widths and heads must come from who uses it."""
    return entry(name).template


def family_of(model: Model) -> str:
    """Returns the family of the published architectures that ``model`` is by its sizes (parameters and vocabulary, which is
    padded, to 1 %), else its own: a launch script states sizes and no name."""
    same_width = re.compile(rf"\bhidden_size: *{model.hidden_size}\b")
    texts = {path: path.read_text(encoding="utf-8") for path in dict.fromkeys(_files().values())}
    every = [entry(name) for path, text in texts.items() if same_width.search(text) for name in _entries(path)]
    same = [each.model for each in every if not each.template and _sizes(each.model) == _sizes(model)]
    same = [each for each in same if abs(count(each).main / count(model).main - 1.0) < _PADDING]
    families = {each.family for each in same if abs(each.vocab_size / model.vocab_size - 1.0) < _PADDING}
    return families.pop() if len(families) == 1 else model.family


def _sizes(model: Model) -> tuple[object, ...]:
    experts = model.moe and (model.moe.num_experts, model.moe.moe_router_topk, model.moe.moe_ffn_hidden_size)
    heads = (model.num_attention_heads, model.num_query_groups, model.mla is not None)
    return (model.num_layers, model.hidden_size, model.ffn_hidden_size, *heads, experts)


def named(text: str) -> str | None:
    """Returns the zoo name that is all of ``text`` but for owner, edition and spelling (``Qwen/Qwen3-8B-Base``), or None.

    A word more may be another architecture: :func:`find` guesses, this does not.
    """
    if text in _files():
        return text
    last = text.rstrip("/").rpartition("/")[2]
    name = _spellings().get(run_together(last)) or _spellings().get(run_together(_EDITION.sub("", last)))
    return None if name is None or is_template(name) else name


def find(text: str) -> str | None:
    """Returns the zoo name that free text such as ``"LLAMA3.1_405B"`` or ``"DeepSeek-V3 671B (4 layers)"`` means."""
    if text in _files():
        return text
    return find_alias(text, _aliases())


def expected(text: str) -> str:
    """Returns what to expect of somebody who wrote ``text`` for a model name."""
    guess = find(text)
    return f"a zoo name; nearest: {guess}" if guess else nearest(text, names())


@cache
def _files() -> Mapping[str, Path]:
    """Returns the file of each entry by its name, from the lines ``name: …`` alone: one model takes parsing one file."""
    return {
        name: path
        for path in sorted((Path(__file__).parent / "zoo").glob("*.yaml"))
        for name in _NAME.findall(path.read_text(encoding="utf-8"))
    }


@cache
def _entries(path: Path) -> Mapping[str, Mapping[str, Any]]:
    """Returns every entry of a file by name, with the file's defaults and family merged in."""
    import yaml

    content = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    defaults = {"family": content["family"], **content.get("defaults", {})}
    return {raw["name"]: merge(defaults, raw) for raw in content["models"]}


@cache
def _spellings() -> Mapping[str, str]:
    return {alias.text: alias.name for alias in reversed(_aliases())}


@cache
def _aliases() -> tuple[Alias, ...]:
    return tuple(
        Alias.of(str(alias), name, _number(raw, "parameters_published"))
        for path in dict.fromkeys(_files().values())
        for name, raw in _entries(path).items()
        for alias in (name, *raw.get("aliases", ()))
    )


# Which known name a piece of free text means: words are compared, not spelling.
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
        """Returns the alias for ``text``, in which ``*`` stands for one word of any kind."""
        states_size = any(_SIZE.fullmatch(word) for word in _words(text))
        return cls(run_together(text), name, None if states_size else parameters)


def find_alias(text: str, aliases: Sequence[Alias]) -> str | None:
    """Returns the name of the alias that covers the earliest, then the longest run of words of ``text``.

    Punctuation and case do not count, and letters that belong together may be apart (``DeepSeekV3``, ``deepseek-v3``). An
    alias without a size is refused where the text goes on with a size that differs from the model's by more than a tenth
    (``DeepSeek-V3 16B`` is no 671B model).
    """
    words = _words(text)
    known = {alias.text: alias for alias in reversed(aliases)}
    any_word = (re.escape("*"), r"_?[\d.]+[bmt]?")
    wild = [(re.compile(re.escape(alias.text).replace(*any_word)), alias) for alias in aliases if "*" in alias.text]
    for start in range(len(words)):
        for stop in range(len(words), start, -1):
            run = _join(words[start:stop])
            match = known.get(run) or next((alias for pattern, alias in wild if pattern.fullmatch(run)), None)
            if match is not None and _size_agrees(match, words[stop:]):
                return match.name
    return None


def run_together(text: str) -> str:
    """Returns ``text`` without case and punctuation, as :attr:`Alias.text` has it."""
    return _join(_words(text))


def _words(text: str) -> list[str]:
    return re.findall(_WORD.pattern + r"|\*", text.lower())


def _join(words: Sequence[str]) -> str:
    """Returns words run together, but with two numbers apart: ``llama 3 8b`` is not ``llama 38b``."""
    joined = ""
    for word in words:
        apart = word[0].isdigit() and re.search(r"\d[bmt]?$", joined) is not None
        joined += f"_{word}" if apart else word
    return joined


def _size_agrees(alias: Alias, rest: Sequence[str]) -> bool:
    stated = _SIZE.fullmatch(rest[0]) if rest else None
    if alias.size is None or stated is None:
        return True
    return abs(float(stated[1]) * _UNIT[stated[2]] / alias.size - 1) <= 0.1
