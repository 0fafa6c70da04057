"""The recipe of a record: what its words and arguments say, then the sizes of its groups."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields

from harness.contracts.runs import Stack
from harness.evidence.ingest.parallel import Sizes, sizes
from harness.evidence.ingest.record import Record, integer
from harness.evidence.ingest.settings import settings_of
from projector import frameworks
from projector.hardware import catalogue
from projector.intake.dialect import BUNDLES, dialect
from projector.workload.lora import BLOCK_LINEARS, LoRA
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.schema import parse_recipe
from projector.workload.structure import to_mapping

_RECIPE_FIELDS = frozenset(field.name for field in fields(Recipe))


def recipe_words(record: Record, stack: Stack, gpu: str) -> dict[str, object]:
    """Returns the stated recipe fields in the words of ``Recipe``; sizes of groups stay in the record's keys."""
    words = settings_of(record, gpu)
    _adapt_recompute(record, stack, words)
    if words.get("data_parallel_shard_size") == 1:
        words |= {"data_parallel_sharding": "no_shard", "data_parallel_shard_size": None}
    if (version := re.fullmatch(r"v(\d)", str(words.get("moe_dispatch_scatter_adds")))) is not None:
        # the third version of that code is said to be scatter-free, each earlier one has a gather more to undo
        words["moe_dispatch_scatter_adds"] = 3 - int(version[1])
    alone = words.pop("processes", None) == "one_gpu"
    if words.get("moe_all_to_all_kernel") == "one_shot" and (alone or "1-gpu" in record.text("other.launcher").lower()):
        # the kernel copies between GPUs of one process; with one GPU a process the exchange falls back on the library
        words.pop("moe_all_to_all_kernel")
    if words.pop("graphs", None) is False:
        words["cuda_graph_scope"] = ()
    sms = words.pop("hybridep_num_sms", None)
    if words.get("moe_flex_dispatcher_backend") == "hybridep" and sms is not None:
        words["moe_deepep_num_sms"] = sms
    held, mixed = words.pop("held", None), words.pop("mixed", None)
    if held and mixed is False:  # nothing casts
        words |= BUNDLES["bf16 alone"]
    elif held and mixed is None:
        record.leave("torch_dtype", f"{held}, without mixed_precision")
    default = frameworks.load(stack.framework).defaults if stack.framework in frameworks.names() else {}
    if words.pop("grouped", None) and default.get("moe_grouped_gemm") == "loop":
        words.setdefault("moe_grouped_gemm", "fused")
    return {name: value for name, value in words.items() if value is not None}


def _adapt_recompute(record: Record, stack: Stack, words: dict[str, object]) -> None:
    """Turns layers, modules and policies of recompute into what the recipe's fields hold."""
    modules = words.get("recompute_modules")
    if isinstance(modules, tuple) and "op_sac" in modules:
        if stack.framework.startswith("torchtitan"):
            record.assume("recompute_modules=[op_sac] (stands for the per-operator policy of the framework)")
        else:
            record.refuse(f"per-operator recompute is not modelled: {record.text('recompute').lower()!r}")
            words.pop("recompute_modules")
            words.pop("recompute_granularity", None)
    if isinstance(ids := words.get("recompute_layer_ids"), (str, int)):
        words["recompute_layer_ids"] = _layer_ids(str(ids))
    if isinstance(policy := words.get("recompute_saved"), str):
        names = dialect("maxtext").tables["policies"].get(policy)
        if names is None:
            record.refuse(f"recompute policy {record.text('recompute')!r} has no equivalent here")
        words["recompute_saved"] = names and tuple(names)
    count = words.get("recompute_num_layers")
    if count == 0 and words.get("recompute_method") == "block":
        words["recompute_granularity"] = "none"
    if words.get("recompute_granularity") == "none" or count == 0:
        words.pop("recompute_num_layers", None)
        if words.get("recompute_granularity") == "none":
            words.pop("recompute_method", None)


