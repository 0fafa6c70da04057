"""Translates arguments of Megatron-LM's forks into Megatron-LM's, and refuses those for which it has no word.

Read in the argument parsers of Ascend MindSpeed and MindSpeed-LLM, sail-sg/zero-bubble-pipeline-parallelism,
alibaba/Megatron-LLaMA, bigscience-workshop/Megatron-DeepSpeed, HYGON-AI/Megatron-LM-das, krafton-ai/Megatron-Dion,
baidu-baige/LoongForge and flagos-ai/FlagScale.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from projector.intake.tables import table, words
from projector.intake.values import integers_of, literal
from projector.workload.lora import BLOCK_LINEARS

_MOST_LAYERS = 10_000
#: The layers of each pipeline stage: of MindSpeed, of LoongForge, of FlagScale.
_LISTED = ("num_layer_list", "custom_pipeline_layers", "hetero_pipeline_layer_split")
_LINEAR = "linear attention layers"
_ANSWERS = ("is_instruction_dataset", "is_pairwise_dataset")
_STAGES = ("sft", "pt", "pretrain")  # MindSpeed-LLM's --stage: others compare answers, or train what scores them


def another_task(given: Mapping[str, object]) -> str:
    """Returns what hand-written arguments do instead of training a causal language model; empty where they train one."""
    if words("megatron", "images") & set(given):
        return "trains on images, not a causal language model alone"
    stage = given.get("rlhf_type", given.get("stage"))
    if isinstance(stage, str) and stage not in _STAGES:
        return f"with {stage} is reinforcement learning or preference training"
    if unstated_lengths(given):
        return "with --no-pad-to-seq-lengths trains on samples of lengths that nothing states"
    told = (rule["is"].format_map(given) for rule in table("megatron", "tasks") if applies(rule, given))
    return next(told, "")


def unstated_lengths(given: Mapping[str, object]) -> bool:
    """Returns whether answers are trained at their own lengths (Ascend/MindSpeed-LLM@c77308a1
    mindspeed_llm/legacy/data/data_samplers.py: its collators of answers pad to a multiple)."""
    answers = any(given.get(name) for name in _ANSWERS)
    return bool(given.get("no_pad_to_seq_lengths") and answers and not (given.get("pack") or given.get("neat_pack")))


def another_model(given: Mapping[str, object]) -> tuple[str, ...]:
    """Returns the kinds of layers that hand-written arguments ask for and that no model field describes."""
    reasons = []
    for name, value in given.items():
        if not value:
            continue
        reasons += [
            reason for pattern, reason in table("megatron", "other_layers").items() if re.fullmatch(pattern, name)
        ]
    experts = integers_of(str(given.get("num_experts", "")).replace(" ", ",")) or ()
    if len(set(experts)) > 1:
        reasons.append(f"unlike numbers of experts in its layers ({min(experts)} to {max(experts)})")
    if given.get("mlp_type") == "residual":
        reasons.append("residual experts (--mlp-type residual)")
    interval = given.get("full_attention_interval")
    if type(interval) is int and interval > 1:
        reasons.append(_LINEAR)
    if given.get("hybrid_layer_pattern") or given.get(
        "hybrid_override_pattern"
    ):  # the string says which layers they are
        reasons = [reason for reason in reasons if reason not in ("Mamba layers", _LINEAR)]
    if _LINEAR in reasons:  # MindSpeed-LLM gives delta-net layers their convolution in Mamba's words
        reasons = [reason for reason in reasons if reason != "Mamba layers"]
    return tuple(dict.fromkeys(reasons))


def reworded(given: Mapping[str, object], rules: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Returns arguments after ``rules``, as ``tables/megatron.yaml`` has them under ``todays``. A text where they ask for a
    switch stays as it is, to be told or refused."""
    switches = {word for rule in rules for word in re.split(r"[ |]", rule.get("if", "")) if word.isidentifier()}
    switches |= {name for rule in rules for name, word in rule.get("put", {}).items() if isinstance(word, bool)}
    texts = {name: value for name, value in given.items() if name in switches and isinstance(literal(value), str)}
    args = {name: value for name, value in given.items() if name not in texts}
    for rule in rules:
        if applies(rule, args):
            put = {
                name: args[word[1:]] if str(word).startswith("$") else word
                for name, word in rule.get("put", {}).items()
            }
            args = {**rule.get("unsaid", {}), **args, **put}
            args = {name: value for name, value in args.items() if name not in rule.get("gone", "").split()}
    return {**args, **texts}


