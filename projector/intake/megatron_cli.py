"""Megatron-LM's command line as its argparse reads it, for any of its forks (megatron/training/arguments.py).

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
    """``args`` by name; ``unknown``: names whose value only the run knows; ``open``: words that may hold any
    option; ``unset``: variables of the command line that are not set and so hold none."""

    args: dict[str, object] = field(default_factory=dict)
    unknown: dict[str, tuple[Unknown, ...]] = field(default_factory=dict)
    open: list[Unknown] = field(default_factory=list)
    unset: list[Unknown] = field(default_factory=list)


def parse(line: Sequence[str], unknowns: Unknowns) -> CommandLine:
    """The arguments that the words of ``line`` (after the program) give."""
    found = CommandLine()
    at = 0
    flat = [part for word in line for part in _parts(word)]
    while at < len(flat):
        word = flat[at]
        at += 1
        if not _OPTION.fullmatch(word):
            found.open += [item for item in unknowns.within(word) if not (item.unset or item.plain)]
            found.unset += [item for item in unknowns.within(word) if item.unset]
            continue
        name, equals, value = word.lstrip("-").partition("=")
        values = [value] if equals else []
        while not equals and at < len(flat) and not _is_option(flat[at]):
            values.append(flat[at])
            at += 1
        _store(found, _full(name.replace("-", "_")), values, unknowns)
    return found


def _parts(word: str) -> list[str]:
    """A word; ``"--vocab-size 128256"`` in one pair of quotes is the two that its author meant."""
    if re.fullmatch(r"--[a-z][a-z-]+ +[^\s'\"]+", word):
        return word.split()
    return [word]


def _is_option(word: str) -> bool:
    return bool(_OPTION.fullmatch(word)) and not re.fullmatch(r"-\d.*", word)


def _full(name: str) -> str:
    """The name that ``name`` stands for: itself, that of another fork, or the one it begins."""
    name = _SAME.get(name, name)
    if name in _KNOWN:
        return name
    begun = [known for known in _KNOWN if known.startswith(name) and len(name) >= 7]
    return begun[0] if len(begun) == 1 and "_" in name else name


def _store(found: CommandLine, name: str, values: list[str], unknowns: Unknowns) -> None:
    bare = name.removeprefix("no_")
    if bare != name:
        found.args.pop(bare, None)
    else:
        found.args.pop(f"no_{name}", None)
    found.unknown.pop(name, None)
    takes_one = name in _VALUES and name not in _LISTS
    if takes_one and len(values) > 1:
        found.open += [i for word in values[1:] for i in unknowns.within(word) if not (i.unset or i.plain)]
        values = values[:1]
    kept = [value for value in values if unknowns.as_shell(value) or not value]
    if name in _FLAGS or not kept:
        found.open += (
            [i for word in values for i in unknowns.within(word) if not (i.unset or i.plain)] if name in _FLAGS else []
        )
        if values and not kept and name in _VALUES:
            found.unknown[name] = unknowns.within("".join(values))
            _name_only(found, name, "".join(values), unknowns)
        else:
            found.args[name] = True
        return
    if not all(is_known(value) for value in kept):
        found.unknown[name] = unknowns.within("".join(kept))
        _name_only(found, name, " ".join(kept), unknowns)
        return
    found.args[name] = literal(kept[0]) if len(kept) == 1 else " ".join(kept) if name in _LISTS else kept


def _name_only(found: CommandLine, name: str, text: str, unknowns: Unknowns) -> None:
    """Paths and the like are kept as the script writes them; what decides something is not there at all."""
    if name in _PATHS or name not in _VALUES:
        found.args[name] = unknowns.shown(text)
    else:
        found.args.pop(name, None)


def with_defaults(given: Mapping[str, object]) -> dict[str, object]:
    """Arguments in Megatron-LM's present words, completed by its defaults."""
    args = todays_words(given)
    stated = ("recompute_granularity", "recompute_activations", "checkpoint_activations")
    if not any(name in args for name in stated):
        args["recompute_granularity"] = "none"
    defaults = dict(table("megatron", "line_defaults"))
    if args.get("num_experts"):
        defaults |= {"moe_grouped_gemm": False, "moe_permute_fusion": False}
    return {**defaults, **args}