def _layer_ids(text: str) -> tuple[int, ...]:
    ids: list[int] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, _, last = part.partition("-")
        ids += range(int(first), int(last or first) + 1)
    return tuple(ids)


def group_sizes(record: Record, model: Model | None, stack: Stack, words: dict[str, object]) -> Sizes:
    hint = words.pop("vpp", None)
    layout = words.get("pipeline_model_parallel_layout")
    pp = integer(record.get("pp"))
    if hint is None and isinstance(layout, str) and pp and "|" in layout:
        # Chunks of a Megatron layout string, repetitions ``(…|)*14`` written out
        text = layout
        while match := re.search(r"\(([^()]*)\)\*(\d+)", text):
            text = text[: match.start()] + match[1] * int(match[2]) + text[match.end() :]
        chunks = text.rstrip("|").count("|") + 1
        hint = chunks // pp if chunks % pp == 0 else None
        stated = integer(record.get("vpp"))
        if hint and stated and stated != hint:
            record.doubts.append(f"vpp={stated}, but the layout has {chunks} chunks: {hint} a stage; layout dropped")
            words.pop("pipeline_model_parallel_layout")
    moe = model is not None and model.moe is not None
    return sizes(
        record, moe, model.num_layers if model else None, stack.framework, hint if isinstance(hint, int) else None
    )


def recipe_of(record: Record, gpu: str, model: Model | None, size: Sizes, words: dict[str, object]) -> Recipe | None:
    """Returns the recipe; None where the record does not state enough of it (each gap is refused by name)."""
    kind = _precision(record, gpu, words)
    lora = _lora(record, words)
    _set_shard_group(record, gpu, size, words)
    _set_offloaded_layers(record, model, size, words)
    if words.pop("flash_switch", None):
        if model is not None and model.position_embedding_type == "alibi":
            record.leave("flash_attn", "true, beside ALiBi")  # a framework that cannot leaves its switch without effect
        else:
            words.setdefault("attention_backend", "flash")
    if kind is None or not size.complete:
        return None
    stated = {name: value for name, value in words.items() if name in _RECIPE_FIELDS}
    if model is None or model.moe is None:
        stated = {name: value for name, value in stated.items() if "moe" not in name and name != "sync_free_stage"}
    if size.pp == 1:
        for name in ("pipeline_schedule", "pipeline_model_parallel_layout"):
            stated.pop(name, None)
    stated |= {**size.stated, "etp": size.etp, "precision": kind, "lora": lora}
    recipe, wrong = parse_recipe(to_mapping(Recipe(**stated)), record.where, "")  # type: ignore[arg-type]
    for problem in wrong:
        record.refuse(f"{problem.key}: {problem.found!r} is not modelled")
    return recipe


# What a framework's tables leave unsaid: BigScience's chronicles name bf16 where a run used DeepSpeed's new BF16_Optimizer.
_UNSAID = {"megatron-deepspeed": "fp16"}


def _precision(record: Record, gpu: str, words: dict[str, object]) -> str | None:
    """Returns the compute type: as stated, else the only one the GPU allows; None (and refused) where neither tells."""
    name = words.pop("precision", None)
    if words.pop("either_half", None):
        record.assume("precision=fp16 (source says fp16 or bf16; both run at one rate)")
    if name is None:
        return None if record.text("precision") else _assumed_precision(record, gpu)
    if name == "fp8" and words.get("fp8_recipe") == "mxfp8":
        name = "mxfp8"
    if name != "fp8" and (name != "mxfp8" or words.get("fp8_recipe") == "mxfp8"):
        words.pop("fp8_recipe", None)  # 16-bit runs have no scaling recipe, the others one only
    record.map("precision", name, record.text("precision"))
    return str(name)


