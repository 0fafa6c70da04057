"""Bytes of weights, gradients and optimizer state that one rank keeps for the whole run."""

from __future__ import annotations

from projector.dataclass import dataclass
from projector.frameworks.types import Resolved
from projector.layers import few_bits
from projector.layers.local import local
from projector.layers.optimizers import by_rule, moments, scratch
from projector.layers.step import fraction_on_host
from projector.memory.offload import states_on_host
from projector.memory.parameters import StageParameters
from projector.operators.rank import WIDTH
from projector.operators.weights import WeightSet
from projector.size import most, where
from projector.workload.recipe import Recipe


@dataclass(frozen=True, slots=True)
class State:
    """Bytes by component; ``step``: what the optimizer step adds while it lasts; ``construction``: the peak while the
    flat buffers are made and the module's own parameters still exist."""

    components: dict[str, float]
    step: float
    construction: float


@dataclass(frozen=True, slots=True)
class _PerElement:
    weight: float
    gradient: float
    master: float


def state(resolved: Resolved, parameters: StageParameters, gpu_arch: str) -> State:
    """Returns the persistent bytes of one rank.

    Source of the byte counts: Megatron-LM core/optimizer/{distrib_optimizer,optimizer_config}.py,
    core/distributed/param_and_grad_buffer.py; torch FSDP2 and DeepSpeed stages 1 to 3 follow from which of weights,
    gradients and state are divided by the shard group.
    """
    recipe = resolved.workload.recipe
    each = _per_element(resolved)
    weights = parameters.weights
    sharing = resolved.execution.data_parallel
    trained = parameters.trained

    def spread(of: WeightSet, what: str) -> float:
        return sharing.resident(what, resolved.workload, of.dense, of.expert)

    here = 0.0 if states_on_host(recipe) else 1.0 - fraction_on_host(resolved)
    on_gpu = here * spread(trained, "states")
    shards = sharing.shards(resolved.workload)
    states = sum(moments(recipe, rule, part, *shards) for rule, part in by_rule(recipe, trained))
    stored = recipe.lora.weight_bytes if recipe.lora and recipe.precision != "fp32" else each.weight
    narrowed, cache = _quantised_storage(resolved, weights, gpu_arch, stored)
    narrowed += few_bits.saved(resolved, weights, stored)
    copied = sharing.flat_buffers and "gradients" not in sharing.divided and not recipe.lora
    copies = spread(weights, "weights")
    # a frozen copy of all weights in their 16 bits; adapters that are switched off leave the same ones
    reference = copies * (2.0 if recipe.precision != "fp32" else 4.0) if recipe.reference and not recipe.lora else 0.0
    gradients = spread(trained, "gradients") * (each.gradient + sharing.beside_gradients(resolved.workload))
    whole = sharing.keeps_whole_gradients(resolved.workload)
    adapters = parameters.adapters * each.weight if recipe.lora else 0.0
    away = sharing.taken_along if recipe.optimizer_cpu_offload else frozenset[str]()
    return State(
        components={
            "weights": 0.0 if "weights" in away else reference + copies * stored - narrowed + adapters,
            "gradients": trained.total * sharing.reduce_bytes if whole else 0.0 if "gradients" in away else gradients,
            "master_weights": on_gpu * each.master,
            "moments": here * states,
            "dummy_wgrad": 0.0 if recipe.lora else resolved.execution.fusion.placeholders(weights.trained),
            "fp8_weight_cache": cache,
        },
        step=_step_bytes(resolved, each, spread(trained, "states"), trained),
        construction=_construction(weights, each) if copied else 0.0,
    )


def late_gradients(resolved: Resolved, weights: WeightSet) -> float:
    """Returns the bytes of the gradients of ``weights`` that no micro-batch before has left: autograd makes them in the
    backward, and torch's optimizers drop them after the step (torch/optim/optimizer.py, ``zero_grad``: to none). Under a
    pipeline, and of several micro-batches, those of the first are there."""
    workload, sharing = resolved.workload, resolved.execution.data_parallel
    recipe = workload.recipe
    away = recipe.optimizer_cpu_offload and "gradients" in sharing.taken_along
    if not sharing.drops_gradients or recipe.pp > 1 or away:
        return 0.0
    trained = weights.only("adapter") if recipe.lora else weights.trained
    own = sharing.resident("gradients", workload, trained.dense, trained.expert) * _per_element(resolved).gradient
    late: float = where(lambda number: number == 1, workload.num_microbatches, own, 0.0)
    return late