def applies(rule: Mapping[str, Any], args: Mapping[str, object]) -> bool:
    """Returns whether all words of the rule's ``if`` hold (``a|b``: one of the two)."""
    return all(any(_holds(args, each) for each in word.split("|")) for word in rule.get("if", "").split())


def _holds(args: Mapping[str, object], word: str) -> bool:
    """Evaluates ``name``, ``name=word`` (``None``: nothing), ``name#`` (a whole number), ``name?`` (stated) or ``name>1``;
    ``!``: not."""
    if word.startswith("!"):
        return not _holds(args, word[1:])
    name, above, value = word.partition(">")
    if above:
        return size_or_one(args, name) > int(value)
    name, equal, value = word.partition("=")
    if equal:
        return str(args.get(name)) == value
    if word.endswith("?"):
        return args.get(word[:-1]) is not None
    return type(args.get(word[:-1])) is int if word.endswith("#") else bool(args.get(word))


def size_or_one(args: Mapping[str, object], name: str) -> int:
    """Returns the whole number of ``name``, 1 without one."""
    value = args.get(name)
    return value if type(value) is int else 1


#: Lumen's words for several linear layers (lumen/models/megatron.py, ``apply_lora``; the embedding's adapter is left out).
_LINEARS = {
    "attention": ("linear_qkv", "linear_proj"),
    "attention_mlp": BLOCK_LINEARS,
    "all": (*BLOCK_LINEARS, "output_layer"),
}


def in_own_words(args: dict[str, object]) -> dict[str, object]:
    """Returns ``args`` with the arguments of forks in Megatron-LM's words; arguments without such a word stay."""
    args = reworded(args, table("megatron", "forks"))
    if args.pop("moe_tp_extend_ep", None):  # MindSpeed: the tensor ranks hold whole experts, too
        tp, ep = args.get("tensor_model_parallel_size", 1), args.get("expert_model_parallel_size", 1)
        if type(tp) is int and type(ep) is int:
            args |= {"expert_model_parallel_size": tp * ep, "expert_tensor_parallel_size": 1}
    args |= _adapters(args)
    return _stages(args)


def _adapters(args: dict[str, object]) -> dict[str, object]:
    """Moves the words of adapters out of ``args`` into ``lora``: MindSpeed-LLM has no adapters without modules
    (features_manager/finetune/lora.py), Lumen none of rank 0 (lumen/models/megatron.py)."""
    modules = args.pop("lora_target_modules", None)
    rank = next((args.pop(name) for name in ("lora_rank", "lora_r", "lora_dim") if name in args), 16)
    if not modules or rank == 0:
        return {}
    names = modules if isinstance(modules, (list, tuple)) else str(modules).split()
    return {"lora": {"dim": rank, "target_modules": [each for name in names for each in _LINEARS.get(name, (name,))]}}


