"""Lists the changes that free memory, kind by kind, each kind from the gentlest to the strongest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from projector.dataclass import dataclass
from projector.frameworks.types import Resolved
from projector.hardware.types import Cluster
from projector.layers.mask import mask_bytes
from projector.layers.optimizers import MUON
from projector.workload.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of a configuration: recipe fields set to other values, on ``more_gpus`` times as many GPUs; ``label``:
    its words."""

    kind: str
    label: str
    fields: tuple[tuple[str, Any], ...]
    more_gpus: int = 1

    def on(self, workload: Workload) -> Workload:
        recipe = replace(workload.recipe, **dict(self.fields))
        return replace(workload, recipe=recipe, gpus=workload.gpus * self.more_gpus)

    def part_of(self, other: Change) -> bool:
        """Returns whether ``other`` makes this change and perhaps more."""
        return self.more_gpus <= other.more_gpus and set(self.fields) <= set(other.fields)


Options = Iterator[tuple[str, dict[str, Any]]]


def kinds(resolved: Resolved, cluster: Cluster) -> Iterator[tuple[Change, ...]]:
    """Yields the options of every kind that the framework of ``resolved`` knows, without those that change nothing."""
    recipe = resolved.workload.recipe
    for name, options in _KINDS.items():
        changes = tuple(
            Change(kind=name, label=label, fields=tuple(fields.items()))
            for label, fields in options(resolved, cluster)
            if any(getattr(recipe, key) != value for key, value in fields.items())
        )
        if changes:
            yield changes
    yield tuple(
        Change(kind="more GPUs", label=f"{factor * resolved.workload.gpus} GPUs", fields=(), more_gpus=factor)
        for factor in (2, 4, 8)
    )


def _runs_megatron_core(resolved: Resolved) -> bool:
    return resolved.execution.data_parallel.megatron_core and not resolved.execution.runtime.whole_step


def _sequence_parallel(resolved: Resolved, _: Cluster) -> Options:
    if resolved.workload.recipe.tp > 1:
        yield "sequence parallelism", {"sequence_parallel": True}


