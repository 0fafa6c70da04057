"""Sets of fusions: data that the layers read which they change, and how gradients reach their buffer."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from projector.dataclass import dataclass
from projector.mechanisms.strategy import Strategy
from projector.operators.types import Stream
from projector.operators.weights import WeightSet
from projector.size import area
from projector.workload.recipe import Recipe

#: Whether scores lie in memory, by the attention backend that a recipe names; others leave it to the framework.
MATERIALISED = {
    **dict.fromkeys(("unfused", "local", "materialised"), True),
    **dict.fromkeys(("flash", "fa2", "fa3", "fa4", "fused"), False),
}


@dataclass(frozen=True, kw_only=True)
class Fusion(Strategy):
    """Which operators run as one kernel. ``qkv``, ``gate_up``: one product makes queries, keys and values; gate and up.
    ``norm``, ``residual``: one kernel a norm; residual additions inside others. ``elementwise``: a compiler joins
    element-wise neighbours. ``gated_activation``: one kernel can apply a gate and its activation.
    ``attention_materialised``: scores lie in memory; ``softmax_fp32``: then their softmax is made in fp32 and its
    output cast; ``scores_apart``: they are scaled and masked by kernels of their own.
    ``eager_ring``: partial results of ring attention merged in fp32 by elementary kernels, heads expanded.
    ``cp_a2a_keeps_output``: attention's output saved before *and* after the context parallel all-to-all (TE >= 2.8).
    ``activation_casts``: the activation writes the 8-bit operands of the linears around it (TransformerEngine's
    operation fuser). ``cast_transposes``: a cast by one scale a tensor writes the transposed copy as well, for products
    that take one operand layout only. ``norm_casts_mxfp8``: the norm writes MXFP8 itself. ``elementary_casts``: casts
    are tensor functions, a kernel each where no compiler joins them.

    ``wgrad_accumulation``: how a weight gradient reaches the gradient buffer: ``fused`` | ``separate`` | ``none``.
    ``dummy_wgrad``: placeholders cached per weight shape by fused accumulation: ``none`` | ``dense`` | ``all``.
    ``expert_wgrad``: grouped products add to that buffer too where linears do. ``expert_output_weighted``: the type in
    which the router's probabilities multiply what experts return (``fp32`` | ``bf16``), empty where they multiply their
    activation. ``expert_gemm_split``: gate and up of experts are two grouped products. ``expert_bias``: biases of
    experts are inside other kernels, else added expert by expert and concatenated again. ``loss``: cross-entropy where
    the recipe names none: ``unfused`` | ``native`` | ``te`` | ``fp32`` | ``bf16`` | ``linear``. ``loss_compiled``:
    where a compiler runs it takes the loss too: ``fp32`` is then fewer passes, and keeps no fp32 copies. ``loss_metrics``:
    losses that a trainer computes once more from the logits of every micro-batch, under autocast, for its log.
    ``hyper_connections``, ``indexer``: their element-wise work in kernels of its own, not function by function in fp32.
    ``bf16_moments``: the update kernel takes both moments in bf16, not fp32 copies of them.
    """

    elementary_casts: bool = False
    qkv: bool = True
    gate_up: bool = True
    norm: bool = True
    residual: bool = True
    elementwise: bool = False
    gated_activation: bool = True
    attention_materialised: bool = False
    softmax_fp32: bool = False
    scores_apart: bool = False
    eager_ring: bool = False
    cp_a2a_keeps_output: bool = True
    activation_casts: bool = False
    cast_transposes: bool = True
    norm_casts_mxfp8: bool = True
    wgrad_accumulation: str = "fused"
    dummy_wgrad: str = "all"
    expert_wgrad: bool = True
    expert_gemm_split: bool = False
    expert_output_weighted: str = ""
    expert_bias: bool = True
    loss: str = "unfused"
    loss_compiled: bool = False
    loss_metrics: int = 0
    hyper_connections: bool = True
    indexer: bool = True
    bf16_moments: bool = True

    def configured_by(self, recipe: Recipe) -> Self:
        """Returns the fusions under a recipe's compiler, attention backend and gradient accumulation."""
        said: dict[str, Any] = {"loss_compiled": self.loss_compiled and bool(recipe.torch_compile)}
        if self.wgrad_accumulation == "fused" and not recipe.gradient_accumulation_fusion:
            said["wgrad_accumulation"] = "separate"
        # grouped_gemm and Primus-Turbo return the gradient (AMD-AGI/Primus-Turbo PR 454 says so and adds the fused way, that
        # Primus takes from PR 995, 2026-08-19, on); Transformer Engine's grouped linear adds it
        if recipe.moe_grouped_gemm in ("legacy", "fused", "padded"):
            said["expert_wgrad"] = False
        if recipe.torch_compile:
            said["elementwise"] = True
        if (materialised := MATERIALISED.get(recipe.attention_backend or "")) is not None:
            said["attention_materialised"] = materialised
        return self.evolve(said)

    def added(self, name: str, elements: float, fresh: float, buffer: float, launches: int = 1) -> tuple[Stream, ...]:
        """Returns the kernels that add a gradient of ``fresh`` bytes an element to a buffer of ``buffer`` (Megatron-LM
        without ``gradient_accumulation_fusion``: 2 + 4 read and 4 written per weight); none where autograd keeps the
        gradient."""
        if self.wgrad_accumulation == "none":
            return ()
        read, write = (fresh + buffer) * elements, buffer * elements
        return (Stream(name, "elementwise", read, write, launches=launches),)

    def placeholders(self, weights: WeightSet) -> float:
        """Returns the bytes of the weight gradients that fused accumulation returns in name only: one 2-byte tensor per
        *distinct* matrix shape, for ever in a process-wide table (TransformerEngine pytorch/module/base.py,
        get_dummy_wgrad)."""
        if self.wgrad_accumulation != "fused" or self.dummy_wgrad == "none":
            return 0.0
        shapes, inside = weights.products
        if self.dummy_wgrad == "all" and self.expert_wgrad:
            shapes += inside
        return 2.0 * area(shapes)


# XLA's fusions over MaxText's layers (AI-Hypercomputer/maxtext MaxText/layers).
@dataclass(frozen=True, kw_only=True)
class XLA(Fusion):
    """Element-wise neighbours share one kernel; products are as the model writes them."""

    name: ClassVar[str] = "xla"
    qkv: bool = False
    gate_up: bool = False
    elementwise: bool = True
    wgrad_accumulation: str = "none"
    expert_gemm_split: bool = True
    loss: str = "fp32"


# PyTorch's own modules, one kernel after the other (pytorch/torchtitan@b5bcd76c6 torchtitan/models/common).
@dataclass(frozen=True, kw_only=True)
class TorchEager(Fusion):
    """Three products make queries, keys and values, two gate and up; autograd adds gradients up; the loss is in fp32."""

    name: ClassVar[str] = "torch_eager"
    elementary_casts: bool = True
    qkv: bool = False
    gate_up: bool = False
    scores_apart: bool = True
    eager_ring: bool = True
    wgrad_accumulation: str = "none"
    expert_gemm_split: bool = True
    expert_output_weighted: str = "fp32"
    loss: str = "fp32"


# Transformer Engine's modules (NVIDIA/TransformerEngine@d0067d0da transformer_engine/pytorch/module).
@dataclass(frozen=True, kw_only=True)
class TransformerEngine(Fusion):
    """Norms run beside products, and the product that makes a weight gradient adds it up."""

    name: ClassVar[str] = "transformer_engine"
