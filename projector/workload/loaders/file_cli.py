"""Command lines of trainers that are configuration files and little else.

Which words name the files: EleutherAI/gpt-neox@ea7aefd8 megatron/neox_arguments/arguments.py, ``consume_deepy_args`` (a
program, then files of ``--conf_dir``; a key may stand in one of them alone).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from projector.errors import InputError, Problem
from projector.io.files import as_mapping, parse_yaml
from projector.workload.loaders import gpt_neox
from projector.workload.loaders.loaded import Loaded
from projector.workload.loaders.script_files import text_beside, values_of
from projector.workload.loaders.shell import Launch
from projector.workload.loaders.shell.evaluate import Way
from projector.workload.model import Model


@dataclass(frozen=True)
class _Tool:
    """``named``: the program with its first word; ``files``: what a launch names, in order; ``gpus``: their number where the
    files or the words say it."""

    named: re.Pattern[str]
    files: Callable[[Launch], list[str]]
    load: Callable[..., Loaded]
    gpus: Callable[[Mapping[str, object]], int | None]


def takes(launch: Launch) -> bool:
    """Whether the command line of ``launch`` is read here."""
    return _tool(launch) is not None


def load(launch: Launch, way: Way, where: str, model: Model | None, gpus_given: bool) -> Loaded:
    """The workload of ``launch``. Raises :class:`InputError` for a file that is not at hand or a key in two of them."""
    tool = _tool(launch)
    assert tool is not None
    content: dict[str, object] = {}
    problems = []
    names = tool.files(launch)
    for name in names:
        text = text_beside(name, launch, way)
        shown = way.unknowns.shown(name)
        if text is None:
            problems.append(Problem(where, launch.place, shown, "that file beside the script"))
            continue
        stated = as_mapping(parse_yaml(text, shown), shown, "a mapping")
        problems += [Problem(shown, key, "stated in two files", "one of them") for key in stated if key in content]
        content |= stated
    if not names:
        problems.append(Problem(where, launch.place, "no file", f"a configuration for {launch.program}"))
    if problems:
        raise InputError(problems)
    loaded = tool.load(content, where, model=model)
    gpus = None if gpus_given else tool.gpus(content)
    return loaded if gpus is None else replace(loaded, gpus=gpus)


def _tool(launch: Launch) -> _Tool | None:
    started = f"{launch.program} {launch.arguments[0] if launch.arguments else ''}"
    return next((tool for tool in _TOOLS if tool.named.match(started)), None)


def _of_neox(launch: Launch) -> list[str]:
    words = list(launch.arguments[1:])
    folder = ""
    for option in ("-d", "--conf_dir"):
        if option in words[:-1]:
            at = words.index(option)
            folder = words[at + 1]
            del words[at : at + 2]
    if not folder:
        folder = next(iter(values_of(launch, "conf_dir")), "")
    named = [word for word in words if not word.startswith("-")]
    whole = [word if re.search(r"\.(ya?ml|json)$", word) else f"{word}.yml" for word in named]
    return [posixpath.join(folder, word) for word in whole]


def _neox_gpus(content: Mapping[str, object]) -> int | None:
    counts = [content.get(name) for name in ("num_nodes", "num_gpus")]
    stated = content.get("global_num_gpus")
    if type(stated) is int:
        return stated
    return counts[0] * counts[1] if all(type(count) is int and count > 0 for count in counts) else None  # type: ignore[operator]


_TOOLS = (_Tool(re.compile(r"(?:.*/)?deepy\.py "), _of_neox, gpt_neox.load, _neox_gpus),)
