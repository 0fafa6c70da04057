"""The age of a Megatron-LM by its command line: an argument that a release no longer takes is of before it.

The last month that took an argument, and the first of others: NVIDIA/Megatron-LM megatron/arguments.py and
megatron/training/arguments.py, month by month from 2019-03 to 2025-12.
"""

from __future__ import annotations

from collections.abc import Iterable

_LAST = {
    "2020-11": "model_parallel_size batch_size",
    "2021-07": "checkpoint_num_layers use_contiguous_buffers_in_ddp",
    "2021-12": "override_lr_scheduler use_checkpoint_lr_scheduler",
    "2022-04": "checkpoint_activations activations_checkpoint_method activations_checkpoint_num_layers "
    "distribute_checkpointed_activations",
    "2023-07": "fp8_e4m3 fp8_hybrid",
    "2023-08": "DDP_impl data_impl embedding_weights_in_fp32 no_contiguous_buffers_in_local_ddp",
    "2023-09": "mmap_warmup overlap_p2p_communication",
    "2023-10": "no_query_key_layer_scaling",
}
_FIRST = {
    "2022-12": "transformer_impl",
    "2023-01": "use_flash_attn",
    "2023-04": "swiglu",
    "2023-07": "group_query_attention position_embedding_type",
    "2023-09": "overlap_grad_reduce",
    "2023-10": "use_mcore_models context_parallel_size expert_model_parallel_size",
    "2024-12": "attention_backend",
}
_MONTHS_LAST, _MONTHS_FIRST = (
    {name: month for month, names in table.items() for name in names.split()} for table in (_LAST, _FIRST)
)


def era(words: Iterable[str]) -> tuple[str, str]:
    """(the last month of a Megatron-LM that takes all the options in ``words``, the option that says so); empty where none
    does, and where another is newer, as in forks that keep old options."""
    named = [word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")]
    month, name = min(((_MONTHS_LAST[name], name) for name in named if name in _MONTHS_LAST), default=("", ""))
    first = max((_MONTHS_FIRST[name] for name in named if name in _MONTHS_FIRST), default="")
    return (month, f"--{name.replace('_', '-')}") if first <= month else ("", "")
