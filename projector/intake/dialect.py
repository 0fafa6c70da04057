"""One engine for the configurations of other tools. A dialect is a YAML file of names and values, ``dialects/NAME.yaml``:

=========  =============================================================================================================
title      what its files are, for messages
like       another dialect, whose words are this one's, too, where it has none of its own
marks      names that tell its files: all of them stand there (``a|b``: one of the two; ``a.b``: b in section a; ``a.``: a is
           a section; ``a=x*``: a holds such a text; ``!a``: a does not stand there)
sections   keys whose settings stand beside those at the top, as if they had been written there
default    what the tool takes for a setting that nobody states
renamed    names of other years as regular expressions, with today's
into       ``arguments``: what is called a recipe field below is an argument of Megatron-LM; another loader reads on
declared   the framework under whose names recipe fields declare settings that hold their value as it stands
names      more such settings: ``setting: field``; ``same``: those that are called as the field is
values     settings whose values mean fields, value by value; ``null``: not stated, ``_``: any other; a text names one of
           :data:`BUNDLES`, or is ``doubtful`` (it may change seconds or bytes, and nothing models it) or ``needed``
hook       settings that the dialect's own Python reads; ``a_{b,c}`` are two
neutral    settings that change neither seconds nor bytes; ``*`` stands for any text
doubtful   settings that may change them and that nothing models (several in one text), with the values that change nothing
another    settings of another kind of training or of layers, with the values that are none
needed     settings that a file has to state, and what they are
=========  =============================================================================================================

Any other key is a table for the dialect's Python. Words of ``values`` stand in lower case, types by their short names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from projector.dataclass import dataclass
from projector.errors import InputError, Problem, Unsupported
from projector.intake import aliases, known_settings
from projector.intake.loaded import Loaded
from projector.intake.named_models import OTHERS, published
from projector.intake.spelling import misspelt, normal
from projector.intake.values import Reader, section, word_of
from projector.io.files import read_yaml
from projector.workload.model import Model
from projector.workload.optimizers import named
from projector.workload.schema import parse_recipe

_FOLDER = Path(__file__).with_name("dialects")
_OWN_TYPE = ("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
_SHARDED = ("no_shard", "optim", "optim_grads", "optim_grads_params")
#: Several fields that one value of a setting means, in many dialects.
BUNDLES: Mapping[str, Mapping[str, object]] = {
    "nothing": {},
    "full recompute": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    "no recompute": {"recompute_granularity": "none"},
    "bf16 states": {"use_precision_aware_optimizer": True, **dict.fromkeys(_OWN_TYPE, "bf16")},
    "bf16 alone": {
        "use_precision_aware_optimizer": True,
        "grad_reduce_in_bf16": True,
        **dict.fromkeys(_OWN_TYPE, "bf16"),
    },
    **{f"zero {stage}": {"data_parallel_sharding": word} for stage, word in enumerate(_SHARDED)},
}
#: Of a setting that is another kind of training wherever it is stated, be it off.
STATED = object()
#: Of a setting that is another kind of training at the values behind it alone.
ONLY = object()
_PARTS = ("title", "like", "marks", "into", "sections", "default", "renamed", "declared", "names", "same", "values", "hook",
          "neutral", "doubtful", "another", "needed")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """Holds a dialect's file (keys: see the module). ``names``: field to settings, the first with a value counts."""

    name: str
    title: str
    marks: tuple[str, ...]
    sections: tuple[str, ...]
    default: Mapping[str, object]
    renamed: Mapping[str, str]
    arguments: bool
    names: Mapping[str, tuple[str, ...]]
    values: Mapping[str, Mapping[object, Any]]
    hook: frozenset[str]
    neutral: tuple[str, ...]
    doubtful: Mapping[str, tuple[object, ...]]
    another: Mapping[str, tuple[tuple[object, ...], str]]
    needed: Mapping[str, str]
    tables: Mapping[str, Any]

    @cached_property
    def deciding(self) -> frozenset[str]:
        """Returns all settings that may change what a file means, whether YAML or Python of the dialect reads them."""
        told = (name for names in self.names.values() for name in names)
        return self.hook.union(told, self.values, self.doubtful, self.another)

    @cached_property
    def heads(self) -> frozenset[str]:
        """Returns the dotted names of the sections in which this dialect knows settings."""
        places = [name.split(".")[:-1] for name in {*self.deciding, *self.neutral, *self.default}]
        return frozenset(".".join(path[:depth]) for path in places for depth in range(1, len(path) + 1))

    def today(self, name: str) -> str:
        """Returns today's name of the setting ``name``, which may be a name of another year."""
        for old, new in self.renamed.items():
            if match := re.fullmatch(old, name):
                return match.expand(new)
        return name

    def completed(self, content: Mapping[str, object], said: Mapping[str, object]) -> dict[str, object]:
        """Returns ``content`` with a setting for each field of ``said`` that ``content`` states under none of its names."""
        stated = {self.today(name) for name, value in _flat(content, self) if value is not None}
        rest = {names[0]: said[field] for field, names in self.names.items() if field in said and not stated & {*names}}
        places = [key for key in content if key in self.sections and section(content, key)]
        return {**content, places[-1]: {**section(content, places[-1]), **rest}} if places else {**content, **rest}

    def fits(self, content: Mapping[str, object]) -> bool:
        """Returns whether ``content`` has all marks of this dialect; False for a dialect without marks."""
        return bool(self.marks) and fits(self.marks, content)