def _stages(args: dict[str, object]) -> dict[str, object]:
    """Returns ``args`` with a fork's layout of virtual stages, and ``chunk`` recomputation, in Megatron-LM's words."""
    layers, pp = args.get("num_layers"), args.get("pipeline_model_parallel_size", 1)
    if type(layers) is not int or type(pp) is not int or not (0 < layers <= _MOST_LAYERS and 0 < pp <= layers):
        return args
    counts = _no_ops(args, layers, pp) or _listed(args, layers, pp) or _padded(args, layers, pp)
    if counts is None:
        if args.get("recompute_method") == "chunk":
            return args | _replayed(args, _even(args, layers, pp), pp)
        return args
    if args.get("recompute_method") == "chunk":
        args |= _replayed(args, counts, pp)
    replayed = list(integers_of(args.get("custom_pipeline_recompute_layers")) or ())
    if len(replayed) == len(counts) and all(map(int.__le__, replayed, counts)):
        # LoongForge's --custom-pipeline-recompute-layers: the first n layers of each stage
        starts = [sum(counts[:stage]) for stage in range(len(counts))]
        chosen = [at + each for at, most in zip(starts, replayed, strict=True) for each in range(most)]
        every: dict[str, object] = {"recompute_method": "uniform", "recompute_num_layers": 1}
        args |= every if replayed == counts else {**every, "recompute_layer_ids": chosen}
        args.pop("custom_pipeline_recompute_layers")
    mtp = args.get("mtp_num_layers")
    stages = ["t" * count for count in counts]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * (mtp if type(mtp) is int and 0 < mtp < 100 else 0) + "L"
    gone = ("noop_layers", *_LISTED, "allow_padding_num_layers", "num_layers_per_virtual_pipeline_stage")
    changed = {name: value for name, value in args.items() if name not in gone}
    changed["num_layers"] = sum(counts)
    if len(counts) > pp:
        changed["num_virtual_stages_per_pipeline_rank"] = len(counts) // pp
    if pp > 1:
        changed["pipeline_model_parallel_layout"] = "|".join(stages)
    return changed


def _even(args: Mapping[str, object], layers: int, pp: int) -> list[int]:
    each, chunks = args.get("num_layers_per_virtual_pipeline_stage"), args.get("num_virtual_stages_per_pipeline_rank")
    several = chunks if type(chunks) is int and 0 < pp * chunks <= layers else 1
    each = each if type(each) is int and each > 0 else layers // (pp * several)
    stages = layers // each
    return [each] * stages if stages * each == layers and stages % pp == 0 else []


def _no_ops(args: dict[str, object], layers: int, pp: int) -> list[int] | None:
    """Returns the layers of each stage under MindSpeed's ``--noop-layers``: places that count as layers and are empty."""
    places = integers_of(args.get("noop_layers"))
    stages = _even(args, layers, pp)
    if not places or not stages or not all(0 <= place < layers for place in places):
        return None
    empty = set(places)
    kinds = args.get("moe_layer_freq")
    if isinstance(kinds, (list, tuple)) and len(kinds) == layers:
        args["moe_layer_freq"] = [kind for place, kind in enumerate(kinds) if place not in empty]
    each = stages[0]
    return [sum(place not in empty for place in range(at, at + each)) for at in range(0, layers, each)]


def _listed(args: Mapping[str, object], layers: int, pp: int) -> list[int] | None:
    """Returns the layers of each pipeline stage that a list states; None where stages are cut into virtual ones."""
    counts = list(next((counts for name in _LISTED if (counts := integers_of(args.get(name)))), ()))
    several = "num_virtual_stages_per_pipeline_rank" in args or "num_layers_per_virtual_pipeline_stage" in args
    return counts if len(counts) == pp and sum(counts) == layers and not several else None


def _padded(args: Mapping[str, object], layers: int, pp: int) -> list[int] | None:
    """Returns the stages of zero-bubble's ``--allow-padding-num-layers``: the last lacks a layer, then the first, and on.

    sail-sg/zero-bubble-pipeline-parallelism megatron/legacy/model/transformer.py ``get_offset``.
    """
    missing = -layers % pp
    if not args.get("allow_padding_num_layers") or not missing:
        return None
    counts = _even(args, layers + missing, pp)
    for place in range(-1, missing - 1):
        if counts:
            counts[place] -= 1
    return counts or None


def _replayed(args: Mapping[str, object], counts: list[int], pp: int) -> dict[str, object]:
    """Returns zero-bubble's ``chunk``: all layers of the first ``recompute_num_layers`` model chunks of each rank.

    sail-sg/zero-bubble-pipeline-parallelism megatron/core/pipeline_parallel/zerobubble/scheduler.
    """
    chunks = args.get("recompute_num_layers")
    recompute: dict[str, object] = {"recompute_method": "uniform", "recompute_num_layers": 1}
    if type(chunks) is int and 0 < chunks * pp < len(counts):
        recompute["recompute_layer_ids"] = list(range(sum(counts[: chunks * pp])))
    return recompute
