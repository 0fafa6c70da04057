"""What the recipe functions of Megatron-Bridge set where an experiment or a source is silent, as Megatron-LM's arguments:
``tables/bridge_recipes.yaml`` says it by model, this module by what is trained."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from projector.intake.tables import table
from projector.workload.model import Model

_SIZES = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size"),
    *("context_parallel_size", "sequence_parallel"),
)
#: Families whose functions set the parallel sizes after the arguments were read.
_FIXED = ("llama3", "qwen3_30b_a3b", "qwen3_235b_a22b")


_table = partial(table, "bridge_recipes")


def _args(entry: Mapping[str, Any]) -> dict[str, object]:
    """The arguments of an entry of ``pretrain`` or ``finetune``."""
    sizes = [*entry["sizes"], *(1, 1, 1, 1, False)[len(entry["sizes"]) :]]
    parts = {key: value for part in entry.get("parts", ()) for key, value in _table("parts")[part].items()}
    own = {key: value for key, value in entry.items() if key not in ("sizes", "parts")}
    return {**dict(zip(_SIZES, sizes, strict=True)), **parts, **own}


def defaults_of(model: Model, tuned: bool, adapters: bool, packed: bool) -> dict[str, object]:
    """Arguments of the recipe function for ``model``. ``tuned``: of fine-tuning, ``adapters``: by LoRA."""
    llama, experts = model.name.startswith("llama"), model.moe is not None
    args = {**_table("common"), **(_table("experts") if experts else {})}
    parts = _table("parts")
    if not tuned:
        args |= {
            **parts["overlapped"],
            "micro_batch_size": 1 if llama else 2,
            "global_batch_size": 512 if llama else 32,
        }
        own = _table("pretrain").get(model.name)
        return {**args, "seq_length": 8192 if llama else 4096, **(_args(own) if own else {})}
    args |= parts["overlapped"] if experts else {**parts["alone"], "manual_gc": llama}
    args |= {"global_batch_size": 32 if experts else 8 if packed else 128}
    args |= {"seq_length": (2048 if packed else 4096) if experts else 4096 if packed and llama else 2048}
    if llama and adapters:
        args |= {"use_distributed_optimizer": False, "cross_entropy_loss_fusion": False}
    several = _table("finetune").get(model.name)
    return args | (_args(several[adapters]) if several else {})


def own_sizes(model: str, adapters: bool) -> Mapping[str, object]:
    """The sizes that the fine-tuning function of ``model`` sets whatever it is given; empty where it listens."""
    if not model.startswith(_FIXED) or model not in _table("finetune"):
        return {}
    sizes = _args(_table("finetune")[model][adapters])
    return {name: sizes[name] for name in _SIZES[:3]}


def recompute_of(model: str, release: str) -> Mapping[str, object]:
    """What the pretraining function of ``model`` recomputes in ``release`` (``0.1``); empty where that is not known."""
    if model in _table("pretrain"):
        args = {"recompute_granularity": "none", **_args(_table("pretrain")[model])}
        return {name: value for name, value in args.items() if name.startswith("recompute_")}
    told = {_numbers(first): fields for first, fields in _table("recompute").get(model, {}).items()}
    since = [first for first in told if first <= _numbers(release)]
    return told[max(since)] if since else {}


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def is_hybrid(name: str) -> bool:
    """Whether the model of a function is a stack of Mamba layers, or one of them and attention."""
    return name in _table("hybrids")


def hybrid(name: str, tuned: bool) -> dict[str, object]:
    """Arguments of the function of the hybrid ``name`` where an experiment is silent. ``tuned``: of fine-tuning."""
    own = {**_table("hybrid"), **_table("hybrids")[name]}
    own = {"hybrid_override_pattern": "M" * own["num_layers"], "ffn_hidden_size": own["hidden_size"], **own}
    if name.startswith("zebra"):
        own.pop("hybrid_override_pattern")
    sizes = {"global_batch_size": 128, "micro_batch_size": 4, "seq_length": 2048} if tuned else {}
    return {**_table("common"), "overlap_param_gather": not tuned, **own, **sizes}
