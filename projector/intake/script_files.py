"""Files that a launch names (arguments in YAML, DeepSpeed's configuration by ``dialects/deepspeed.yaml``), written by the
script or beside it; and what a launch leaves open, said so that a user can settle it.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from projector.errors import InputError, Problem
from projector.intake import megatron_args
from projector.intake.dialect import dialect
from projector.intake.megatron_cli import CommandLine
from projector.intake.megatron_model import model_fields
from projector.intake.megatron_recipe import recipe_fields
from projector.intake.settings import Settings
from projector.intake.shell.launch import Launch, Way
from projector.intake.shell.state import State
from projector.intake.shell.unknown import MARK, Unknown, Unknowns, is_known
from projector.intake.values import Reader
from projector.io.documents import as_mapping, parse_yaml
from projector.workload.model import Model


def deepspeed_arguments(
    text: str, where: str, unknowns: Unknowns
) -> tuple[dict[str, object], dict[str, tuple[Unknown, ...]]]:
    """Returns (arguments that the JSON ``text`` states, arguments whose value only the run knows). A setting that may change
    seconds or bytes and that nothing models is an argument by its dotted name. Raises :class:`InputError`."""
    if not MARK.sub("", text).strip():
        held = "; ".join(str(item) for item in unknowns.within(text)) or "an empty file"
        raise InputError([Problem(where, "", held, "a DeepSpeed configuration that the script states")])
    try:
        content = json.loads(re.sub(rf"([:\[,]\s*)({MARK.pattern})", r'\1"\2"', text))
    except (ValueError, RecursionError) as error:
        raise InputError([Problem(where, "", str(error)[:120], "a DeepSpeed configuration in JSON")]) from None
    if not isinstance(content, Mapping):
        raise InputError([Problem(where, "", type(content).__name__, "a DeepSpeed configuration in JSON")])
    job = Settings(dialect("deepspeed"), _settled(content), where)
    open_ = Settings(dialect("deepspeed"), content, where).fields
    left = job.unread(written=True)
    if job.problems or left.problems:
        raise InputError([*job.problems, *left.problems])
    arguments = {name: value for name, value in job.fields.items() if value is not None}
    arguments |= {
        name: True for name in job.dialect.tables["aside"] if '"enabled": true' in json.dumps(content.get(name)).lower()
    }
    told = (text.removesuffix(" (unknown)").partition("=") for text in (*job.doubtful(), *left.unmodelled))
    arguments |= {name if "." in name else f"deepspeed.{name}": job.stated[name] for name, _, _ in told}
    texts = {name: value for name, value in open_.items() if isinstance(value, str)}
    unknown = {name: unknowns.within(value) for name, value in texts.items() if not is_known(value)}
    return {name: value for name, value in arguments.items() if name not in unknown}, unknown


def _settled(value: Any) -> Any:
    """Returns ``value`` without entries that are ``auto`` or that only the run knows."""
    if not isinstance(value, Mapping):
        return value
    entries = ((key, _settled(inner)) for key, inner in value.items())
    return {
        key: inner
        for key, inner in entries
        if not (isinstance(inner, str) and (inner == "auto" or not is_known(inner)))
    }


def from_files(
    files: Mapping[str, object], args: dict[str, object], launch: Launch, way: Way, where: str
) -> dict[str, object]:
    """Returns ``args`` with the arguments of the files that the command line names below them."""
    for option in ("yaml_cfg", "args_file"):
        if isinstance(name := files.get(option), str):
            args = {**megatron_args.parse(needed(name, launch, way, where, option)), **args}
    return args


def text_beside(name: str, launch: Launch, way: Way) -> str | None:
    """Returns the text of a file that the script wrote or that lies beside the script; None without one."""
    return way.files.read(name, State(cwd=launch.cwd), moved=True) if way.files else None


def needed(name: str, launch: Launch, way: Way, where: str, key: str) -> str:
    """Returns the text of :func:`text_beside`. Raises :class:`InputError`, which names ``key``, without the file."""
    text = text_beside(name, launch, way)
    if text is None:
        raise InputError([Problem(where, key, way.unknowns.shown(name), "that file beside the script")])
    return text


def mapping_beside(name: str, launch: Launch, way: Way, where: str, key: str) -> dict[str, object]:
    """Returns the mapping in a YAML or JSON file. Raises :class:`InputError` without the file or without a mapping."""
    shown = way.unknowns.shown(name)
    return dict(as_mapping(parse_yaml(needed(name, launch, way, where, key), shown), shown, "a mapping"))


def options(words: Sequence[str]) -> dict[str, list[str]]:
    """Returns the words behind each ``--option``, or the value of ``--option=value``; the last of a repeated one counts."""
    values_by_option: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            values_by_option[name] = [value] if equals else []
        elif name:
            values_by_option[name].append(word)
    return values_by_option


def of_deepspeed(
    args: dict[str, object], unknown: dict[str, tuple[Unknown, ...]], launch: Launch, way: Way, where: str
) -> tuple[str, ...]:
    """Puts DeepSpeed's configuration into ``args`` and ``unknown``; returns what was assumed."""
    name = args.get("deepspeed_config")
    if not args.get("deepspeed") and name is None and "deepspeed_config" not in unknown:
        return ()
    args["deepspeed"] = True
    word = next((w for w in values_of(launch, "deepspeed_config")), None)
    text = text_beside(word, launch, way) if word else None
    if text is None or not MARK.sub("", text).strip():
        if "zero_stage" in args:
            unknown.pop("deepspeed_config", None)
            file = name or "the DeepSpeed configuration"
            return (f"zero_stage={args['zero_stage']} (--zero-stage; {file} is not there)",)
        if "zero_stage" not in unknown:
            marks = way.unknowns.within(word or "")
            found = way.unknowns.shown(word or "nothing")
            expected = flag(marks) if marks else "that file beside the script"
            templates = re.findall(r"[\w./-]+\.json\b", way.unknowns.shown(text or ""))
            if templates:
                expected = f"{templates[-1]}, of which the script makes it, beside the script"
            raise InputError([Problem(where, "deepspeed_config", found, expected)])
        return ()
    unknown.pop("deepspeed_config", None)
    stated, open_ = deepspeed_arguments(text, str(name), way.unknowns)
    if re.search(r'"overlap_comm":\s*true', text):
        stated["zero_optimization.overlap_comm"] = True  # Megatron-DeepSpeed is modelled without
    told = []
    typed = next((key for key in ("bf16", "fp16") if args.get(key)), None)
    for key, value in stated.items():
        if key in ("bf16", "fp16") and typed:  # the model is of the command line's type
            told += [f"{typed} (the command line's; {name} says {key})"] if value and key != typed else []
            continue
        of_file = key in ("zero_stage", "optimizer_cpu_offload")
        if key in args and str(args[key]) != str(value):
            told.append(f"{key}={value if of_file else args[key]} ({name} {value}, the command line {args[key]})")
        if of_file or (key not in args and key not in unknown):
            args[key] = value
    unknown |= {key: value for key, value in open_.items() if key not in args}
    if "zero_stage" in open_:
        args.pop("zero_stage", None)
        unknown["zero_stage"] = open_["zero_stage"]
    return tuple(told)