def _per_element(resolved: Resolved) -> _PerElement:
    recipe, execution = resolved.workload.recipe, resolved.execution
    gradient = execution.data_parallel.grad_bytes
    if recipe.use_precision_aware_optimizer and recipe.main_grads_dtype == "bf16":
        gradient = min(gradient, 2.0)
    main, halved = execution.data_parallel.main_weight(recipe)
    if recipe.precision == "fp32":
        return _PerElement(4.0, 4.0, 0.0)
    weight = execution.data_parallel.parameter_bytes
    if not main and recipe.use_precision_aware_optimizer:  # the optimizer steps the weights themselves
        weight = min(weight, WIDTH[recipe.main_params_dtype or "fp32"])
    return _PerElement(weight, gradient, 2.0 if halved else main)


def _quantised_storage(
    resolved: Resolved, weights: WeightSet, gpu_arch: str, weight_bytes: float
) -> tuple[float, float]:
    """Returns (bytes saved because linear weights are stored in 8 bits, bytes of quantised copies kept across
    micro-batches).

    Hopper's 8-bit GEMM takes one operand layout only, so per-tensor scaling keeps a transposed copy; MXFP8 and
    blockwise scaling quantise rows and columns apart everywhere (TransformerEngine pytorch/module/base.py,
    get_weight_workspace; pytorch/utils.py, is_non_tn_fp8_gemm_supported). Sharded weights are quantised per unit.
    """
    recipe = resolved.workload.recipe
    if not local(resolved).quantised or "weights" in resolved.execution.data_parallel.divided:
        return 0.0, 0.0
    linear = weights.only("linear")
    elements = linear.dense if recipe.moe_grouped_gemm == "legacy" else linear.total
    row, column = _quantised_weight_bytes(recipe, gpu_arch)
    adapters = resolved.execution.adapters
    frozen = recipe.lora is not None and adapters.frozen_weights_quantised
    if frozen and row == 1.0 and not adapters.transposes_kept:
        column = 0.0
    if not (recipe.fp8_param_gather or frozen):
        return 0.0, elements * (row + column)
    return elements * (weight_bytes - row), elements * column


def _quantised_weight_bytes(recipe: Recipe, gpu_arch: str) -> tuple[float, float]:
    if recipe.precision in ("nvfp4", "mxfp4"):
        one = 0.5 + (1 / 16 if recipe.precision == "nvfp4" else 1 / 32)
        return one, one
    if recipe.precision == "mxfp8" or recipe.fp8_recipe == "mxfp8":
        return 1 + 1 / 32, 1 + 1 / 32
    if recipe.fp8_recipe == "blockwise":
        return 1 + 4 / 128**2, 1 + 4 / 128**2
    return 1.0, 1.0 if gpu_arch in ("hopper", "ada") else 0.0


def _step_bytes(resolved: Resolved, each: _PerElement, shard: float, trained: WeightSet) -> float:
    """Returns what the optimizer step adds: an fp32 copy of the shard's gradient, unless the gradient is fp32 or the update
    kernel reads it as it is (Megatron-LM core/optimizer/distrib_optimizer.py), as one that keeps no whole master does."""
    recipe = resolved.workload.recipe
    as_it_is = each.gradient >= 4.0 or each.master < 4.0 or recipe.use_precision_aware_optimizer
    shards = resolved.execution.data_parallel.shards(resolved.workload)
    execution = resolved.execution
    narrow = execution.fusion.bf16_moments
    extra = 0.0 if execution.runtime.whole_step else scratch(recipe, trained, *shards, bf16_moments=narrow)
    return (0.0 if as_it_is else 4.0 * shard) + extra


def _construction(weights: WeightSet, each: _PerElement) -> float:
    """Returns the peak while flat buffers of dense, then of expert weights are allocated beside the modules' parameters."""
    twice = 2 * each.weight + each.gradient
    return most(
        twice * weights.dense + each.weight * weights.expert,
        (each.weight + each.gradient) * weights.dense + twice * weights.expert,
    )
