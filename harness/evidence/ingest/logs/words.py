"""Other frameworks' names for what Megatron-LM's arguments say (the left name is the framework's own)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping


def same(*names: str) -> dict[str, str]:
    """Names that a framework and Megatron-LM have both."""
    return {name: name for name in names}


def one_of(names: Iterable[str]) -> str:
    """A regular expression, one group, of any of these names; of two that begin alike the longer."""
    return f"({'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})"


_SAME = same(
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels"),
    *("seq_length", "micro_batch_size", "global_batch_size", "tensor_model_parallel_size", "vocab_size"),
    *("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "context_parallel_size"),
    *("expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel", "make_vocab_size_divisible_by"),
    *("recompute_granularity", "recompute_method", "recompute_num_layers", "use_distributed_optimizer", "world_size"),
    *("normalization", "position_embedding_type", "add_bias_linear", "moe_router_topk"),
    *("moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "moe_token_dispatcher_type", "moe_grouped_gemm"),
    *(
        "overlap_grad_reduce",
        "overlap_param_gather",
        "data_parallel_size",
        "bf16",
        "fp16",
        "fp8",
        "fp8_recipe",
        "share_embeddings_and_output_weights",
    ),
)

#: Megatron-Core's configuration fields as Megatron-Bridge and NeMo 2 print them.
MEGATRON_WORDS: Mapping[str, str] = {**_SAME, "num_moe_experts": "num_experts", "gated_linear_unit": "swiglu"}
#: torchtitan's job configuration (torchtitan/config/job_config.py; section prefixes are stripped where unambiguous).
TORCHTITAN_WORDS: Mapping[str, str] = {
    "training.local_batch_size": "micro_batch_size",
    "training.batch_size": "micro_batch_size",
    "training.global_batch_size": "global_batch_size",
    "training.seq_len": "seq_length",
    "parallelism.tensor_parallel_degree": "tensor_model_parallel_size",
    "parallelism.pipeline_parallel_degree": "pipeline_model_parallel_size",
    "parallelism.context_parallel_degree": "context_parallel_size",
    "parallelism.expert_parallel_degree": "expert_model_parallel_size",
    "parallelism.data_parallel_shard_degree": "data_parallel_shard_degree",
    "parallelism.data_parallel_replicate_degree": "data_parallel_replicate_degree",
    "activation_checkpoint.mode": "activation_checkpoint_mode",
    "model.name": "model_name",
    "model.flavor": "model_flavor",
}
#: DeepSpeed's configuration as ``config.py`` prints it.
DEEPSPEED_WORDS: Mapping[str, str] = {
    "train_batch_size": "global_batch_size",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    **same("world_size"),
    "zero_optimization_stage": "zero_stage",
    "bfloat16_enabled": "bf16",
    "fp16_enabled": "fp16",
}
#: GPT-NeoX' arguments that say how much work a step is; :mod:`projector.intake.gpt_neox` reads all.
NEOX_WORDS: Mapping[str, str] = {
    "global_num_gpus": "world_size",
    "batch_size": "micro_batch_size",
    "train_batch_size": "global_batch_size",
    "model_parallel_size": "tensor_model_parallel_size",
    "pipe_parallel_size": "pipeline_model_parallel_size",
    **same("seq_length"),
}
#: Keys of MLPerf Training's logging (mlcommons/logging, constants.py) that state the configuration.
MLLOG_WORDS: Mapping[str, str] = {
    **same("global_batch_size", "micro_batch_size", "gradient_accumulation_steps", "lora_rank"),
    "max_sequence_length": "seq_length",
    "tensor_parallelism": "tensor_model_parallel_size",
    "pipeline_parallelism": "pipeline_model_parallel_size",
    "context_parallelism": "context_parallel_size",
    "expert_parallelism": "expert_model_parallel_size",
    "lowest_numerical_precision_linear": "precision",
}