def loose(tokens: object) -> str:
    """Returns the doubt about samples that are not packed: nothing states their lengths, and the longest decide memory."""
    return f"samples shorter than {tokens} tokens (all are counted as that long)"


def fits(marks: Iterable[str], content: Mapping[str, object]) -> bool:
    """Returns whether ``content`` has every one of ``marks`` (see the module), however its keys are spelt."""
    return all(any(_stands(place, content) for place in mark.split("|")) for mark in marks)


def _stands(place: str, content: object) -> bool:
    if place.startswith("!"):
        return not _stands(place[1:], content)
    path, _, pattern = place.partition("=")
    key, dot, name = path.partition(".")
    held = {normal(str(key)): value for key, value in content.items()} if isinstance(content, Mapping) else {}
    if not dot:
        return key in held and (not pattern or fnmatchcase(str(held[key]), pattern))
    return _stands(place[len(key) + 1 :], held.get(key)) if name else isinstance(held.get(key), Mapping)


def names() -> tuple[str, ...]:
    """Returns the names of all dialects, sorted."""
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.yaml")))


@cache
def dialect(name: str) -> Dialect:
    """Reads and caches the dialect of ``dialects/NAME.yaml``."""
    content = _merged_content(name)
    arguments, declared = content.get("into") == "arguments", content.get("declared", "")
    fields: dict[str, list[str]] = {}
    if arguments:
        for setting, argument in aliases.renamings(declared).items():
            fields.setdefault(argument, []).append(setting)
    else:
        fields |= {field: list(names) for field, names in aliases.declared(declared).items()}
    for setting, field in (
        *content.get("names", {}).items(),
        *((name, name) for name in words(content.get("same", ""))),
    ):
        fields.setdefault(field, []).append(setting)
    return Dialect(
        name=name,
        title=content["title"],
        marks=tuple(content.get("marks", "").split()),
        sections=tuple(content.get("sections", "").split()),
        default=content.get("default", {}),
        renamed=content.get("renamed", {}),
        arguments=arguments,
        names={field: tuple(names) for field, names in fields.items()},
        values={
            setting: {
                value: BUNDLES.get(means, means) if isinstance(means, str) else means for value, means in table.items()
            }
            for setting, table in content.get("values", {}).items()
        },
        hook=frozenset(words(content.get("hook", ""))),
        neutral=tuple(words(content.get("neutral", ""))),
        doubtful={
            setting: _as_tuple(off)
            for several, off in content.get("doubtful", {}).items()
            for setting in words(several)
        },
        another=dict(_other_kinds(content.get("another", {}))),
        needed=content.get("needed", {}),
        tables={key: table for key, table in content.items() if key not in _PARTS},
    )


def _merged_content(name: str) -> dict[str, Any]:
    """Reads a dialect's file and merges it over the file of the dialect that its ``like`` names."""
    content: dict[str, Any] = read_yaml(_FOLDER / f"{name}.yaml")
    under = _merged_content(content["like"]) if "like" in content else {}
    both = {
        key: {**value, **{name: means for name, means in under[key].items() if name not in value}}
        if isinstance(value, Mapping)
        else f"{under[key]} {value}"
        for key, value in content.items()
        if key in under and key not in ("title", "marks")
    }
    return {**under, **content, **both}


def words(text: str) -> Iterator[str]:
    """Yields the words of ``text``; ``a_{b,c}`` gives ``a_b`` and ``a_c``."""
    for word in text.split():
        before, brace, rest = word.partition("{")
        several, _, behind = rest.partition("}")
        yield from (word,) if not brace else words(" ".join(f"{before}{each}{behind}" for each in several.split(",")))


def _as_tuple(values: object) -> tuple[object, ...]:
    return tuple(values) if isinstance(values, list) else (values,)


