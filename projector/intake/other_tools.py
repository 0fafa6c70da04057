"""Refuses configurations and command lines of trainers that nothing reads: names the trainer, so that nobody looks for a
misspelling, and gives the same workload as flags, as far as some reader knows the names of the settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache

from projector.errors import Unsupported
from projector.intake import megatron_cli
from projector.intake.dialect import dialect, fits, names
from projector.intake.named_models import flat
from projector.intake.shell.unknown import Unknowns, is_known
from projector.intake.spelling import normal
from projector.intake.tables import table, words
from projector.intake.values import literal
from projector.workload import zoo
from projector.workload.fields import Field, field_of, fields

_HYDRA = re.compile(r"\+*[A-Za-z_][\w.]*=")
_ADAPTERS = re.compile(r"(?i)(?:^|[._])(?:peft|q?lora)(?:[._]|$)")
_TOKENS = 2**17  # a batch of so many is one of tokens
_OURS = "recipe|modules"  # a case, a Primus experiment
_WAYS = "its run's log may be"


def _ways(tool: str, stated: Mapping[str, object]) -> str:
    return _WAYS if "reinforcement" in tool else f"{_WAYS}; {flags(stated)}"


def another_tool(program: str, words: Sequence[str], unknowns: Unknowns) -> str:
    """Returns why the command line is not read, where ``program`` is a trainer without a reader; else empty."""
    started = f"{program} {words[0] if words else ''}"
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    for name, marks in table("other_tools", "commands"):
        if any(re.fullmatch(marks, word) for word in options) or re.match(marks, started, re.IGNORECASE):
            pairs = (word.lstrip("+").partition("=") for word in words if _HYDRA.match(word) and is_known(word))
            parsed = {**megatron_cli.parse(words, unknowns).args, **{key: literal(value) for key, _, value in pairs}}
            return f"a command line of {name}: not read ({_ways(name, unambiguous(parsed, words))})"
    return ""


def unambiguous(args: Mapping[str, object], words: Sequence[str]) -> Mapping[str, object]:
    """Returns ``args`` of a trainer that is no fork of Megatron-LM, without a batch size that may be of a rank or of all
    ranks."""
    named = {word.partition("=")[0].replace("-", "_") for word in words}
    return {key: value for key, value in args.items() if key != "micro_batch_size" or "__batch_size" not in named}


def of_another_kind(program: str) -> str:
    """Returns what ``program`` trains by its name, where that is no supported causal language model; else empty."""
    told = table("other_tools", "programs")
    name = program.lower().removesuffix(".py")
    return next((why.format(program) for marks, why in told if re.search(marks, name)), "")


def refuse_other_tools(content: Mapping[str, object], where: str) -> None:
    """Raises :class:`Unsupported` for the configuration of another trainer, with its name and what it builds on."""
    if fits((_OURS,), content) and not fits(("step_scheduler",), content):
        return
    for name, marks in table("other_tools", "configurations"):
        if fits(marks.split(), content):
            built_on = ", which extends files by its defaults" if content.get("defaults") else ""
            raise Unsupported(f"{where}: {name}{built_on}: not read ({_ways(name, content)})")


_PAIR = re.compile(r"^\s*([A-Za-z_][\w.]*)\s*(?::\s*\w+\s*)?[=:]\s*([^\s#,{(\[][^#,\n]*)", re.MULTILINE)


def of_program(text: str) -> str:
    """Returns why a Python program is not read, where its imports show a known trainer; else empty."""
    told = (name for module, name in table("other_tools", "imports").items()
            if re.search(rf"^\s*(?:from|import) {re.escape(module)}\b", text, re.MULTILINE))  # fmt: skip
    name = next(told, "")
    return f"a program of {name}: not run ({_WAYS}; {of_text(text)})" if name else ""


def of_text(text: str) -> str:
    """Returns :func:`flags` of the ``name = value`` lines of a program or any other text."""
    return flags({name: literal(value.strip().strip("'\"")) for name, value in _PAIR.findall(text)})


def flags(settings: Mapping[str, object]) -> str:
    """Returns ``the same as flags: --model llama3_8b --gpu NAME …``: the settings whose names are known, and placeholders
    for model, GPU and number of GPUs where ``settings`` do not state them."""
    stated: dict[str, str] = {}
    asked = {"--model": "NAME|FILE", "--gpu": "NAME", "--gpus": "N"}
    leaves = {name: literal(value) for name, value in flat(settings).items() if value != {}}
    for name, value in leaves.items():
        last = normal(name.rpartition(".")[2])
        if last in words("other_tools", "model") and isinstance(value, str) and (known := zoo.named(value.rstrip("/"))):
            asked["--model"] = known
        elif last == "compute_dtype" and (precision := table("other_tools", "computed").get(str(value).lower())):
            stated["precision"] = f"--precision {precision}"
        elif last in words("other_tools", "gpus") and type(value) is int and value > 0:
            asked["--gpus"] = str(value)
        elif last == "global_batch_size" and type(value) is int and value >= _TOKENS:
            continue
        elif (own := field_of(last)) and (word := _flag_of(own, value)):
            stated[own.key] = word
        elif (alike := _by_setting().get(last)) and (word := _flag_of(alike, value)):
            stated.setdefault(alike.key, word)
    needed = [f"--{each} …" for each in ("micro-batch-size", "global-batch-size", "seq-length")]
    left = [each for each in needed if each.split()[0][2:].replace("-", "_") not in stated]
    adapters = any(_ADAPTERS.search(name) and value not in (None, False, 0, "") for name, value in leaves.items())
    left += ["--lora-rank … --lora-targets …"] if adapters else []
    return " ".join(("the same as flags:", *(f"{k} {v}" for k, v in asked.items()), *stated.values(), *left))


@cache
def _by_setting() -> Mapping[str, Field]:
    """Returns recipe field by the last word of a setting's name, where all dialects with that name agree."""
    found: dict[str, set[Field]] = {}
    for each in map(dialect, names()):
        for field, settings in each.names.items():
            if meant := field_of(field):
                for setting in settings:
                    found.setdefault(setting.rpartition(".")[2], set()).add(meant)
    for name in ("batch_size", "train_batch_size"):  # of a rank or of all, as trainers please
        found.pop(name, None)
    return {setting: next(iter(meant)) for setting, meant in found.items() if len(meant) == 1}


def _flag_of(field: Field, value: object) -> str:
    """Returns the flag of ``field`` with ``value``; empty for a value that the field cannot have."""
    flag = field.names[0].replace("_", "-")
    if field.many or len(field.path) > 1 or type(value) is not field.kind or field not in fields():
        return ""
    if isinstance(value, bool):
        return f"--{flag}" if value else ""
    return f"--{flag} {value}" if not field.choices or value in field.choices else ""
