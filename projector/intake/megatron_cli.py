"""Reads the command line of Megatron-LM and its forks as argparse does (megatron/training/arguments.py).

The last of several wins, ``--no-x`` undoes ``--x``, an option takes every word up to the next one, and unambiguous
prefixes of a name stand for it. A command line is a whole configuration: what it leaves out is Megatron-LM's default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field

from projector.dataclass import dataclass
from projector.intake import megatron_forks
from projector.intake.aliases import renamings
from projector.intake.shell.unknown import Unknown, Unknowns, is_known
from projector.intake.tables import table, words
from projector.intake.values import literal
from projector.workload.optimizers import named

_OPTION = re.compile(r"--?[A-Za-z][\w.-]*(=.*)?", re.DOTALL)
#: Names of forks and of other years for the arguments that the loaders read.
_SAME = {**renamings("forks"), **table("megatron", "same")}
_VALUES, _FLAGS, _PATHS, _LISTS = (words("megatron", key) for key in ("values", "flags", "paths", "lists"))
_KNOWN = _VALUES | _FLAGS


@dataclass
class CommandLine:
    """Holds a parsed command line. ``args``: by name; ``unknown``: names whose value only the run knows; ``open``: words
    that may hold any option; ``unset``: variables that are not set and so hold no option; ``stray``: words of no option."""

    args: dict[str, object] = field(default_factory=dict)
    unknown: dict[str, tuple[Unknown, ...]] = field(default_factory=dict)
    open: list[Unknown] = field(default_factory=list)
    unset: list[Unknown] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)


def parse(line: Sequence[str], unknowns: Unknowns) -> CommandLine:
    """Parses the words of ``line``, which stand behind the program."""
    parsed = CommandLine()
    at = 0
    flat = [part for word in line for part in _parts(word)]
    while at < len(flat):
        word = flat[at]
        at += 1
        if not _OPTION.fullmatch(word):
            parsed.open += [item for item in unknowns.within(word) if not (item.unset or item.plain)]
            parsed.unset += [item for item in unknowns.within(word) if item.unset]
            parsed.stray += [word] if word.strip() and is_known(word) and "--" not in flat[:at] else []
            continue
        name, equals, value = word.lstrip("-").partition("=")
        values = [value] if equals else []
        while not equals and at < len(flat) and flat[at] != "--" and not _is_option(flat[at]):
            values.append(flat[at])
            at += 1
        _store(parsed, _full_name(name.replace("-", "_")), values, unknowns)
    return parsed


def _parts(word: str) -> list[str]:
    """Splits ``"--vocab-size 128256"``, quoted as one word, into the two words that its author meant."""
    if re.fullmatch(r"--[a-z][a-z-]+ +[^\s'\"]+", word):
        return word.split()
    return [word]


def _is_option(word: str) -> bool:
    return bool(_OPTION.fullmatch(word)) and not re.fullmatch(r"-\d.*", word)


def _full_name(name: str) -> str:
    """Returns Megatron-LM's name for ``name``: itself, a fork's synonym, or the one option that ``name`` abbreviates."""
    name = _SAME.get(name, name)
    if name in _KNOWN:
        return name
    begun = [known for known in _KNOWN if known.startswith(name) and len(name) >= 7]
    return begun[0] if len(begun) == 1 and "_" in name else name


def _store(parsed: CommandLine, name: str, values: list[str], unknowns: Unknowns) -> None:
    bare = name.removeprefix("no_")
    if bare != name:
        parsed.args.pop(bare, None)
    else:
        parsed.args.pop(f"no_{name}", None)
    parsed.unknown.pop(name, None)
    takes_one = name in _VALUES and name not in _LISTS
    if takes_one and len(values) > 1:
        parsed.open += [i for word in values[1:] for i in unknowns.within(word) if not (i.unset or i.plain)]
        parsed.stray += [word for word in values[1:] if name not in _PATHS and word.strip() and is_known(word)]
        values = values[:1]
    known = [value for value in values if unknowns.as_shell(value) or not value]
    if name in _FLAGS or not known:
        parsed.open += (
            [i for word in values for i in unknowns.within(word) if not (i.unset or i.plain)] if name in _FLAGS else []
        )
        if values and not known and name in _VALUES:
            parsed.unknown[name] = unknowns.within("".join(values))
            _name_only(parsed, name, "".join(values), unknowns)
        else:
            turned = {value: literal(value) for value in known if is_known(value)}
            parsed.stray += [value for value, on in turned.items() if on not in (True, False)]
            parsed.args[name] = False not in turned.values()  # of a fork whose switches take a value
        return
    if not all(is_known(value) for value in known):
        parsed.unknown[name] = unknowns.within("".join(known))
        _name_only(parsed, name, " ".join(known), unknowns)
        return
    parsed.args[name] = literal(known[0]) if len(known) == 1 else " ".join(known) if name in _LISTS else known


def _name_only(parsed: CommandLine, name: str, text: str, unknowns: Unknowns) -> None:
    """Keeps paths and the like as the script writes them, and drops arguments that decide something."""
    if name in _PATHS or name not in _VALUES:
        parsed.args[name] = unknowns.shown(text)
    else:
        parsed.args.pop(name, None)


def with_defaults(given: Mapping[str, object]) -> dict[str, object]:
    """Returns the arguments in Megatron-LM's present words, completed by its defaults."""
    args = todays_words(given)
    stated = ("recompute_granularity", "recompute_activations", "checkpoint_activations")
    if not any(name in args for name in stated):
        args["recompute_granularity"] = "none"
    defaults = dict(table("megatron", "line_defaults"))
    if args.get("num_experts"):
        defaults |= {"moe_grouped_gemm": False, "moe_permute_fusion": False}
    return {**defaults, **args}


