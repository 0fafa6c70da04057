"""``--write patch``: an answer as a change of the user's own file, read back to the same projection.

What changes is told by two lists of words, of the run that the file is and of the run that it should be, in the words of
its framework (:mod:`projector.search.launchable`). Each word is changed where it stands, put beside another where it does
not, and the whole is read again: a patch is right because our reader says so.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from projector.errors import InputError, Problem, Unsupported
from projector.workload.declared import about_of
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

if TYPE_CHECKING:
    from projector.cli.inputs import Case

Words = Mapping[str, Any]
_ONE_BY_ONE = "a file whose words can be changed one by one"
_PRIMUS = re.compile(r"(?m)^modules:")
_GONE = object()
_WIDTH, _OF_EXPERTS = "tensor_model_parallel_size", "expert_tensor_parallel_size"


def patched(case: Case, load: Workload, options: argparse.Namespace) -> str:
    """Returns the unified diff of ``--config`` after which it is ``load``, with paths as the user gave them.

    Raises :class:`InputError` where there is no file of one's own, where its words are none that can be changed here, and
    where the changed file does not read back to the projection of ``load``.
    """
    path = Path(options.config or "")
    if not path.is_file():
        raise _refused(options.config or "no --config", "a file of one's own: --config FILE")
    text = path.read_text(encoding="utf-8")
    before, after = (dict(_words(each, text)) for each in (_read(text, path, case, options), load))
    if load.model.moe and before.get(_WIDTH) != after.get(_WIDTH) and not _stands(_setting(_OF_EXPERTS), text):
        before.pop(_OF_EXPERTS, None)  # which follows the other where nothing is said
    changed, beside = text, [*after, *before]
    for key in [key for key in {**before, **after} if before.get(key, _GONE) != after.get(key, _GONE)]:
        changed = _changed(changed, path.suffix, key, after.get(key, _GONE), beside)
        beside = [key, *beside]  # what is new stands together
    _compare(changed, path, case, load, options)
    lines = [each.splitlines(keepends=True) for each in (text, changed)]
    return "".join(difflib.unified_diff(lines[0], lines[1], str(path), str(path)))


def _words(load: Workload, text: str) -> Words:
    """The run in the words of its framework."""
    from projector.search import launchable

    if load.framework.startswith("torchtitan"):
        return {f"{name}.{key}": value for name, each in launchable.job(load).items() for key, value in each.items()}
    if _PRIMUS.search(text):
        changes: Words = launchable.experiment(load)["modules"]["pre_trainer"]["overrides"]
        return changes
    return launchable.arguments(load)


def _changed(text: str, kind: str, key: str, value: Any, known: list[str]) -> str:
    """``text`` with ``key`` at ``value``: where it stands, else beside the first of ``known`` that stands there."""
    if kind == ".toml":
        return _in_section(text, key, value)
    find, say = (_setting, _said) if kind in (".yaml", ".yml") else (_flag, _typed)
    key = next((word for word in _spelled(key) if _stands(find(word), text)), key)
    if found := _stands(find(key), text):
        last = found[-1]
        if value is _GONE or (value is False and say is _typed):
            rest = text[last.end() :]
            emptied = text[: last.start()].endswith("\n") and rest.startswith("\n")
            return text[: last.start()] + (rest[1:] if emptied else rest)
        named = re.match(r"\$\{?(\w+)", last["value"] or "")
        if named and (given := re.search(rf"(?m)^(\s*(?:export\s+)?{named[1]}=(?:\$\{{\w+:?[-=])?)([^\s}}]*)", text)):
            return text[: given.start(2)] + str(value) + text[given.end(2) :]
        return text[: last.start()] + last["lead"] + say(key, value) + text[last.end() :]
    if value in (_GONE, False):
        return text
    beside = next((each for name in known for each in _stands(find(name), text)), None)
    if beside is None:
        raise _refused(key, "a file in which one setting of the layout stands, to put this beside it")
    lead = " " if say is _typed else beside["lead"]
    return text[: beside.end()] + lead + say(key, value) + text[beside.end() :]


def _spelled(key: str) -> Iterator[str]:
    """``key``, and other names of its field."""
    yield key
    for about in about_of(Recipe).values():
        yield from (name for names in about.names.values() if key in names for name in names)


def _stands(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    """Where a word stands outside comments."""

    def commented(place: int) -> bool:
        return re.search(r"(?:^|\s)#", text[text.rfind("\n", 0, place) + 1 : place]) is not None

    return [each for each in pattern.finditer(text) if not commented(each.start("key"))]


def _setting(key: str) -> re.Pattern[str]:
    """``key: value`` on a line of YAML, from the line's break on, so that what is put beside it is a line, too."""
    return re.compile(rf"(?P<lead>(?:^|\n)[ \t]*)(?P<key>{key})[ \t]*:[ \t]*(?P<value>[^#\n]*?)(?=[ \t]*(?:#|\n|$))")