def _layers(resolved: Resolved, _: Cluster) -> Options:
    """Yields block recompute of 1, 2, … layers of every stage, then of all; more than the recipe recomputes already."""
    recipe = resolved.workload.recipe
    if recipe.recompute_layer_ids is not None or recipe.cpu_offloading_num_layers:
        return
    block = recipe.recompute_granularity == "full" and recipe.recompute_method == "block"
    if recipe.recompute_granularity == "full" and not block:
        return
    stage = -(-resolved.workload.model.num_layers // (recipe.pp * recipe.vpp))
    full = {"recompute_granularity": "full", "recompute_modules": None}
    fewest = (recipe.recompute_num_layers or 0) + 1 if block else 1
    if _runs_megatron_core(resolved):
        for n in range(fewest, stage):
            words = f"recompute {n} of {stage} layers a stage"
            yield words, {**full, "recompute_method": "block", "recompute_num_layers": n}
    yield "recompute every layer", {**full, "recompute_method": "uniform", "recompute_num_layers": 1}


def _modules(resolved: Resolved, _: Cluster) -> Options:
    recipe, model = resolved.workload.recipe, resolved.workload.model
    if recipe.recompute_granularity == "full" or not _runs_megatron_core(resolved):
        return
    names = ["core_attn"] if resolved.execution.fusion.attention_materialised else []
    if recipe.fp8_recipe != "delayed" or recipe.precision == "bf16":  # Megatron-LM transformer_config.py
        names += ["layernorm"] + (["moe_act"] if model.moe else [])
    names += ["mla_up_proj"] if model.mla else []
    names += ["mlp"] if not model.moe or not all(model.moe.moe_layer_freq) else []
    names += ["moe"] if model.moe and not recipe.overlap_moe_expert_parallel_comm else []
    recomputed = tuple(recipe.recompute_modules or ())
    further = [name for name in names if name not in recomputed]
    for last in range(len(further)):
        chosen = (*recomputed, *further[: last + 1])
        words = f"recompute {', '.join(chosen)}"
        yield words, {"recompute_granularity": "selective", "recompute_modules": chosen}


def _sharding(resolved: Resolved, _: Cluster) -> Options:
    """Yields sharding of states over the data-parallel ranks, then of gradients, then of weights (not with
    Megatron-LM's pipelines)."""
    recipe = resolved.workload.recipe
    levels = ["no_shard", "optim", "optim_grads", "optim_grads_params"]
    words = {"optim": "optimizer states", "optim_grads": "gradients too", "optim_grads_params": "weights too (FSDP)"}
    most = 2 if recipe.pp > 1 or recipe.optimizer in MUON else 4
    for level in levels[levels.index(recipe.data_parallel_sharding or "no_shard") + 1 : most]:
        yield f"shard {words[level]}", {"data_parallel_sharding": level, "num_distributed_optimizer_instances": None}
    if (recipe.num_distributed_optimizer_instances or 1) > 1:
        yield "one instance of the optimizer", {"num_distributed_optimizer_instances": 1}


def _micro_batch(resolved: Resolved, _: Cluster) -> Options:
    size = resolved.workload.recipe.micro_batch_size
    for smaller in range(size - 1, 0, -1):
        if size % smaller == 0:
            yield f"micro-batch {size} → {smaller}", {"micro_batch_size": smaller}


def _sizes(name: str, most: Callable[[Resolved, Cluster], int]) -> Callable[[Resolved, Cluster], Options]:
    def options(resolved: Resolved, cluster: Cluster) -> Options:
        size = getattr(resolved.workload.recipe, name)
        further = {"sequence_parallel": True} if name == "tp" and _runs_megatron_core(resolved) else {}
        for factor in (2, 4, 8, 16):
            if factor * size <= most(resolved, cluster):
                yield f"{name} {size} → {factor * size}", {name: factor * size, **further}

    return options


def _chunks(resolved: Resolved, _: Cluster) -> Options:
    recipe = resolved.workload.recipe
    if recipe.vpp > 1 and recipe.pipeline_schedule == "interleaved" and not recipe.pipeline_model_parallel_layout:
        yield f"vpp {recipe.vpp} → 1", {"vpp": 1, "pipeline_schedule": "1f1b"}


_NARROW = {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}


def _sharded(resolved: Resolved) -> str:
    """Returns how Adam's states are sharded, which narrower or offloaded states ask for; a rank that is alone may call
    its whole states sharded. Empty where they are not sharded, or the optimizer is another, or not Megatron-Core's."""
    recipe = resolved.workload.recipe
    sharding = "optim" if resolved.workload.alone else recipe.data_parallel_sharding
    mine = _runs_megatron_core(resolved) and recipe.optimizer in ("adam", "adamw")
    return sharding if sharding and sharding != "no_shard" and mine else ""


def _states(resolved: Resolved, _: Cluster) -> Options:
    if sharded := _sharded(resolved):
        narrow = {"data_parallel_sharding": sharded, **_NARROW}
        yield "moments in bf16", narrow
        yield "moments and gradients in bf16", {**narrow, "main_grads_dtype": "bf16", "grad_reduce_in_bf16": True}


def _gradients(resolved: Resolved, _: Cluster) -> Options:
    if resolved.execution.data_parallel.keeps_whole_gradients(resolved.workload):
        yield "gradients reduced in every micro-batch", {"defer_fsdp_grad_sync": False}
    if _runs_megatron_core(resolved):
        yield "gradients in bf16", {"grad_reduce_in_bf16": True}


def _optimizer_offload(resolved: Resolved, _: Cluster) -> Options:
    recipe, sharded = resolved.workload.recipe, _sharded(resolved)
    if sharded != "optim":
        return
    done = (recipe.optimizer_offload_fraction or 0.0) if recipe.optimizer_cpu_offload else 0.0
    for quarter in (quarters / 4 for quarters in range(1, 5)):
        if quarter > done:
            further = {"optimizer_cpu_offload": True, "overlap_cpu_optimizer_d2h_h2d": True}
            # Megatron-LM optimizer_config.py asks for both
            aware = {"use_precision_aware_optimizer": True, "data_parallel_sharding": sharded}
            words = f"{100 * quarter:.0f} % of the optimizer's states in host memory"
            yield words, {"optimizer_offload_fraction": quarter, **further, **aware}


def _activation_offload(resolved: Resolved, _: Cluster) -> Options:
    """Yields Megatron-LM's layer offload: without pipeline, recompute or graphs, of fewer than all layers."""
    recipe, model = resolved.workload.recipe, resolved.workload.model
    if (
        recipe.pp > 1
        or recipe.recompute_granularity != "none"
        or recipe.cuda_graph_scope
        or not _runs_megatron_core(resolved)
    ):
        return
    for n in range((recipe.cpu_offloading_num_layers or 0) + 1, model.num_layers):
        yield f"activations of {n} layers in host memory", {"cpu_offloading_num_layers": n}


def _mask(resolved: Resolved, _: Cluster) -> Options:
    if mask_bytes(resolved):
        yield "no attention mask from the data loader", {"create_attention_mask_in_dataloader": False}


def _loss(resolved: Resolved, _: Cluster) -> Options:
    if _runs_megatron_core(resolved) and resolved.workload.recipe.cross_entropy_fusion in ("none", "unfused"):
        yield "fused cross-entropy", {"cross_entropy_fusion": "te"}


_KINDS: dict[str, Callable[[Resolved, Cluster], Options]] = {
    "sequence parallelism": _sequence_parallel,
    "recomputed layers": _layers,
    "recomputed modules": _modules,
    "sharding": _sharding,
    "micro-batch": _micro_batch,
    "tensor parallelism": _sizes("tp", lambda _, cluster: cluster.gpus_per_node),
    "pipeline parallelism": _sizes("pp", lambda resolved, _: resolved.workload.model.num_layers),
    "context parallelism": _sizes("cp", lambda resolved, _: resolved.workload.gpus),
    "expert parallelism": _sizes(
        "ep", lambda resolved, _: resolved.workload.model.moe.num_experts if resolved.workload.model.moe else 1
    ),
    "virtual stages": _chunks,
    "optimizer states": _states,
    "gradients": _gradients,
    "optimizer offload": _optimizer_offload,
    "activation offload": _activation_offload,
    "loss": _loss,
    "attention mask": _mask,
}
