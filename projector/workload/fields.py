"""What each recipe field is called, holds and means: the one table from which flags, checks and help are made.

Types and defaults come from :class:`projector.workload.recipe.Recipe`, words from :mod:`projector.workload.vocabulary`.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from projector.workload.recipe import Recipe
from projector.workload.vocabulary import CHOICES

__all__ = ["ESSENTIAL", "Field", "field_of", "fields"]


@dataclass(frozen=True, kw_only=True)
class Field:
    """One recipe field, or a part of one (``lora.dim``).

    ``path``: its place in a recipe mapping; ``names``: what it is called, Megatron-LM's argument first; ``kind``: the type
    of one value; ``many``: a list of them; ``choices``: the words it may hold.
    """

    path: tuple[str, ...]
    names: tuple[str, ...]
    kind: type
    many: bool = False
    choices: tuple[str, ...] = ()
    help: str = ""

    @property
    def key(self) -> str:
        return ".".join(self.path)

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        if self.choices:
            return ("words of " if self.many else "one of ") + ", ".join(self.choices)
        one, several = _WORDS[self.kind]
        return several if self.many else one


_WORDS = {
    int: ("a whole number", "whole numbers separated by commas"),
    float: ("a number", "numbers separated by commas"),
    bool: ("true or false", "true or false"),
    str: ("a word", "words separated by commas"),
}

#: Further names: Megatron-LM's arguments for the short forms of the literature (megatron/training/arguments.py), Primus'.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "tp": ("tensor_model_parallel_size", "tp"),
    "pp": ("pipeline_model_parallel_size", "pp"),
    "vpp": ("num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size", "vpp"),
    "cp": ("context_parallel_size", "cp"),
    "ep": ("expert_model_parallel_size", "target_ep_size", "ep"),
    "etp": ("expert_tensor_parallel_size", "etp"),
    "micro_batch_size": ("micro_batch_size", "mbs"),
    "global_batch_size": ("global_batch_size", "gbs"),
}

#: Fields that most runs state, in the order in which help shows them.
ESSENTIAL = (
    *("micro_batch_size", "global_batch_size", "seq_length", "precision"),
    *("tp", "pp", "vpp", "cp", "ep", "etp"),
    *("data_parallel_sharding", "sequence_parallel", "recompute_granularity", "recompute_num_layers"),
)

_HELP: Mapping[str, str] = {
    "micro_batch_size": "samples of one forward pass on a data-parallel rank",
    "global_batch_size": "samples of one step",
    "seq_length": "tokens of a sample",
    "tp": "tensor-parallel size",
    "pp": "pipeline-parallel size",
    "vpp": "model chunks on a pipeline rank",
    "cp": "context-parallel size",
    "ep": "expert-parallel size",
    "etp": "tensor-parallel size of the experts",
    "precision": "compute type of the linear layers",
    "fp8_recipe": "scaling of FP8",
    "fp8_param_gather": "weights are gathered in FP8",
    "fp8_dot_product_attention": "attention in FP8",
    "first_last_layers_bf16": "the first and the last layer stay in BF16",
    "sequence_parallel": "norms and dropout split over the tensor-parallel group",
    "cp_comm_type": "how context-parallel ranks exchange keys and values",
    "tp_comm_overlap": "tensor-parallel communication behind the products (userbuffers)",
    "pipeline_schedule": "pipeline schedule",
    "pipeline_model_parallel_layout": "what stands on each stage, as Megatron-LM writes it",
    "decoder_first_pipeline_num_layers": "layers of the first stage",
    "decoder_last_pipeline_num_layers": "layers of the last stage",
    "account_for_embedding_in_pipeline_split": "the embedding counts as a layer",
    "account_for_loss_in_pipeline_split": "the loss counts as a layer",
    "allow_uneven_pipeline_split": "stages may differ by one layer",
    "pipeline_remainder": "which stages get the layers that do not divide",
    "microbatch_group_size_per_vp_stage": "micro-batches that one virtual stage takes in a row",
    "overlap_p2p_comm": "messages between stages beside the compute",
    "defer_embedding_wgrad_compute": "weight gradients of the embedding at the end of the pipeline",
    "data_parallel_sharding": "what data-parallel ranks share: nothing, ZeRO-1, ZeRO-2, ZeRO-3 (FSDP)",
    "data_parallel_shard_size": "ranks that share one copy (HSDP)",
    "fsdp_reshard_after_forward": "weights are given back between forward and backward",
    "overlap_grad_reduce": "gradients are exchanged beside the backward",
    "overlap_param_gather": "weights are gathered beside the forward",
    "grad_reduce_in_bf16": "gradients are exchanged in BF16",
    "gradient_accumulation_fusion": "weight gradients are added inside the product",
    "num_distributed_optimizer_instances": "copies of the distributed optimizer",
    "optimizer": "optimizer",
    "use_precision_aware_optimizer": "optimizer states in the types named below",
    "main_grads_dtype": "type of the main gradients",
    "main_params_dtype": "type of the main parameters",
    "exp_avg_dtype": "type of the first moment",
    "exp_avg_sq_dtype": "type of the second moment",
    "optimizer_cpu_offload": "optimizer states and their update on the host",
    "offload_optimizer_states": "optimizer states on the host between steps",
    "optimizer_offload_fraction": "share of the optimizer on the host",
    "overlap_cpu_optimizer_d2h_h2d": "copies of an offloaded optimizer beside its arithmetic",
    "muon_num_ns_steps": "Newton-Schulz iterations of Muon",
    "muon_tp_mode": "how Muon works under tensor parallelism",
    "lora.dim": "rank of the adapters",
    "lora.targets": "linear layers that have adapters",
    "recompute_granularity": "what is computed again in the backward",
    "recompute_method": "which layers: uniform groups of them, or the first ones of a stage (block)",
    "recompute_num_layers": "layers of a group (uniform), or of a stage (block)",
    "recompute_modules": "modules, with --recompute-granularity selective",
    "recompute_saved": "activations that full recompute keeps (MaxText)",
    "recompute_layer_ids": "layers by number, with --recompute-granularity full",
    "cpu_offloading_num_layers": "layers whose activations go to the host",
    "offload_modules": "modules whose saved inputs go to the host",
    "moe_token_dispatcher_type": "how tokens reach their experts",
    "moe_flex_dispatcher_backend": "library of the flex dispatcher",
    "moe_deepep_num_sms": "compute units of DeepEP",
    "moe_grouped_gemm": "kernel of the experts' products",
    "moe_permute_fusion": "one kernel permutes tokens",
    "moe_router_fusion": "one kernel routes",
    "moe_router_dtype": "type of the router",
    "moe_router_force_load_balancing": "tokens are spread evenly, whatever the router says",
    "mock_data": "random tokens in place of a data set",
    "moe_shared_expert_overlap": "the shared expert beside the exchange of tokens",
    "moe_expert_capacity_factor": "tokens of an expert over its even share; the rest is dropped",
    "moe_pad_expert_input_to_capacity": "experts are padded to their capacity",
    "overlap_moe_expert_parallel_comm": "the exchange of tokens behind another micro-batch",
    "delay_wgrad_compute": "weight gradients apart from the rest of the backward",
    "moe_all_to_all_kernel": "kernel of the exchange of tokens",
    "moe_dispatch_scatter_adds": "scatter-additions in the backward of a compiled dispatch",
    "apply_rope_fusion": "one kernel rotates positions",
    "bias_activation_fusion": "one kernel adds the bias and applies the activation",
    "activation_func_fp8_input_store": "input of the activation is kept in FP8",
    "cross_entropy_fusion": "kernel of the loss",
    "attention_backend": "kernel of attention",
    "use_turbo_attention": "attention of Primus-Turbo",
    "use_turbo_gemm": "dense products of Primus-Turbo",
    "use_turbo_rms_norm": "norms of Primus-Turbo",
    "cuda_graph_scope": "what runs as CUDA graphs; none: nothing",
    "torch_compile": "layers are compiled",
    "numa_binding": "processes are bound to the sockets of their GPUs",
    "manual_gc": "garbage is collected at chosen steps",
    "make_vocab_size_divisible_by": "the vocabulary is padded to a multiple of this",
    "check_for_nan_in_loss_and_grad": "loss and gradients are checked each step",
    "create_attention_mask_in_dataloader": "the data loader sends a mask",
    "device_memory_fraction": "share of the device that is taken as one pool at start",
    "sync_free_stage": "how much of an MoE layer runs without waiting for the host",
}


@cache
def fields() -> tuple[Field, ...]:
    """Every field of a recipe, in its order; the parts of a nested one each by itself."""
    return tuple(_of(Recipe, ()))


@cache
def _by_name() -> Mapping[str, Field]:
    return {name: field for field in fields() for name in (field.key, *field.names)}


def field_of(name: str) -> Field | None:
    """The field that ``name`` means: its own name, Megatron-LM's argument, with dashes or without."""
    return _by_name().get(name.removeprefix("recipe.").lstrip("-").replace("-", "_"))


def _of(kind: Any, path: tuple[str, ...]) -> Iterator[Field]:
    for name, hint in typing.get_type_hints(kind).items():
        place = (*path, name)
        options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        target = next(option for option in options if option is not type(None))
        if dataclasses.is_dataclass(target):
            yield from _of(target, place)
            continue
        many = typing.get_origin(target) is tuple
        key = ".".join(place)
        yield Field(
            path=place,
            names=_NAMES.get(key, ("_".join(place),)),
            kind=typing.get_args(target)[0] if many else target,
            many=many,
            choices=CHOICES.get(key, ()),
            help=_HELP.get(key, ""),
        )