def _dense_layers(args: Mapping[str, object]) -> dict[str, object]:
    """MindSpeed-LLM's words for which layers hold experts and how wide the shared ones are (-1: not given)."""
    found: dict[str, object] = {}
    first, every, layers = (args.get(name) for name in ("first_k_dense_replace", "moe_layer_freq", "num_layers"))
    every = 1 if every in (None, -1) else every
    if args.get("moe_layer_freq") == -1:
        found["moe_layer_freq"] = 1
    if (
        isinstance(first, int)
        and first > 0
        and isinstance(layers, int)
        and 0 < layers < 10_000
        and isinstance(every, int)
    ):
        found["moe_layer_freq"] = [int(layer >= first and layer % every == 0) for layer in range(layers)]
    shared, width = args.get("n_shared_experts"), args.get("moe_ffn_hidden_size") or args.get("ffn_hidden_size")
    if isinstance(shared, int) and shared > 0 and isinstance(width, int):
        found.setdefault("moe_shared_expert_intermediate_size", shared * width)
    return {name: value for name, value in found.items() if value != args.get(name)}


def todays_words(given: Mapping[str, object]) -> dict[str, object]:
    """Arguments of any year and fork, on a command line or in a dump of them, in Megatron-LM's present words."""
    args = dict(given)
    for theirs, ours in _SAME.items():
        value = args.pop(theirs, None)
        if value not in (None, False) and args.get(ours) is None:
            args[ours] = value
    norm = args.get("normalization")
    if isinstance(norm, str):
        args["normalization"] = table("megatron", "norms").get(norm.lower(), norm)
    if args.pop("use_rms_norm", None) or args.pop("apply_layernorm_rms", None) or args.pop("RMSNorm", None):
        args["normalization"] = "RMSNorm"
    heads = args.pop("num_key_value_heads", None)
    if heads is not None:
        args |= {"group_query_attention": True, "num_query_groups": heads}
    if args.get("attention_head_type") == "multiquery":
        args |= {"group_query_attention": True, "num_query_groups": 1}
    method = args.pop("activations_checkpoint_method", None)
    if method is not None:
        args |= {"recompute_granularity": "full", "recompute_method": method}
        args.setdefault("recompute_num_layers", 1)
    if args.get("checkpoint_activations") and "recompute_granularity" not in args:
        args["recompute_granularity"] = "full"
        args.setdefault("recompute_method", "uniform")
        args.setdefault("recompute_num_layers", 1)
    ulysses = args.pop("ds_sequence_parallel_size", None)
    if ulysses is not None and ulysses != 1:  # DeepSpeed's sequence parallelism: all-to-all over heads
        args |= {"context_parallel_size": ulysses, "cp_comm_type": "a2a"}
    if args.pop("no_pipeline_parallel", None):
        args["pipeline_model_parallel_size"] = 1
    experts = args.get("num_experts")
    if isinstance(experts, (list, tuple)) and len(set(experts)) == 1:
        args["num_experts"] = experts = experts[0]
    if isinstance(experts, str) and re.fullmatch(r"\d+( \d+)*", experts) and len(set(experts.split())) == 1:
        args["num_experts"] = experts = int(experts.split()[0])
    if experts == 1:  # a dense model prints the defaults of experts, too
        args = {name: value for name, value in args.items() if name != "num_experts" and not name.startswith("moe_")}
    args |= _dense_layers(args)
    args = megatron_forks.in_own_words(args)
    if args.get("optimizer") in ("hybridadam", "cpu-adam"):  # Pai-Megatron-Patch: Adam whose states lie on the host
        args |= {"optimizer": "adam", "optimizer_cpu_offload": True}
    if isinstance(word := args.get("optimizer"), str):
        args["optimizer"] = named(word)
        if args["optimizer"] == "adamw":  # its Adam decays weights apart, as AdamW does
            args["optimizer"] = "adam"
    if args.get("moe_token_dispatcher_type") == "alltoall_seq":
        args["moe_token_dispatcher_type"] = "alltoall"  # Megatron core's older dispatcher, with the same exchange
    if args.get("fp8") is True:
        args["fp8"] = "hybrid"
    if args.get("enable_zero_bubble"):
        args.setdefault("patch_zero_bubble", True)
    return args
