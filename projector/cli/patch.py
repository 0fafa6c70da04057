"""Writes an answer as a change of the user's own file that reads back to the same projection: ``--write patch``.

What changes follows from two lists of words: of the run that the file is, and of the run that it should be, in the
words of its framework (:mod:`projector.search.launchable`). Each word is changed where it stands, put beside another
where it does not, and the whole is read again: a patch is right because our reader says so.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from projector.cli.read_back import alike, differing, read_back, words_of
from projector.errors import InputError, Problem, Unsupported
from projector.workload.field_facts import about_of
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

if TYPE_CHECKING:
    from projector.cli.inputs import Case

Words = Mapping[str, Any]
_ONE_BY_ONE = "a file whose words can be changed one by one"
_PRIMUS = re.compile(r"(?m)^modules:")
_ABSENT = object()
#: What the file is read with beside its own words.
_SAID = ("configs", "model", "cluster", "gpu", "framework", "framework_date", "gpus", "target_nodes", "args", "env")
_WIDTH, _EXPERT_WIDTH = "tensor_model_parallel_size", "expert_tensor_parallel_size"


def patched(case: Case, load: Workload, options: argparse.Namespace) -> str:
    """Returns the unified diff of ``--config`` after which the file is ``load``, with paths as the user gave them.

    Raises :class:`InputError` where there is no file of one's own, where its words are none that can be changed here,
    and where the changed file does not read back to the projection of ``load``.
    """
    path = Path(options.config or "")
    if not path.is_file():
        raise _refused(options.config or "no --config", "a file of one's own: --config FILE")
    text = path.read_text(encoding="utf-8")
    before, after = (dict(_words(each, text)) for each in (_read(text, path, case, options), load))
    if load.model.moe and before.get(_WIDTH) != after.get(_WIDTH) and not _places(_in_yaml(_EXPERT_WIDTH), text):
        before.pop(_EXPERT_WIDTH, None)  # which follows the other where nothing is said
    changed, beside = text, [*after, *before]
    for key in [key for key in {**before, **after} if before.get(key, _ABSENT) != after.get(key, _ABSENT)]:
        changed = _with_setting(changed, path.suffix, key, after.get(key, _ABSENT), beside)
        beside = [key, *beside]  # what is new stands together
    _check_read_back(changed, path, case, load, options)
    lines = [each.splitlines(keepends=True) for each in (text, changed)]
    return "".join(difflib.unified_diff(lines[0], lines[1], str(path), str(path)))


def _words(load: Workload, text: str) -> Words:
    """Returns the settings of ``load`` in the words of its framework."""
    from projector.search import launchable

    if load.framework.startswith("torchtitan"):
        return {f"{name}.{key}": value for name, each in launchable.job(load).items() for key, value in each.items()}
    if _PRIMUS.search(text):
        changes: Words = launchable.experiment(load)["modules"]["pre_trainer"]["overrides"]
        return changes
    return launchable.arguments(load)


def _with_setting(text: str, kind: str, key: str, value: Any, known: list[str]) -> str:
    """Returns ``text`` with ``key`` at ``value``, in place or beside the first of ``known`` that stands there."""
    if kind == ".toml":
        return _with_toml_setting(text, key, value)
    find, written = (_in_yaml, _as_yaml) if kind in (".yaml", ".yml") else (_in_flags, as_flag)
    key = next((word for word in _names_of_field(key) if _places(find(word), text)), key)
    if matches := _places(find(key), text):
        last = matches[-1]
        if value is _ABSENT or (value is False and written is as_flag):
            rest = text[last.end() :]
            emptied = text[: last.start()].endswith("\n") and rest.startswith("\n")
            return text[: last.start()] + (rest[1:] if emptied else rest)
        name = re.match(r"\$\{?(\w+)", last["value"] or "")  # of a variable
        if name and (given := re.search(rf"(?m)^(\s*(?:export\s+)?{name[1]}=(?:\$\{{\w+:?[-=])?)([^\s}}]*)", text)):
            return text[: given.start(2)] + str(value) + text[given.end(2) :]
        return text[: last.start()] + last["lead"] + written(key, value) + text[last.end() :]
    if value in (_ABSENT, False):
        return text
    beside = next((each for name in known for each in _places(find(name), text)), None)
    if beside is None:
        raise _refused(key, "a file in which one setting of the layout stands, to put this beside it")
    lead = " " if written is as_flag else beside["lead"]
    return text[: beside.end()] + lead + written(key, value) + text[beside.end() :]


def _names_of_field(key: str) -> Iterator[str]:
    """Yields ``key``, then the other names of its field."""
    yield key
    for about in about_of(Recipe).values():
        yield from (name for names in about.names.values() if key in names for name in names)


def _places(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    """Returns the places of a word outside comments."""

    def commented(place: int) -> bool:
        return re.search(r"(?:^|\s)#", text[text.rfind("\n", 0, place) + 1 : place]) is not None

    return [each for each in pattern.finditer(text) if not commented(each.start("key"))]


def _in_yaml(key: str) -> re.Pattern[str]:
    """Returns the pattern of ``key: value`` on a line of YAML, with the line break before it."""
    return re.compile(rf"(?P<lead>(?:^|\n)[ \t]*)(?P<key>{key})[ \t]*:[ \t]*(?P<value>[^#\n]*?)(?=[ \t]*(?:#|\n|$))")


def _in_flags(key: str) -> re.Pattern[str]:
    """Returns the pattern of ``--key value`` of a command, with the blanks before it; a switch has no value."""
    word, value = key.replace("_", "[-_]"), r"""(?:[ =]+(?P<value>(?!-)[^\s\\"')]+))?"""
    return re.compile(rf"(?P<lead>[ \t]+|(?<=[\n(\"']))(?P<key>--{word})(?![\w-]){value}")


def _as_yaml(key: str, value: Any) -> str:
    return f"{key}: {json.dumps(value)}"


def as_flag(key: str, value: Any) -> str:
    """Returns a setting as words of a command line."""
    values = [] if value is True else value if isinstance(value, list | tuple) else [value]
    return " ".join((f"--{key.replace('_', '-')}", *(shlex.quote(str(each)) for each in values)))


def _with_toml_setting(text: str, key: str, value: Any) -> str:
    """Returns a job file of torchtitan with ``name = value`` below ``[section]``, which is added where there is none."""
    section, _, name = key.rpartition(".")
    head = re.search(rf"(?m)^\[{re.escape(section)}\][^\n]*\n", text)
    if head is None:
        return text if value is _ABSENT else f"{text.rstrip()}\n\n[{section}]\n{name} = {json.dumps(value)}\n"
    after = re.search(r"(?m)^\[", text[head.end() :])
    end = head.end() + after.start() if after else len(text)
    line = re.compile(rf"(?m)^{name}[ \t]*=[ \t]*[^#\n]*?(?=[ \t]*(?:#|$))").search(text, head.end(), end)
    start, stop = (line.start(), line.end()) if line else (head.end(), head.end())
    setting = "" if value is _ABSENT else f"{name} = {json.dumps(value)}" + ("" if line else "\n")
    return text[:start] + setting + text[stop:]


def _read(text: str, path: Path, case: Case, options: argparse.Namespace) -> Workload:
    """Returns the workload of ``text`` as our readers take it in place of ``path``, without flags of recipe fields."""
    from projector.intake.primus_experiment import presets_of

    flags = words_of(options, _SAID)
    if not options.cluster and not options.gpu:
        flags += ["--cluster", case.cluster.name]  # of the folder in which the file lies
    if _PRIMUS.search(text) and not options.configs and (presets := presets_of(path, os.environ)):
        flags += ["--configs", str(presets)]  # they are looked for above the file
    try:
        return read_back(text, path.name, flags, path.parent)
    except Unsupported as error:
        raise _refused(str(error), _ONE_BY_ONE) from None


def _check_read_back(text: str, path: Path, case: Case, load: Workload, options: argparse.Namespace) -> None:
    """Raises :class:`InputError` unless ``text`` has the step and the memory of ``load``."""
    from projector.projection import project

    wanted = project(load, case.cluster, settings=case.settings)
    workload = _read(text, path, case, options)
    try:
        again = project(workload, case.cluster, settings=case.settings)
    except (InputError, Unsupported) as error:
        raise _refused(str(error).replace("\n", "; "), _ONE_BY_ONE) from None
    if not alike(wanted, again):
        found = f"{', '.join(differing(wanted, again))}: another value when it is read back"
        raise _refused(found, "words that this file can say")


def _refused(found: str, expected: str) -> InputError:
    return InputError([Problem("--write", "patch", found, expected)])
