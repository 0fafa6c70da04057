"""The recipe of a record: arguments first, then the texts, then the sizes of its groups."""

from __future__ import annotations

import re
from dataclasses import fields

from harness.contracts.runs import Stack
from harness.evidence.ingest.arguments import arguments
from harness.evidence.ingest.moe_words import moe_words
from harness.evidence.ingest.parallel import Sizes, sizes
from harness.evidence.ingest.precision import precision_of
from harness.evidence.ingest.recipe_words import Words, recompute, schedule, sharding
from harness.evidence.ingest.record import Record, boolean, integer
from projector import frameworks
from projector.workload.lora import LoRA
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.schema import parse_recipe, recipe_to_mapping

_RECIPE_FIELDS = frozenset(field.name for field in fields(Recipe))


def recipe_words(record: Record, stack: Stack) -> dict[str, object]:
    """Recipe fields from arguments first, then from texts that fill what is left open."""
    found = arguments(record)
    per_op = "op_sac" if stack.framework.startswith("torchtitan") else ""
    zero = record.text("zero")
    texts: list[Words] = []
    if text := record.text("recompute"):
        texts.append(recompute(text, per_op))
    if zero:
        texts.append(sharding(zero))
    if text := record.text("schedule"):
        texts.append(schedule(text))
    texts.append((_data_parallel(record), "", ""))
    texts.append((moe_words(record), "", ""))
    for fields_of, assumed, refused in texts:
        found = {**fields_of, **found} if "recompute_granularity" not in fields_of else {**found, **fields_of}
        if assumed:
            record.assume(assumed)
        if refused:
            record.refuse(refused)
    return found


def _data_parallel(record: Record) -> dict[str, object]:
    """Sharding from switches: Megatron's distributed optimizer or FSDP, MaxText and torchtitan shard counts."""
    if boolean(record.setting("use_megatron_fsdp")) or record.setting("data_parallel_sharding_strategy"):
        strategy = str(record.setting("data_parallel_sharding_strategy") or "optim_grads_params")
        return {"data_parallel_sharding": strategy}
    group = integer(record.get("other.fsdp_shard_group", "other.dp_shard")) or 0
    shards = record.get("fsdp", "other.fsdp")
    if group > 1:
        return {"data_parallel_sharding": "optim_grads_params", "data_parallel_shard_size": group}
    if (boolean(shards) is True and not isinstance(shards, int)) or shards is True or (integer(shards) or 0) > 1:
        return {"data_parallel_sharding": "optim_grads_params"}
    optimizer = record.get("dist_opt", "other.use_distributed_optimizer", "other.args.use_distributed_optimizer")
    optimizer = optimizer if optimizer is not None else record.get("other.config_exports.USE_DIST_OPTIMIZER")
    if boolean(optimizer):
        return {"data_parallel_sharding": "optim"}
    return {}


def group_sizes(record: Record, model: Model | None, stack: Stack, words: dict[str, object]) -> Sizes:
    hint = words.pop("vpp", None)
    layout = words.get("pipeline_model_parallel_layout")
    pp = integer(record.values.get("pp"))
    if hint is None and isinstance(layout, str) and pp and "|" in layout:
        chunks = _chunks(layout)
        hint = chunks // pp if chunks % pp == 0 else None
        stated = integer(record.values.get("vpp"))
        if hint and stated and stated != hint:
            record.doubts.append(f"vpp={stated}, but the layout has {chunks} chunks: {hint} a stage; layout dropped")
            words.pop("pipeline_model_parallel_layout")
    moe = model is not None and model.moe is not None
    return sizes(
        record, moe, model.num_layers if model else None, stack.framework, hint if isinstance(hint, int) else None
    )


def _chunks(layout: str) -> int:
    """Chunks of a Megatron layout string, repetitions ``(…|)*14`` written out."""
    text = layout
    while found := re.search(r"\(([^()]*)\)\*(\d+)", text):
        text = text[: found.start()] + found[1] * int(found[2]) + text[found.end() :]
    return text.rstrip("|").count("|") + 1


def recipe_of(record: Record, gpu: str, model: Model | None, size: Sizes, words: dict[str, object]) -> Recipe | None:
    """The recipe, or None where the record does not state enough of it (each gap is refused by name)."""
    kind = precision_of(record, gpu, words)
    lora = _lora(record)
    if kind is None or not size.complete:
        return None
    stated = {name: value for name, value in words.items() if name in _RECIPE_FIELDS}
    if model is None or model.moe is None:
        stated = {name: value for name, value in stated.items() if "moe" not in name and name != "sync_free_stage"}
    if size.pp == 1:
        for name in ("pipeline_schedule", "pipeline_model_parallel_layout"):
            stated.pop(name, None)
    if size.shard is not None:
        stated.setdefault("data_parallel_shard_size", size.shard)
    stated |= {**size.stated, "etp": size.etp, "precision": kind, "lora": lora}
    recipe, wrong = parse_recipe(recipe_to_mapping(Recipe(**stated)), record.where, "")  # type: ignore[arg-type]
    for problem in wrong:
        record.refuse(f"{problem.key}: {problem.found!r} is not modelled")
    return recipe


#: Linears with adapters where a source does not say, by framework (NVIDIA-NeMo/Automodel examples: match_all_linear);
#: elsewhere Megatron-Bridge's.
_LORA_TARGETS = {"automodel": ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")}


def _lora(record: Record) -> LoRA | None:
    text = record.text("model").lower()
    flag = boolean(record.get("other.lora"))
    phase = record.text("other.phase", "other.task").lower()
    if not (flag or "lora" in text or phase == "lora"):
        return None
    rank = integer(record.get("other.lora_dim", "other.lora_rank"))
    if rank is None and (found := re.search(r"rank (\d+)", text)):
        rank = int(found[1])
    targets = record.get("other.lora_target_modules", "other.lora_targets", "other.targets")
    if isinstance(targets, str):
        named = re.findall(r"\b(?:qkv|o_proj|proj|fc1|fc2)(?=_proj\b|\b)", targets)
        targets = [f"linear_{word.removeprefix('o_')}" for word in named]
    if rank is None:
        rank = 16
        record.assume("lora rank=16 (not stated)")
    if isinstance(targets, list) and targets:
        return LoRA(dim=rank, targets=tuple(str(item) for item in targets))
    usual = _LORA_TARGETS.get(frameworks.find(record.text("framework")) or "", LoRA(dim=rank).targets)
    record.assume(f"lora targets={', '.join(usual)} (not stated)")
    return LoRA(dim=rank, targets=usual)


def partial_recipe(size: Sizes, words: dict[str, object]) -> dict[str, object]:
    """What an incomplete row does state of its recipe, so that nothing of it is lost."""
    return size.stated | {name: _plain(value) for name, value in words.items()}


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
