"""Describes one layer of a model: a mixer of tokens and an MLP, or one of both alone.

Every mixer and every MLP is a small frozen dataclass with its own sizes; what is None is the model's. A layer of one module
alone has one norm and one residual (a character of Megatron-LM's ``--hybrid-layer-pattern``, NVIDIA/Megatron-LM@d98e8a64dd
megatron/core/models/hybrid/hybrid_layer_allocation.py).
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

from projector.dataclass import dataclass
from projector.memo import HashedOnce
from projector.workload.field_facts import about
from projector.workload.sparse import BlockAttention, CompressedAttention, FullAttention, LayerPart
from projector.workload.towers import Encoder, Vision


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(FullAttention):
    """Softmax attention. ``window``: tokens seen (None: all); ``latent``: multi-head latent attention or not (None: where
    the model has its sizes); ``reuses_kv``: keys and values are those of an earlier layer (cross-layer attention,
    arXiv:2405.12981). The other fields say where this layer differs from its model."""

    window: int | None = None
    latent: bool | None = None
    reuses_kv: bool = False
    attention_sinks: bool | None = None

    restates: ClassVar[tuple[str, ...]] = (*FullAttention.restates, "attention_sinks")

    @property
    def name(self) -> str:
        if self.reuses_kv:
            return "shared_kv"
        return "attention" if not self.latent else "latent_attention"

    def differs(self) -> dict[str, Any]:
        return LayerPart.differs(self) | ({"mla": None} if self.latent is False else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense(LayerPart):
    """A dense MLP, of the model's width or its own."""

    ffn_hidden_size: int | None = None
    sparse_activation: bool | None = None

    restates: ClassVar[tuple[str, ...]] = ("ffn_hidden_size", "sparse_activation")

    @property
    def name(self) -> str:
        return "sparse" if self.sparse_activation else "dense"


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts(LayerPart):
    """The model's routed and shared experts."""

    name: ClassVar[str] = "moe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba1(LayerPart):
    """Selective scan (arXiv:2312.00752). ``inner``: channels; ``norms`` of steps, B and C (Jamba, arXiv:2403.19887)."""

    inner: int
    dt_rank: int
    state_dim: int = 16
    conv_width: int = 4
    norms: bool = False

    name: ClassVar[str] = "mamba1"

    def parameters(self, hidden: int) -> int:
        """Returns the projections, convolution with bias, step sizes with bias, A of each channel and state, D, the
        norms."""
        d, narrow = self.inner, self.dt_rank + 2 * self.state_dim
        projected = 3 * hidden * d + d * narrow + (self.dt_rank + 1) * d
        return projected + (self.conv_width + 1) * d + d * self.state_dim + d + (narrow if self.norms else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2(LayerPart):
    """Chunked state-space duality (arXiv:2405.21060), as Megatron-LM's mixer core/ssm/mamba_mixer.py."""

    mamba_num_heads: int
    mamba_head_dim: int = 64
    mamba_num_groups: int = 8
    mamba_state_dim: int = 128
    conv_width: int = 4
    chunk: int = 128
    grouped_norm: bool = True

    name: ClassVar[str] = "mamba"

    @property
    def inner(self) -> int:
        return self.mamba_num_heads * self.mamba_head_dim

    @property
    def convolved(self) -> int:
        """Returns the channels of the convolution: x, B and C."""
        return self.inner + 2 * self.mamba_num_groups * self.mamba_state_dim

    def parameters(self, hidden: int) -> int:
        """Returns the projections, convolution with bias, dt_bias, A and D of each head, the weight of the gated
        norm."""
        heads = self.mamba_num_heads
        projected = hidden * (self.inner + self.convolved + heads) + self.inner * hidden
        norm = self.inner if self.grouped_norm else 0
        return projected + (self.conv_width + 1) * self.convolved + 3 * heads + norm


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNet(LayerPart):
    """Gated delta rule (arXiv:2412.06464), Megatron-LM core/ssm/gated_delta_net; names are its arguments."""

    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_conv_kernel_dim: int = 4
    chunk: int = 64

    name: ClassVar[str] = "gdn"

    @property
    def keys(self) -> int:
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def values(self) -> int:
        return self.linear_num_value_heads * self.linear_value_head_dim

    def parameters(self, hidden: int) -> int:
        """Returns the projections of q, k, v, z, beta and alpha, convolution without bias, A and dt_bias, the norm, the
        output."""
        heads = self.linear_num_value_heads
        projected = hidden * (2 * self.keys + 2 * self.values + 2 * heads) + self.values * hidden
        convolution = self.linear_conv_kernel_dim * (2 * self.keys + self.values)
        return projected + convolution + 2 * heads + self.linear_value_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDelta(LayerPart):
    """Kimi Delta Attention (arXiv:2510.26692): a decay of every channel. ``gate_rank``: of the output gate (None: full);
    ``head_dim``: width of a key, ``value_dim``: of a value and rank of the decay (None: as keys); ``num_key_heads`` (None:
    as many as of values); ``fused``: one projection of the layer's input, not one each."""

    num_heads: int
    head_dim: int = 128
    value_dim: int | None = None
    num_key_heads: int | None = None
    conv_width: int = 4
    gate_rank: int | None = 128
    gate_bias: bool = False
    fused: bool = False
    chunk: int = 64

    name: ClassVar[str] = "kda"

    @property
    def value(self) -> int:
        """Returns the width of a value head."""
        return self.value_dim or self.head_dim

    @property
    def keys(self) -> int:
        return (self.num_key_heads or self.num_heads) * self.head_dim

    @property
    def values(self) -> int:
        return self.num_heads * self.value

    def parameters(self, hidden: int) -> int:
        """Counts q, k, v with a convolution each, the low-rank decay, beta, the gate, A, dt_bias, the norm, the output."""
        values, rank, channels = self.values, self.gate_rank, 2 * self.keys + self.values
        decays = self.num_heads * self.head_dim
        gate = hidden * values if rank is None else rank * (hidden + values)
        projected = hidden * (channels + values + self.num_heads) + self.value * (hidden + decays) + gate
        biases = values if self.gate_bias else 0
        return projected + biases + self.conv_width * channels + self.num_heads + decays + self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Lightning(LayerPart):
    """Lightning attention (arXiv:2501.08313): linear attention with a fixed decay of each head and an output gate."""

    num_heads: int
    head_dim: int = 128
    chunk: int = 256

    name: ClassVar[str] = "lightning"

    @property
    def inner(self) -> int:
        return self.num_heads * self.head_dim

    def parameters(self, hidden: int) -> int:
        return 5 * hidden * self.inner + self.inner


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvolution(LayerPart):
    """Gated short convolution (LFM2; transformers models/lfm2): two gates around a depthwise convolution."""

    conv_width: int = 3

    name: ClassVar[str] = "conv"

    def parameters(self, hidden: int) -> int:
        return 4 * hidden * hidden + self.conv_width * hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """Attention and Mamba-2 on one norm, their outputs summed (Falcon-H1, arXiv:2507.22448)."""

    mamba: Mamba2
    attention: Attention = Attention()

    name: ClassVar[str] = "parallel"

    def differs(self) -> dict[str, object]:
        return self.attention.differs()


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBlocks:
    """Blocks of attention and an MLP that layers take by turns, with adapters of each use (Zamba2, arXiv:2411.15242)."""

    num_mem_blocks: int = 1
    adapter_rank: int = 128
    use_shared_attention_adapter: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBlock(LayerPart):
    """One use of shared block number ``block`` before a Mamba-2 mixer."""

    mamba: Mamba2
    sizes: SharedBlocks
    block: int = 0

    @property
    def name(self) -> str:
        return f"shared{self.block}"

    def shared(self, hidden: int, query: int, key: int, ffn: int) -> int:
        """Returns the parameters of the block: both norms, attention from twice the hidden size, the gated MLP."""
        return 3 * hidden + 2 * hidden * (query + 2 * key) + query * hidden + 3 * hidden * ffn

    def own(self, hidden: int, query: int, key: int, ffn: int) -> int:
        """Returns the parameters of this use: adapters, the projection of the block's output, the mixer."""
        rank, attention = self.sizes.adapter_rank, self.sizes.use_shared_attention_adapter
        adapters = hidden + 2 * ffn + (3 * 2 * hidden + query + 2 * key if attention else 0)
        return rank * adapters + hidden * hidden + self.mamba.parameters(hidden)


Recurrent = Mamba1 | Mamba2 | Parallel | SharedBlock | GatedDeltaNet | KimiDelta | Lightning | ShortConvolution
Mixer = Attention | BlockAttention | CompressedAttention | Recurrent
Mlp = Dense | Experts
_ATTENTION, _DENSE, _EXPERTS = Attention(), Dense(), Experts()


@dataclass(frozen=True)
class LayerKind(HashedOnce):
    """What distinguishes one layer from another. Either part may be absent; a layer without both passes its input on.
    ``residual_candidates``: tensors of which its input is a mixture (attention residuals). ``tower``: the stack that it
    stands in, if that is not the model's own; ``first``, ``last``: what brings tokens into its stack, or out of it, stands
    before or after it; ``cross``: it attends to the output of an encoder, too."""

    mixer: Mixer | None = _ATTENTION
    mlp: Mlp | None = _DENSE
    residual_candidates: int = 1
    tower: Encoder | Vision | None = None
    first: bool = False
    last: bool = False
    cross: bool = False

    __hash__ = HashedOnce.__hash__

    @property
    def moe(self) -> bool:
        return isinstance(self.mlp, Experts)

    @property
    def window(self) -> int | None:
        return self.mixer.window if isinstance(self.mixer, Attention) else None

    @property
    def plain(self) -> bool:
        """Returns whether the layer is attention and an MLP as the model has them, but for a window."""
        return self == decoder(self.moe, self.window)

    @property
    def name(self) -> str:
        usual_attention = isinstance(self.mixer, Attention) and self.mixer.name == "attention" and self.mlp is not None
        words = [part.name for part in ((self.mlp,) if usual_attention else (self.mixer, self.mlp)) if part]
        words += [word for word, there in (("cross", self.cross), ("first", self.first), ("last", self.last)) if there]
        words = [self.tower.name, *words] if self.tower else words
        return ("_".join(words) or "empty") + (f"_w{self.window}" if self.window else "")

    def differs(self) -> dict[str, object]:
        """Returns the fields of the model that have other values in this layer: heads and widths."""
        parts = (self.tower, self.mixer, self.mlp)
        changed = {name: value for part in parts if part for name, value in part.differs().items()}
        return changed | ({"residual_candidates": self.residual_candidates} if self.residual_candidates > 1 else {})


def decoder(moe: bool, window: int | None = None) -> LayerKind:
    """Returns a layer of attention and an MLP, or experts, as the model has them."""
    return LayerKind(Attention(window=window) if window else _ATTENTION, _EXPERTS if moe else _DENSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayer:
    """Sizes that differ from layer to layer: one entry a decoder layer, or none at all where all are the model's.

    A width or a number of heads of 0: the layer has no MLP, or no mixer; a window of 0: the full sequence.
    ``sparse_activation``: 1 where most of the gate is cut (see :class:`~projector.workload.model.Model`).
    """

    num_attention_heads: tuple[int, ...] = field(default=(), metadata=about(least=0))
    num_query_groups: tuple[int, ...] = field(default=(), metadata=about(least=0))
    kv_channels: tuple[int, ...] = field(default=(), metadata=about(least=0))
    window_size: tuple[int, ...] = field(default=(), metadata=about(least=0))
    ffn_hidden_size: tuple[int, ...] = field(default=(), metadata=about(least=0))
    sparse_activation: tuple[int, ...] = field(default=(), metadata=about(least=0, most=1))
