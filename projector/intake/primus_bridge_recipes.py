"""What the recipe functions of Megatron-Bridge state where an experiment is silent, as Megatron-LM's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from projector.workload.model import Model

_FULL: Mapping[str, object] = MappingProxyType(
    {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
)
#: Of every function: training/config.py, recipes/utils/optimizer_utils.py, models/gpt_provider.py.
COMMON: Mapping[str, object] = MappingProxyType(
    {
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "context_parallel_size": 1,
        "expert_model_parallel_size": 1,
        "sequence_parallel": False,
        "micro_batch_size": 1,
        "use_distributed_optimizer": True,
        "recompute_granularity": "none",
        "tp_comm_overlap": False,
        "cross_entropy_loss_fusion": True,
        "cross_entropy_fusion_impl": "te",
        "moe_router_force_load_balancing": False,
        "check_for_nan_in_loss_and_grad": True,
    }
)
_OVERLAPPED: Mapping[str, object] = MappingProxyType(
    {"overlap_grad_reduce": True, "overlap_param_gather": True, "manual_gc": True, "grad_reduce_in_bf16": False}
)
_ALONE: Mapping[str, object] = MappingProxyType(
    {"overlap_grad_reduce": False, "overlap_param_gather": False, "manual_gc": False, "grad_reduce_in_bf16": False}
)


def _sizes(tp: int, pp: int = 1, ep: int = 1, cp: int = 1, sp: bool = False) -> dict[str, object]:
    return {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "expert_model_parallel_size": ep,
        "context_parallel_size": cp,
        "sequence_parallel": sp,
    }


_LONG = {"seq_length": 131072}
_BUFFERS = {"tp_comm_overlap": True}
_SPLIT = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
#: ``<model>_pretrain_config``.
_PRETRAIN: Mapping[str, Mapping[str, object]] = {
    "qwen3_4b": _sizes(2),
    "qwen3_8b": _sizes(4),
    "qwen3_14b": _sizes(8),
    "qwen3_32b": {**_sizes(8, 2), **_FULL},
    "qwen3_30b_a3b": {**_sizes(4, 2, ep=4, sp=True), **_FULL},
    "qwen3_235b_a22b": {**_sizes(4, 16, ep=8, cp=2, sp=True), **_SPLIT, "micro_batch_size": 1},
    "llama3_8b": _sizes(1, cp=2),
    "llama3.1_8b": _sizes(1, cp=2),
    "llama3_70b": {**_sizes(4, 4, cp=2, sp=True), **_BUFFERS, "virtual_pipeline_model_parallel_size": 5},
    "llama3.1_70b": {**_sizes(4, 4, cp=2, sp=True), **_BUFFERS, "virtual_pipeline_model_parallel_size": 5, **_LONG},
    "llama3.1_405b": {
        **_sizes(8, 8, cp=4, sp=True),
        **_BUFFERS,
        **_SPLIT,
        "virtual_pipeline_model_parallel_size": 2,
        **_LONG,
    },
}
#: ``<model>_finetune_config`` of all weights, then with adapters.
_FINETUNE: Mapping[str, tuple[Mapping[str, object], Mapping[str, object]]] = {
    "qwen3_0.6b": (_sizes(1), _sizes(1)),
    "qwen3_1.7b": (_sizes(1), _sizes(1)),
    "qwen3_4b": (_sizes(2), _sizes(1)),
    "qwen3_8b": (_sizes(4), _sizes(1)),
    "qwen3_14b": (_sizes(8), _sizes(1)),
    "qwen3_32b": ({**_sizes(8, 2), **_FULL}, {**_sizes(1), **_FULL}),
    "qwen3_30b_a3b": (_sizes(4, 2, ep=4, sp=True), _sizes(4, ep=4, sp=True)),
    "qwen3_235b_a22b": (_sizes(4, 16, ep=4, sp=True), _sizes(4, 4, ep=4, sp=True)),
    "llama3_8b": (_sizes(2), _sizes(1)),
    "llama3.1_8b": (_sizes(2), _sizes(1)),
    "llama3_70b": (_sizes(8, 4), _sizes(8)),
    "llama3.1_70b": (_sizes(8, 4), _sizes(8)),
    "llama3.1_405b": ({**_sizes(8, 16, sp=True), **_SPLIT}, {**_sizes(4, 8, sp=True), **_SPLIT}),
}
#: Families whose functions set the parallel sizes after the arguments were read.
_FIXED = ("llama3", "qwen3_30b_a3b", "qwen3_235b_a22b")


def defaults_of(model: Model, tuned: bool, adapters: bool, packed: bool) -> dict[str, object]:
    """Arguments of the recipe function for ``model``. ``tuned``: of fine-tuning, ``adapters``: by LoRA."""
    llama, experts = model.name.startswith("llama"), model.moe is not None
    args = {**COMMON, "moe_token_dispatcher_type": "alltoall"} if experts else dict(COMMON)
    if experts:
        args |= {"moe_grouped_gemm": True, "moe_permute_fusion": True, "expert_tensor_parallel_size": 1}
    if not tuned:
        args |= {**_OVERLAPPED, "micro_batch_size": 1 if llama else 2, "global_batch_size": 512 if llama else 32}
        return {**args, "seq_length": 8192 if llama else 4096, **_PRETRAIN.get(model.name, {})}
    args |= _OVERLAPPED if experts else {**_ALONE, "manual_gc": llama}
    args |= {"global_batch_size": 32 if experts else 8 if packed else 128}
    args |= {"seq_length": (2048 if packed else 4096) if experts else 4096 if packed and llama else 2048}
    if llama and adapters:
        args |= {"use_distributed_optimizer": False, "cross_entropy_loss_fusion": False}
    return args | dict(_FINETUNE.get(model.name, ({}, {}))[adapters])


def own_sizes(model: str, adapters: bool) -> Mapping[str, object]:
    """The sizes that the fine-tuning function of ``model`` sets whatever it is given; empty where it listens."""
    if not model.startswith(_FIXED) or model not in _FINETUNE:
        return {}
    sizes = _FINETUNE[model][adapters]
    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")
    return {name: sizes[name] for name in names}