def _flag(key: str) -> re.Pattern[str]:
    """``--key value`` of a command, with the blanks before it; a switch has no value."""
    word = key.replace("_", "[-_]")
    return re.compile(
        rf"(?P<lead>[ \t]+|(?<=[\n(\"']))(?P<key>--{word})(?![\w-])(?:[ =]+(?P<value>(?!-)[^\s\\\"')]+))?"
    )


def _said(key: str, value: Any) -> str:
    return f"{key}: {json.dumps(value)}"


def _typed(key: str, value: Any) -> str:
    values = [] if value is True else value if isinstance(value, list | tuple) else [value]
    return " ".join((f"--{key.replace('_', '-')}", *(shlex.quote(str(each)) for each in values)))


def _in_section(text: str, key: str, value: Any) -> str:
    """A job file of torchtitan: ``name = value`` below ``[section]``, which is made where there is none."""
    section, _, name = key.rpartition(".")
    head = re.search(rf"(?m)^\[{re.escape(section)}\][^\n]*\n", text)
    if head is None:
        return text if value is _GONE else f"{text.rstrip()}\n\n[{section}]\n{name} = {json.dumps(value)}\n"
    after = re.search(r"(?m)^\[", text[head.end() :])
    end = head.end() + after.start() if after else len(text)
    line = re.compile(rf"(?m)^{name}[ \t]*=[ \t]*[^#\n]*?(?=[ \t]*(?:#|$))").search(text, head.end(), end)
    start, stop = (line.start(), line.end()) if line else (head.end(), head.end())
    said = "" if value is _GONE else f"{name} = {json.dumps(value)}" + ("" if line else "\n")
    return text[:start] + said + text[stop:]


def _read(text: str, path: Path, case: Case, options: argparse.Namespace) -> Workload:
    """``text`` as our readers take it in place of ``path``, on the same GPUs, without flags of recipe fields."""
    from tempfile import TemporaryDirectory

    from projector.cli.inputs import read_case
    from projector.cli.options import selection
    from projector.cli.parser import parse
    from projector.intake.primus_experiment import presets_of

    alone = ("configs", "model", "cluster", "gpu", "framework", "framework_date", "gpus", "target_nodes")
    words = [w for n in alone if (v := getattr(options, n)) for w in (f"--{n.replace('_', '-')}", str(v))]
    if not options.cluster and not options.gpu:
        words += ["--cluster", case.cluster.name]  # of the folder in which the file lies
    if _PRIMUS.search(text) and not options.configs and (presets := presets_of(path, os.environ)):
        words += ["--configs", str(presets)]  # they are looked for above the file
    for name in ("args", "env"):
        words += [f"--{name}", *given] if (given := getattr(options, name)) else []
    with TemporaryDirectory() as folder:
        for each in path.resolve().parent.iterdir():  # files that it names
            if each.name != path.name:
                (Path(folder) / each.name).symlink_to(each)
        (Path(folder) / path.name).write_text(text, encoding="utf-8")
        try:
            return read_case(parse(selection(), ["--config", str(Path(folder) / path.name), *words])).workload
        except InputError as error:
            raise _refused(str(error).replace(folder, str(path.parent)).replace("\n", "; "), _ONE_BY_ONE) from None


def _compare(text: str, path: Path, case: Case, load: Workload, options: argparse.Namespace) -> None:
    """Raises :class:`InputError` unless ``text`` has the step and the memory of ``load``."""
    from projector.projection import project

    wanted = project(load, case.cluster, settings=case.settings)
    again = _read(text, path, case, options)
    try:
        found = project(again, case.cluster, settings=case.settings)
    except (InputError, Unsupported) as error:
        raise _refused(str(error).replace("\n", "; "), _ONE_BY_ONE) from None
    pairs = ((wanted.step_seconds, found.step_seconds), (wanted.memory.allocated, found.memory.allocated))
    if any(abs(a - b) > 1e-9 * a for a, b in pairs):
        ours, theirs = (made.resolved.workload.recipe for made in (wanted, found))
        other = [f.name for f in fields(Recipe) if getattr(ours, f.name) != getattr(theirs, f.name)]
        raise _refused(f"{', '.join(other)}: another value when it is read back", "words that this file can say")


def _refused(found: str, expected: str) -> InputError:
    return InputError([Problem("--write", "patch", found, expected)])
