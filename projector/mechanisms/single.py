"""Mechanisms with a single strategy, which is data: its parameters are read where they matter."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from projector.dataclass import dataclass
from projector.mechanisms.strategy import Strategy
from projector.workload.recipe import Recipe

# ``masked``: a compiler without a grouped kernel multiplies the whole buffer with every expert and masks the rest
# (JAX's default lowering of jax.lax.ragged_dot on GPUs)
_GROUPED = ("fused", "multi_stream", "loop", "masked")


@dataclass(frozen=True, kw_only=True)
class Kernels(Strategy):
    """The libraries of dense products, attention and grouped products: keys of the kernel models. ``attention``: the
    kernel that the stack prefers (:mod:`projector.mechanisms.attention_kernels` says which runs); ``built``: the month
    of its build, as far as that matters there. ``grouped``: the backend where no ``moe_grouped_gemm`` is named."""

    name: ClassVar[str] = "libraries"
    gemm: str = "cublaslt"
    attention: str = "fa2"
    built: str = ""
    grouped: str = "multi_stream"

    def configured_by(self, recipe: Recipe) -> Kernels:
        """Returns the libraries with the FlashAttention that a recipe names."""
        named = recipe.attention_backend in ("fa2", "fa3", "fa4")
        return self.evolve({"attention": recipe.attention_backend}) if named else self

    def grouped_by(self, recipe: Recipe) -> str:
        """Returns the backend of grouped products: the recipe's choice where it is one; from sync-free stage 2 on one
        kernel that reads its sizes on the device (AMD-AGI/Primus primus/backends/megatron/core/extensions)."""
        if (recipe.sync_free_stage or 0) >= 2:
            return "fused"
        if recipe.moe_grouped_gemm == "legacy":  # tgale96/grouped_gemm: an expert after another on a few streams
            return "multi_stream"
        if recipe.moe_grouped_gemm == "padded":  # torch._grouped_mm of equal groups
            return "fused"
        chosen = (word for word in (recipe.moe_grouped_gemm, self.grouped) if word in _GROUPED)
        return next(chosen, "multi_stream")


@dataclass(frozen=True, kw_only=True)
class PipelineEngine(Strategy):
    """How stages run. ``p2p_synchronous``: a stage waits for its messages; ``batch_p2p_sync``: so does its host, for
    the whole device. ``idle_stages_compute``: one program for all stages; those without input run on zeros.
    ``keeps_boundary_tensors``: a stage's received input and its output stay until its backward."""

    name: ClassVar[str] = "stages"
    p2p_synchronous: bool = True
    batch_p2p_sync: bool = False
    idle_stages_compute: bool = False
    keeps_boundary_tensors: bool = False


@dataclass(frozen=True, kw_only=True)
class Recompute(Strategy):
    """How checkpoints replay. ``pruned``: what only a layer's output needs is not computed again in its backward (a compiler
    proves it dead). ``traced``: ``torch.compile`` takes the checkpoint in with its layer, so it is pruned where the recipe
    compiles. ``stops``: torch's non-reentrant checkpoint ends a replay with the last tensor that is saved (pytorch/pytorch
    torch/utils/checkpoint.py, ``early_stop``, the default since 2.1), which an operator of autograd saves ``before`` it
    runs, a Function ``after``; empty: at its end. ``keeps_magnitudes``: an operator-selective checkpoint in eager mode keeps
    the magnitudes whose maximum casts to 8 bits take, ``keeps_exchanged`` what an all-to-all of experts brought."""

    name: ClassVar[str] = "checkpoints"
    pruned: bool = False
    traced: bool = False
    stops: str = ""
    keeps_magnitudes: bool = False
    keeps_exchanged: bool = False

    def configured_by(self, recipe: Recipe) -> Recompute:
        if not recipe.torch_compile:
            return self
        # a compiled layer is one Function, whose backward reads no magnitudes
        return replace(self, pruned=self.pruned or self.traced, stops="", keeps_magnitudes=False)


@dataclass(frozen=True, kw_only=True)
class Adapters(Strategy):
    """How low-rank adapters run. ``frozen_weights_quantised``: weights below adapters exist in the narrow compute type only.
    ``transposes_kept``: with their transposed copies where a GEMM needs them and one scale serves a whole tensor, else made
    for each use (Megatron-LM ``disable_parameter_transpose_cache``). ``dropout``: of the input of an adapter; above 0 its
    mask is kept. ``fused``: without tensor parallelism its second product scales and adds to the base linear's output, and
    the base linear's gradient product adds to its gradient (TransformerEngine's operation fuser, NVIDIA/NeMo PR 14411).
    ``elementary_codes``: weights of 4 bits are made again by one kernel for each function, unless a compiler joins them
    (torchao)."""

    name: ClassVar[str] = "low_rank"
    frozen_weights_quantised: bool = False
    transposes_kept: bool = True
    dropout: float = 0.0
    fused: bool = False
    elementary_codes: bool = False