def _assumed_precision(record: Record, gpu: str) -> str | None:
    """Assumes 16-bit mixed precision on a device without 8-bit matrix units: bf16, or fp16 on one without bf16."""
    candidates = record.get("other.precision_candidates")
    if isinstance(candidates, list) and candidates:
        record.refuse("precision not stated (" + " or ".join(str(item) for item in candidates) + ")")
        return None
    peaks = catalogue.gpu(gpu).peak if catalogue.knows_gpu(gpu) else {}
    if peaks and not any("fp8" in name for name in peaks):
        usual = _UNSAID.get(frameworks.find(record.text("framework")) or "")
        kind = usual or ("bf16" if "bf16" in peaks else "fp16")
        why = "tables of this framework name bf16 where it is used" if usual else "16-bit types run at one rate"
        record.assume(f"precision={kind} (not stated; the GPU has no 8-bit matrix rate and {why})")
        return kind
    record.refuse("precision not stated")
    return None


def _set_shard_group(record: Record, gpu: str, size: Sizes, words: dict[str, object]) -> None:
    """Sets the ranks that share one copy of the weights; ``node`` (HSDP): the data-parallel ranks of one node."""
    if size.shard is not None:
        words["data_parallel_shard_size"] = size.shard
    if words.get("data_parallel_shard_size") != "node":
        return
    nodes, stated = record.integer("nodes"), record.integer("gpus_per_node", "other.gpus_per_node")
    known = catalogue.default_cluster(gpu).gpus_per_host if catalogue.knows_gpu(gpu) else 8
    node = stated or (size.gpus // nodes if nodes and size.gpus else known)
    ranks = max(1, node // (size.tp or 1))
    words.pop("data_parallel_shard_size")
    if ranks < (size.dp or 1) * (size.cp or 1):
        words["data_parallel_shard_size"] = ranks
        record.assume(f"data_parallel_shard_size={ranks} (the ranks of a node)")


def _set_offloaded_layers(record: Record, model: Model | None, size: Sizes, words: dict[str, object]) -> None:
    """Sets the layers whose activations go to the host; beside recompute and pipeline stages that is not modelled."""
    share = words.pop("offloaded_activations", None)
    if not isinstance(share, (int, float)) or not share or model is None:
        return
    key = "activation_offload_ratio" if share != 1.0 else "cpu_offload"
    if words.get("recompute_granularity") in (None, "none") and size.pp == 1 and share <= 1:
        words["cpu_offloading_num_layers"] = min(max(1, round(share * model.num_layers)), model.num_layers - 1)
        record.map("cpu_offloading_num_layers", words["cpu_offloading_num_layers"], key)
    else:
        record.leave(key, f"activations on the host ({share:g} of them)")


#: Linears with adapters where a source does not say, by framework (NVIDIA-NeMo/Automodel examples: match_all_linear);
#: elsewhere Megatron-Bridge's.
_LORA_TARGETS = {"automodel": BLOCK_LINEARS}


def _lora(record: Record, words: dict[str, object]) -> LoRA | None:
    text = record.text("model").lower()
    flag = record.flag("other.lora")
    targets, phase = words.pop("lora_targets", None), words.get("phase")
    rank = record.integer("other.lora_dim", "other.lora_rank", "other.lora_r")
    if not (flag or rank or "lora" in text or phase == "lora"):
        return None
    if rank is None and (match := re.search(r"rank (\d+)", text)):
        rank = int(match[1])
    if rank is None:
        rank = 16
        record.assume("lora rank=16 (not stated)")
    if isinstance(targets, tuple) and targets:
        return LoRA(dim=rank, targets=targets)
    usual = _LORA_TARGETS.get(frameworks.find(record.text("framework")) or "", LoRA(dim=rank).targets)
    record.assume(f"lora targets={', '.join(usual)} (not stated)")
    return LoRA(dim=rank, targets=usual)


def partial_recipe(size: Sizes, words: Mapping[str, object]) -> dict[str, object]:
    """Returns what an incomplete row does state of its recipe, so that nothing of it is lost."""
    return size.stated | {name: list(value) if isinstance(value, tuple) else value for name, value in words.items()}