def _dense_layers(args: Mapping[str, object]) -> dict[str, object]:
    """Returns which layers hold experts and the width of shared experts from MindSpeed-LLM's words (-1: not given)."""
    fields: dict[str, object] = {}
    first, every, layers = (args.get(name) for name in ("first_k_dense_replace", "moe_layer_freq", "num_layers"))
    every = 1 if every in (None, -1) else every
    if args.get("moe_layer_freq") == -1:
        fields["moe_layer_freq"] = 1
    if (
        isinstance(first, int)
        and first > 0
        and isinstance(layers, int)
        and 0 < layers < 10_000
        and isinstance(every, int)
    ):
        fields["moe_layer_freq"] = [int(layer >= first and layer % every == 0) for layer in range(layers)]
    shared, width = args.get("n_shared_experts"), args.get("moe_ffn_hidden_size") or args.get("ffn_hidden_size")
    if isinstance(shared, int) and shared > 0 and isinstance(width, int):
        fields.setdefault("moe_shared_expert_intermediate_size", shared * width)
    return {name: value for name, value in fields.items() if value != args.get(name)}


def todays_words(given: Mapping[str, object]) -> dict[str, object]:
    """Returns arguments of any year and fork, from a command line or a dump, in Megatron-LM's present words."""
    args = dict(given)
    for theirs, ours in _SAME.items():
        value = args.pop(theirs, None)
        if value not in (None, False) and args.get(ours) is None:
            args[ours] = value
    norm = args.get("normalization")
    if isinstance(norm, str):
        args["normalization"] = table("megatron", "norms").get(norm.lower(), norm)
    args = megatron_forks.reworded(args, table("megatron", "todays"))
    experts = args.get("num_experts")
    if isinstance(experts, (list, tuple)) and len(set(experts)) == 1:
        args["num_experts"] = experts = experts[0]
    if isinstance(experts, str) and re.fullmatch(r"\d+( \d+)*", experts) and len(set(experts.split())) == 1:
        args["num_experts"] = experts = int(experts.split()[0])
    if experts == 1:  # a dense model prints the defaults of experts, too
        args = {name: value for name, value in args.items() if name != "num_experts" and not name.startswith("moe_")}
    args |= _dense_layers(args)
    args = megatron_forks.in_own_words(args)
    if isinstance(word := args.get("optimizer"), str):
        args["optimizer"] = named(word)
        if args["optimizer"] == "adamw":  # its Adam decays weights apart, as AdamW does
            args["optimizer"] = "adam"
    return args