def values_of(launch: Launch, option: str) -> list[str]:
    """Returns the values of an option with the marks of unknown parts, the last one first."""
    values = []
    for number, word in enumerate(launch.arguments):
        name, equals, value = word.lstrip("-").partition("=")
        if word.startswith("--") and name.replace("-", "_") == option:
            following = launch.arguments[number + 1 : number + 2]
            values.append(value if equals else following[0] if following else "")
    return [value for value in values if value][::-1]


def gathered(problems: list[Problem], marks: Sequence[Unknown], way: Way, where: str) -> list[Problem]:
    """Returns one problem in place of many with one cause: a script that was started without its arguments or variables."""
    positional = sorted({int(name) for name in way.unset if name.isdigit()})
    if len(problems) < 2 or not any(item.unset for item in marks):
        return problems
    missing = ", ".join(dict.fromkeys(item.key for item in problems[:6]))
    judged = [item for item in way.unknowns.judged if item.settle != "--args"]
    if judged and not (positional and len(problems) > 2):
        names = ", ".join(item.source for item in judged[:4])
        return [Problem(where, "", f"{names} not set, and {missing} depend on it", flag(judged[:4]))]
    if len(problems) < 3 or not positional:
        return problems
    place, found = f"arguments $1 to ${positional[-1]}", f"none, and {missing} depend on them"
    return [Problem(where, place, found, "--args, in the order in which the script takes them")]


def no_architecture(line: CommandLine, where: str) -> Problem:
    """Returns the problem of a command line without ``num_layers``."""
    if line.unset:
        held = "; ".join(dict.fromkeys(str(item) for item in line.unset[:4]))
        return Problem(where, "num_layers", f"nothing, and {held} on the command line", flag(line.unset))
    return Problem(where, "num_layers", "nothing: only a checkpoint or a recipe knows it", "--model NAME|FILE")


def hydra(launch: Launch, way: Way, where: str) -> Problem:
    """Returns the problem of Hydra overrides (NeMo or another program) whose configuration is not at hand."""
    named = [word for word in launch.arguments if word.startswith(("--config-path", "--config-name"))]
    shown = way.unknowns.shown(" ".join(named) or posixpath.basename(launch.program))
    return Problem(
        where, launch.place, f"Hydra's words over {shown}", "the run's whole configuration (its YAML) with --config"
    )


def uncounted(marks: Sequence[Unknown], where: str) -> Problem:
    """Returns the problem of a number of GPUs that only a run knows."""
    flags = [*dict.fromkeys(item.settle for item in marks if item.settle and "--gpus" not in item.settle), "--gpus N"]
    return Problem(where, "gpus", "; ".join(str(item) for item in marks), " or ".join(flags))


def flag(marks: Sequence[Unknown]) -> str:
    """Returns the flags by which a user settles the unknowns ``marks``."""
    settle = list(dict.fromkeys(item.settle for item in marks if item.settle))
    return " ".join(settle) or "a script that states it"


#: Read, and no question: which data set it is changes nothing, and an unknown vocabulary is assumed.
_UNDECIDING = (
    *("vocab_size", "padded_vocab_size", "max_position_embeddings", "tokenizer_type", "tokenizer_model"),
    *("data_path", "train_data_path", "data_args_path", "per_split_data_args_path"),
)


def unsettled(
    args: Mapping[str, object], unknown: Mapping[str, tuple[Unknown, ...]], model: Model | None, where: str
) -> list[Problem]:
    """Returns a problem for each argument that decides something and whose value only the run knows."""
    reader = Reader({**args, **dict.fromkeys(unknown)})
    recipe_fields(reader, None)
    if model is None:
        model_fields(reader)
    problems = []
    for name, marks in unknown.items():
        if name in _UNDECIDING:
            continue
        decides = ("zero_stage", "deepspeed_config", "num_key_value_heads", "checkpoint_activations")
        accumulated = name == "gradient_accumulation_steps" and not args.get("global_batch_size")
        if name in reader.used or name in decides or accumulated:
            problems.append(Problem(where, name, "; ".join(str(item) for item in marks), flag(marks)))
    return problems
