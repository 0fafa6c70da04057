"""Describes a workload and a cluster in Calculon's words: its application, execution and system descriptions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from harness.predictors import peer
from projector.hardware.types import Cluster
from projector.io.table import values
from projector.workload.workload import Workload

#: The fields of an execution description, no more and no less (``Llm.Execution.fields``).
EXECUTION_FIELDS = frozenset(
    {
        "num_procs", "tensor_par", "pipeline_par", "data_par", "tensor_par_net", "pipeline_par_net", "data_par_net",
        "batch_size", "microbatch_size", "datatype", "fused_activation", "attention_type", "activation_recompute",
        "pipeline_interleaving", "optimizer_sharding", "tensor_par_comm_type", "tensor_par_overlap", "seq_par_ag_redo",
        "data_par_overlap", "weight_offload", "activations_offload", "optimizer_offload", "training",
    }
)  # fmt: skip

# The GPUs for which Calculon has a file, and the GPU whose efficiencies stand for an architecture.
_ITS_SYSTEMS = {"a100_sxm_80gb": "a100_80g", "h100_sxm": "h100_80g_nvl8"}
_BY_ARCHITECTURE = {"volta": "a100_sxm_80gb", "ampere": "a100_sxm_80gb"}
_NEWEST = "h100_sxm"

_RECOMPUTE = {"none": "none", "attention": "attn_only", "full": "full"}
# Rates that differ by less are the same link in two roundings.
_SAME_RATE = 0.01


def limits(work: Workload) -> Iterator[str]:
    """Yields reasons to refuse, in words that follow "calculon has no"."""
    model, recipe = work.model, work.recipe
    yield from peer.limits(work)
    if model.num_query_groups not in (1, model.num_attention_heads):
        yield "grouped-query attention"
    if recipe.data_parallel_sharding not in (None, "no_shard", "optim"):
        yield f"{recipe.data_parallel_sharding} sharding"
    if model.gated_linear_unit and model.ffn_hidden_size % 2:
        yield "gated linear unit of odd width"


def simplified(work: Workload) -> tuple[str, ...]:
    """Returns how Calculon's inputs differ from the run, for the ``assumed`` column."""
    note = "attention=unfused, step=blocks without embedding and output (calculon)"
    return (note, *peer.plain_mlp(work, "feedforward"))


def application(work: Workload) -> dict[str, int]:
    model = work.model
    gated = model.gated_linear_unit
    told = values(
        model, "hidden=hidden_size attn_heads=num_attention_heads attn_size=kv_channels num_blocks=num_layers"
    )
    wide = model.ffn_hidden_size * 3 // 2 if gated else model.ffn_hidden_size
    return {**told, "feedforward": wide, "seq_size": work.recipe.seq_length}


def execution(work: Workload, gpus_per_node: int) -> dict[str, Any]:
    """Returns the execution description of the recipe. Ranks are laid out tensor, data, pipeline (Megatron-LM's order):
    a group that does not fit into a node is on the second network tier."""
    model, recipe, dp = work.model, work.recipe, work.dp
    recompute = _RECOMPUTE[peer.recompute_mode(work) or "none"]
    sequence_parallel = recipe.tp > 1 and bool(recipe.sequence_parallel)
    return {
        **values(work, "num_procs=gpus tensor_par=recipe.tp pipeline_par=recipe.pp data_par=dp"),
        **values(recipe, "batch_size=global_batch_size microbatch_size=micro_batch_size"),
        "tensor_par_net": int(recipe.tp > gpus_per_node),
        "pipeline_par_net": int(work.gpus > gpus_per_node),
        "data_par_net": int(recipe.tp * dp > gpus_per_node),
        "datatype": "float16",  # its files have no bfloat16, which is as wide and as fast
        "fused_activation": bool(recipe.bias_activation_fusion),
        "attention_type": "multiquery" if model.num_query_groups == 1 < model.num_attention_heads else "multihead",
        "activation_recompute": recompute,
        "pipeline_interleaving": recipe.vpp if recipe.pp > 1 else 1,
        "optimizer_sharding": dp > 1 and recipe.data_parallel_sharding == "optim",
        "tensor_par_comm_type": "rs_ag" if sequence_parallel else "ar",
        "tensor_par_overlap": "ring" if recipe.tp > 1 and recipe.tp_comm_overlap else "none",
        # Megatron-LM keeps the shard and gathers again in backward (arXiv:2205.05198, section 4.2.2)
        "seq_par_ag_redo": sequence_parallel and recompute != "full",
        "data_par_overlap": dp > 1 and bool(recipe.overlap_grad_reduce),
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": bool(recipe.optimizer_cpu_offload),
        "training": True,
    }


def system(cluster: Cluster, its_file: Callable[[str], Mapping[str, Any]]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Returns Calculon's description of the cluster and what was assumed. ``its_file``: returns one of Calculon's system
    descriptions by name."""
    gpu = cluster.gpu
    reference = gpu.name if gpu.name in _ITS_SYSTEMS else _BY_ARCHITECTURE.get(gpu.arch, _NEWEST)
    name = _ITS_SYSTEMS[reference]
    description: dict[str, Any] = copy.deepcopy(dict(its_file(name)))
    notes = []
    if reference != gpu.name:
        _describe(description, cluster, reference)
        notes.append(f"calculon system={gpu.name} from the data sheet, efficiencies of its {name}.json")
    if _networked(description, cluster):
        notes.append("calculon networks=rates and size of the cluster")
    return description, tuple(notes)


def _describe(description: dict[str, Any], cluster: Cluster, reference: str) -> None:
    """Puts in our data sheet's peak and memory, and its vector rate in proportion: Calculon counts another type."""
    from projector.hardware import catalogue

    gpu, lender = cluster.gpu, catalogue.gpu(reference)
    description["matrix"] = {"float16": {**description["matrix"]["float16"], "tflops": gpu.peak_of("bf16") / 1e12}}
    vector = description["vector"]["float16"]
    description["vector"] = {"float16": {**vector, "tflops": vector["tflops"] * gpu.vector_flops / lender.vector_flops}}
    description["mem1"] |= {"GiB": gpu.memory_bytes / peer.GIB, "GBps": gpu.memory_bandwidth / 1e9}


def _networked(description: dict[str, Any], cluster: Cluster) -> bool:
    """Puts in the rates and node size of the cluster where they differ from the file's, and tells whether any did."""
    stated = (
        {"bandwidth": cluster.intra.bandwidth / 1e9, "size": cluster.gpus_per_node},
        {"bandwidth": cluster.inter.bandwidth / 1e9},
    )
    changed = False
    for network, ours in zip(description["networks"], stated, strict=True):
        if any(abs(network[key] / value - 1) > _SAME_RATE for key, value in ours.items()):
            network |= ours
            changed = True
    return changed