def _other_kinds(told: Mapping[str, object]) -> Iterator[tuple[str, tuple[tuple[object, ...], str]]]:
    """Yields (setting, (values, reason)) of ``setting: values`` or ``setting: {why: text, unless: values}`` (``stated:
    true``: another kind unless it is null; ``only``: at these values alone)."""
    for several, values in told.items():
        entry = values if isinstance(values, Mapping) else {"unless": values}
        off = _as_tuple(STATED if entry.get("stated") else entry.get("unless"))
        if "only" in entry:
            off = (ONLY, *_as_tuple(entry["only"]))
        for setting in words(several):
            yield setting, (off, str(entry.get("why", "")))


class Settings:
    """Reads what a configuration states, as far as the dialect's YAML says, and accounts for every setting.

    ``args``: typed access to what is stated and to defaults, for the dialect's Python, whose own findings are added to
    ``fields`` (recipe field to value, None: not stated), ``doubts`` and ``args.problems``. ``stated``: the settings to
    account for, by dotted name; those of a file ``below`` them are read and not accounted for, over ``preset``, which
    stands over the dialect's defaults.
    """

    def __init__(
        self, of: Dialect, content: Mapping[str, object], where: str, *, below: Mapping[str, object] | None = None,
        preset: Mapping[str, object] | None = None,
    ) -> None:  # fmt: skip
        """Reads ``content``. Raises :class:`Unsupported` for another kind of training or of layers."""
        self.dialect, self.where, self.below = of, where, below
        self.renamed: set[str] = set()
        under = self._under_todays_names(below or {})
        self.stated = self._under_todays_names(content)
        given = {key: value for key, value in {**under, **self.stated}.items() if value is not None}
        whole = {**of.default, **(preset or {}), **given}
        self._refuse(whole)
        self.args = Reader(whole)
        self.doubts: list[str] = []
        self.fields: dict[str, object] = (
            {name: self._first(settings) for name, settings in of.names.items()}
            if of.arguments
            else aliases.read(self.args, of.names)
        )
        if isinstance(word := self.fields.get("optimizer"), str):
            called = named(word.removeprefix("paged_"))
            momentum = called != "sgd" or of.arguments  # torch's has none where nothing is said
            self.fields["optimizer"] = called if momentum else "sgd_no_momentum"
        for setting, table in of.values.items():
            self.fields |= self._meaning(setting, table)

    def _under_todays_names(self, content: Mapping[str, object]) -> dict[str, object]:
        """Returns the settings by today's names; where a setting is stated under an old name, too, today's counts."""
        named = [(key, self.dialect.today(key), value) for key, value in _flat(content, self.dialect)]
        old = {today: value for key, today, value in named if today != key}
        self.renamed |= set(old)
        return {**old, **{key: value for key, today, value in named if today == key}}

    def was(self, setting: str) -> bool:
        """Returns whether ``setting`` is stated under a name of another year."""
        return setting in self.renamed

    def _refuse(self, stated: Mapping[str, object]) -> None:
        for setting, (off, why) in self.dialect.another.items():
            value = stated.get(setting)
            unset = value is None or (STATED not in off and (value in (False, 0, "") or value in ([], {})))
            listed = any(value is each or (value == each and value is not True) for each in off)
            if not unset and listed == (ONLY in off):
                what = f"{setting}: {why}" if why else f"{setting}={value}"
                raise Unsupported(f"{self.where}: {self.dialect.title} with {what}")

    def published(self, setting: str) -> Model | None:
        """Returns the zoo's model that ``setting`` names; reports a problem without one."""
        name = self.args.text(setting)
        if (model := published(name)) is None:
            self.args.problems.append((setting, name.rstrip("/") or "nothing", OTHERS))
        return model

    def class_name(self, *settings: str) -> str:
        """Returns the class at the end of the module path of the first of ``settings`` with a value; empty without one."""
        return str(self._first(settings) or "").rpartition(".")[2]

    def _first(self, settings: Iterable[str]) -> object:
        return next((value for each in settings if (value := self.args.raw(each)) is not None), None)

    def one_of(self, setting: str, table: str) -> Any:
        """Returns the entry of the dialect's ``table`` for the word of ``setting``; reports a problem without one."""
        words = self.dialect.tables[table]
        word = (self.args.word(setting) or "").lower()
        if word not in words:
            self._expected(setting, word, words)
        return words.get(word)

    def _expected(self, setting: str, found: object, table: Iterable[object]) -> None:
        words = [str(each).lower() for each in table if each is not None]
        self.args.problems.append((setting, found, f"one of {', '.join(words)}"))

    def _meaning(self, setting: str, table: Mapping[object, Any]) -> Mapping[str, object]:
        """Returns the recipe fields that the value of ``setting`` means; reports a problem for a value not in ``table``."""
        value = self.args.raw(setting)
        word = (word_of(value) or "").lower() if isinstance(value, str) else value
        known = isinstance(word, (str, int, float, type(None)))
        if known and word in table and (not isinstance(word, bool) or any(isinstance(each, bool) for each in table)):
            means = table[word]
            if means == "doubtful":
                self.doubts.append(f"{setting}={known_settings.shown(value)}")
            elif means == "needed":
                self._expected(setting, "nothing", table)
            return means if isinstance(means, Mapping) else {}
        if value is not None and "_" not in table:
            self._expected(setting, value, table)
        return {} if value is None else table.get("_", {})

    def loaded(
        self, model: Model | None, *, told: Iterable[str] = (), problems: Iterable[Problem] = (), written: bool = True,
        **more: Any,
    ) -> Loaded:  # fmt: skip
        """Returns the workload of all that was read. ``told``: more doubts; ``problems``: more problems; ``more``: fields of
        the result.

        Raises :class:`InputError` with everything that does not fit.
        """
        self.args.problems += [(each, "nothing", expected) for each, expected in self.dialect.needed.items()
                               if self.args.raw(each) is None]  # fmt: skip
        left = self.unread(written)
        stated = {field: value for field, value in self.fields.items() if value is not None}
        if model is not None and model.moe is None:
            stated = {field: value for field, value in stated.items() if field not in ("ep", "etp")}
        elif model is not None:
            stated.setdefault("mock_data", False)  # tools train on a data set unless they are told otherwise
        recipe, wrong = parse_recipe(stated, self.where, "")
        wrong = [replace(each, key=self.dialect.names.get(each.key, (each.key,))[0]) for each in wrong]
        found = [*problems, *self.problems, *left.problems]
        if model is None or recipe is None or found:
            raise InputError([*found, *(each for each in wrong if not found or each.found != "nothing")])
        doubts = (*self.doubtful(), *self.doubts, *told, *left.unmodelled)
        return Loaded(model=model, recipe=recipe, ignored=left.neutral, unmodelled=doubts, **more)

    @property
    def problems(self) -> list[Problem]:
        """Returns the problems that reading found, each once."""
        return list({(key, repr(value)): Problem(self.where, key, value, expected)
                     for key, value, expected in self.args.problems}.values())  # fmt: skip

    def doubtful(self) -> Iterator[str]:
        """Yields ``setting=value`` of each setting that nothing models, at a value that may change seconds or bytes."""
        for setting, off in self.dialect.doubtful.items():
            value = self.stated.get(setting)
            if setting not in self.args.used and value is not None and value not in off:
                yield f"{setting}={known_settings.shown(value)}"

    def unread(self, written: bool) -> known_settings.Unread:
        """Sorts the settings that nobody read into neutral ones, misspelt ones, and the rest, which may change anything.

        Raises :class:`Unsupported` for one that a person has ``written`` and that cuts the run over GPUs.
        """
        deciding, unread = self.dialect.deciding, {}
        neutral = []
        for key, value in self.stated.items():
            if key in self.args.used:
                continue
            if key in deciding or any(fnmatchcase(key, each) for each in self.dialect.neutral):
                neutral.append(key)
            else:
                unread[key] = value
        slips = list(self._slips(unread)) if written else []
        unread = {key: value for key, value in unread.items() if key not in {slip.key for slip in slips}}
        left = known_settings.sort(unread, deciding, self.where, written=False)
        if left.cutting and written:
            raise Unsupported(
                f"{self.where}: {', '.join(left.cutting)}: cuts the run over GPUs in a way not known here"
            )
        silent = {text.partition("=")[0] for text in self.doubtful()}
        calm = tuple(sorted({*neutral, *left.neutral} - silent))
        return replace(left, neutral=calm, problems=tuple(slips))

    def _slips(self, unread: Mapping[str, object]) -> Iterator[Problem]:
        """Yields a problem for each unknown setting or section whose name misspells one that decides something."""
        for key, value in unread.items():
            section, _, name = key.rpartition(".")
            beside = [each.rpartition(".") for each in self.dialect.deciding]
            near = misspelt(name, [last for head, _, last in beside if head == section])
            places = [f"{section}.{each}".lstrip(".") for each in near]
            if isinstance(value, Mapping) and key not in self.dialect.heads and not near:
                places = list(misspelt(key, self.dialect.heads))
            if places and normal(key) not in known_settings.known():
                yield Problem(self.where, key, value, f"a known setting; nearest: {', '.join(places)}")


def _flat(content: Mapping[str, object], of: Dialect, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yields (dotted name, value) as deep as the dialect has names; settings in its ``sections`` have bare names."""
    for key, value in content.items():
        name = f"{prefix}{key}".replace("-", "_")
        if isinstance(value, Mapping) and value and (name in of.heads or name in of.sections):
            yield from _flat(value, of, "" if name in of.sections else f"{name}.")
        else:
            yield name, value
