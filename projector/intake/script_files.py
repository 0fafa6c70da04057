"""Files that a launch names (arguments in YAML, DeepSpeed's configuration): written by the script, or beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from projector.errors import InputError, Problem
from projector.intake import deepspeed_config, megatron_args
from projector.intake.shell.launch import Launch, Way
from projector.intake.shell.state import State
from projector.intake.shell.unknown import MARK, Unknown
from projector.io.files import as_mapping, parse_yaml


def from_files(
    files: Mapping[str, object], args: dict[str, object], launch: Launch, way: Way, where: str
) -> dict[str, object]:
    """Arguments that a file of the command line gives, under those of the command line itself."""
    for option in ("yaml_cfg", "args_file"):
        name = files.get(option)
        if not isinstance(name, str):
            continue
        args = {**megatron_args.parse(needed(name, launch, way, where, option)), **args}
    return args


def text_beside(name: str, launch: Launch, way: Way) -> str | None:
    """The text of a file that the script wrote or that lies beside it."""
    return way.files.read(name, State(cwd=launch.cwd)) if way.files else None


def needed(name: str, launch: Launch, way: Way, where: str, key: str) -> str:
    """As :func:`text_beside`. Raises :class:`InputError` without the file, which ``key`` names."""
    text = text_beside(name, launch, way)
    if text is None:
        raise InputError([Problem(where, key, way.unknowns.shown(name), "that file beside the script")])
    return text


def mapping_beside(name: str, launch: Launch, way: Way, where: str, key: str) -> dict[str, object]:
    """What :func:`needed` has, as the mapping of a YAML or JSON file."""
    shown = way.unknowns.shown(name)
    return dict(as_mapping(parse_yaml(needed(name, launch, way, where, key), shown), shown, "a mapping"))


def options(words: Sequence[str]) -> dict[str, list[str]]:
    """The words behind each ``--option``, of ``--option=value`` that one; of two the last counts."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name] = [value] if equals else []
        elif name:
            found[name].append(word)
    return found


def of_deepspeed(
    args: dict[str, object], unknown: dict[str, tuple[Unknown, ...]], launch: Launch, way: Way, where: str
) -> tuple[str, ...]:
    """Puts what DeepSpeed's configuration says into ``args``; what was assumed."""
    name = args.get("deepspeed_config")
    if not args.get("deepspeed") and name is None and "deepspeed_config" not in unknown:
        return ()
    args["deepspeed"] = True
    word = next((w for w in values_of(launch, "deepspeed_config")), None)
    text = text_beside(word, launch, way) if word else None
    if text is None or not MARK.sub("", text).strip():
        if "zero_stage" in args:
            unknown.pop("deepspeed_config", None)
            return (
                f"zero_stage={args['zero_stage']} (--zero-stage; {name or 'the DeepSpeed configuration'} is not there)",
            )
        if "zero_stage" not in unknown:
            found, expected = way.unknowns.shown(word or "nothing"), "that file beside the script"
            made = re.findall(r"[\w./-]+\.json\b", way.unknowns.shown(text or ""))
            if made:
                expected = f"{made[-1]}, of which the script makes it, beside the script"
            raise InputError([Problem(where, "deepspeed_config", found, expected)])
        return ()
    unknown.pop("deepspeed_config", None)
    stated, open_ = deepspeed_config.arguments(text, str(name), way.unknowns)
    for key, value in stated.items():
        if key in ("bf16", "fp16") and ("bf16" in args or "fp16" in args):
            continue  # the model is of the command line's type
        if key in ("zero_stage", "optimizer_cpu_offload") or (key not in args and key not in unknown):
            args[key] = value
    unknown |= {key: value for key, value in open_.items() if key not in args}
    if "zero_stage" in open_:
        args.pop("zero_stage", None)
        unknown["zero_stage"] = open_["zero_stage"]
    return ()


def values_of(launch: Launch, option: str) -> list[str]:
    """The words behind an option, with their marks."""
    found = []
    for number, word in enumerate(launch.arguments):
        name, equals, value = word.lstrip("-").partition("=")
        if word.startswith("--") and name.replace("-", "_") == option:
            following = launch.arguments[number + 1 : number + 2]
            found.append(value if equals else following[0] if following else "")
    return [value for value in found if value][::-1]
