"""What one layer of a model is made of: a mixer of tokens, an MLP, or one of both alone.

Every mixer and every MLP is a small frozen dataclass with its own sizes; what is None is the model's. A layer of one
module alone has one norm and one residual (a character of Megatron-LM's ``--hybrid-layer-pattern``,
NVIDIA/Megatron-LM@d98e8a64dd megatron/core/models/hybrid/hybrid_layer_allocation.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from projector.memo import HashedOnce
from projector.workload.declared import about
from projector.workload.sparse import CompressedAttention

__all__ = [
    "Attention",
    "Dense",
    "Experts",
    "GatedDeltaNet",
    "KimiDelta",
    "LayerKind",
    "Lightning",
    "Mamba2",
    "Mixer",
    "Mlp",
    "PerLayer",
    "Recurrent",
    "ShortConvolution",
    "decoder",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Softmax attention. ``window``: tokens seen (None: all); ``latent``: multi-head latent attention or not (None: where
    the model has its sizes). The other fields say where this layer differs from its model."""

    window: int | None = None
    latent: bool | None = None
    num_attention_heads: int | None = None
    num_query_groups: int | None = None
    kv_channels: int | None = None
    attention_sinks: bool | None = None
    attention_k_eq_v: bool | None = None

    @property
    def name(self) -> str:
        return "attention" if not self.latent else "latent_attention"

    def differs(self) -> dict[str, object]:
        """Fields of the model that are others in this layer."""
        names = ("num_attention_heads", "num_query_groups", "kv_channels", "attention_sinks", "attention_k_eq_v")
        found = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return found | ({"mla": None} if self.latent is False else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """The dense MLP, of the model's width or its own."""

    ffn_hidden_size: int | None = None

    @property
    def name(self) -> str:
        return "dense"

    def differs(self) -> dict[str, object]:
        return {} if self.ffn_hidden_size is None else {"ffn_hidden_size": self.ffn_hidden_size}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The model's routed and shared experts."""

    @property
    def name(self) -> str:
        return "moe"

    def differs(self) -> dict[str, object]:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Own:
    """A mixer with sizes of its own."""

    def differs(self) -> dict[str, object]:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2(_Own):
    """Chunked state-space duality (arXiv:2405.21060), as Megatron-LM's mixer core/ssm/mamba_mixer.py."""

    mamba_num_heads: int
    mamba_head_dim: int = 64
    mamba_num_groups: int = 8
    mamba_state_dim: int = 128
    conv_width: int = 4
    chunk: int = 128
    grouped_norm: bool = True

    @property
    def name(self) -> str:
        return "mamba"

    @property
    def inner(self) -> int:
        return self.mamba_num_heads * self.mamba_head_dim

    @property
    def convolved(self) -> int:
        """Channels of the convolution: x, B and C."""
        return self.inner + 2 * self.mamba_num_groups * self.mamba_state_dim

    def parameters(self, hidden: int) -> int:
        """Projections, convolution with bias, dt_bias, A and D of each head, the weight of the gated norm."""
        heads = self.mamba_num_heads
        projected = hidden * (self.inner + self.convolved + heads) + self.inner * hidden
        norm = self.inner if self.grouped_norm else 0
        return projected + (self.conv_width + 1) * self.convolved + 3 * heads + norm


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNet(_Own):
    """Gated delta rule (arXiv:2412.06464), Megatron-LM core/ssm/gated_delta_net; names are its arguments."""

    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_conv_kernel_dim: int = 4
    chunk: int = 64

    @property
    def name(self) -> str:
        return "gdn"

    @property
    def keys(self) -> int:
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def values(self) -> int:
        return self.linear_num_value_heads * self.linear_value_head_dim

    def parameters(self, hidden: int) -> int:
        """Projections of q, k, v, z, beta and alpha, convolution without bias, A and dt_bias, the norm, the output."""
        heads = self.linear_num_value_heads
        projected = hidden * (2 * self.keys + 2 * self.values + 2 * heads) + self.values * hidden
        convolution = self.linear_conv_kernel_dim * (2 * self.keys + self.values)
        return projected + convolution + 2 * heads + self.linear_value_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDelta(_Own):
    """Kimi Delta Attention (arXiv:2510.26692): a decay of every channel. ``gate_rank``: of the output gate (None: full)."""

    num_heads: int
    head_dim: int = 128
    conv_width: int = 4
    gate_rank: int | None = 128
    chunk: int = 64

    @property
    def name(self) -> str:
        return "kda"

    @property
    def inner(self) -> int:
        return self.num_heads * self.head_dim

    def parameters(self, hidden: int) -> int:
        """q, k, v with a convolution each, the low-rank decay, beta, the gate, A, dt_bias, the norm, the output."""
        inner, rank = self.inner, self.gate_rank
        gate = hidden * inner if rank is None else rank * (hidden + inner)
        decay = self.head_dim * (hidden + inner)
        projected = 4 * hidden * inner + decay + hidden * self.num_heads + gate
        return projected + 3 * self.conv_width * inner + self.num_heads + inner + self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Lightning(_Own):
    """Lightning attention (arXiv:2501.08313): linear attention with a fixed decay of each head and an output gate."""

    num_heads: int
    head_dim: int = 128
    chunk: int = 256

    @property
    def name(self) -> str:
        return "lightning"

    @property
    def inner(self) -> int:
        return self.num_heads * self.head_dim

    def parameters(self, hidden: int) -> int:
        return 5 * hidden * self.inner + self.inner


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvolution(_Own):
    """Gated short convolution (LFM2; transformers models/lfm2): two gates around a depthwise convolution."""

    conv_width: int = 3

    @property
    def name(self) -> str:
        return "conv"

    def parameters(self, hidden: int) -> int:
        return 4 * hidden * hidden + self.conv_width * hidden


Recurrent = Mamba2 | GatedDeltaNet | KimiDelta | Lightning | ShortConvolution
Mixer = Attention | CompressedAttention | Recurrent
Mlp = Dense | Experts
_ATTENTION, _DENSE, _EXPERTS = Attention(), Dense(), Experts()


@dataclass(frozen=True)
class LayerKind(HashedOnce):
    """What distinguishes one layer from another. Either part may be absent, not both. ``residual_candidates``: tensors of
    which its input is a mixture (attention residuals)."""

    mixer: Mixer | None = _ATTENTION
    mlp: Mlp | None = _DENSE
    residual_candidates: int = 1

    __hash__ = HashedOnce.__hash__

    @property
    def moe(self) -> bool:
        return isinstance(self.mlp, Experts)

    @property
    def window(self) -> int | None:
        return self.mixer.window if isinstance(self.mixer, Attention) else None

    @property
    def plain(self) -> bool:
        """Attention and an MLP as the model has them, but for a window."""
        return self == decoder(self.moe, self.window)

    @property
    def name(self) -> str:
        alone = isinstance(self.mixer, Attention) and not self.mixer.latent and self.mlp is not None
        words = [part.name for part in ((self.mlp,) if alone else (self.mixer, self.mlp)) if part]
        return "_".join(words) + (f"_w{self.window}" if self.window else "")

    def differs(self) -> dict[str, object]:
        """Fields of the model that are others in this layer: heads and widths."""
        found = {name: value for part in (self.mixer, self.mlp) if part for name, value in part.differs().items()}
        return found | ({"residual_candidates": self.residual_candidates} if self.residual_candidates > 1 else {})


def decoder(moe: bool, window: int | None = None) -> LayerKind:
    """Attention and an MLP, or experts, as the model has them."""
    return LayerKind(Attention(window=window) if window else _ATTENTION, _EXPERTS if moe else _DENSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayer:
    """Sizes that differ from layer to layer: one entry a decoder layer, or none at all where all are the model's.

    A width or a number of heads of 0: the layer has no MLP, or no mixer; a window of 0: the full sequence.
    """

    num_attention_heads: tuple[int, ...] = field(default=(), metadata=about(least=0))
    num_query_groups: tuple[int, ...] = field(default=(), metadata=about(least=0))
    kv_channels: tuple[int, ...] = field(default=(), metadata=about(least=0))
    window_size: tuple[int, ...] = field(default=(), metadata=about(least=0))
    ffn_hidden_size: tuple[int, ...] = field(default=(), metadata=about(least=0))
