"""The architecture that is trained. Field names are Megatron-LM's; every value is what the published model has."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from projector.memo import HashedOnce
from projector.workload.declared import about

__all__ = ["MLA", "LayerKind", "MoE", "Model"]

_NORMS = ("RMSNorm", "LayerNorm", "NonParametricLayerNorm")
_POSITIONS = ("rope", "learned_absolute", "alibi", "none")


@dataclass(frozen=True, kw_only=True)
class MLA:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434). ``q_lora_rank`` None: queries are not compressed."""

    kv_lora_rank: int
    qk_head_dim: int
    qk_pos_emb_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class MoE:
    """Routed experts of a model. ``moe_layer_freq`` holds one 0/1 per decoder layer (1: this layer has experts)."""

    num_experts: int = field(metadata=about(most=100_000))
    moe_router_topk: int
    moe_ffn_hidden_size: int = field(metadata=about(least=0))
    moe_layer_freq: tuple[int, ...]
    moe_shared_expert_intermediate_size: int = field(default=0, metadata=about(least=0))
    moe_shared_expert_gate: bool = False
    moe_router_num_groups: int | None = None
    moe_router_group_topk: int | None = None
    moe_router_score_function: str = "softmax"
    moe_router_enable_expert_bias: bool = False


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What distinguishes one decoder layer from another: dense or MoE, its attention window (tokens; None: full)."""

    moe: bool
    window: int | None = None


@dataclass(frozen=True, kw_only=True)
class Model(HashedOnce):
    """A decoder-only transformer.

    ``ffn_hidden_size`` is the width of the *dense* MLP (one of gate/up, not their sum); ``kv_channels`` the head
    dimension; ``vocab_size`` the unpadded vocabulary. ``window_attn_skip_freq`` n: every n-th layer attends to the full
    sequence, the others to ``window_size`` tokens. ``sandwich_norm``: attention and MLP are normalised after, too (four
    norms a layer); ``embedding_layernorm``: the embedding is normalised (BLOOM). ``activation_func_clamp_value``: both
    halves of a gated layer are clamped before the activation; ``rotary_magnitude_scaled``: YaRN multiplies rotated
    queries and keys by a factor other than 1. ``unsupported`` lists, in words, the
    parts of the published architecture that no operator here lowers: such a model can be named and counted, not
    projected.
    """

    name: str
    family: str
    num_layers: int = field(metadata=about(most=10_000))
    hidden_size: int = field(metadata=about(most=1_000_000))
    ffn_hidden_size: int = field(metadata=about(most=10_000_000))
    num_attention_heads: int = field(metadata=about(most=10_000))
    vocab_size: int = field(metadata=about(most=100_000_000))
    num_query_groups: int = field(metadata=about(most=10_000))
    kv_channels: int = field(metadata=about(most=100_000))
    gated_linear_unit: bool = True
    normalization: str = field(
        default="RMSNorm", metadata=about(choices=("RMSNorm", "LayerNorm", "NonParametricLayerNorm"))
    )
    position_embedding_type: str = field(
        default="rope", metadata=about(choices=("rope", "learned_absolute", "alibi", "none"))
    )
    max_position_embeddings: int | None = field(default=None, metadata=about(most=1_000_000_000))
    qk_layernorm: bool = False
    add_bias_linear: bool = False
    add_qkv_bias: bool = False
    untie_embeddings_and_output_weights: bool = True
    window_size: int | None = None
    window_attn_skip_freq: int | None = None
    attention_sinks: bool = False
    activation_func_clamp_value: float | None = None
    rotary_magnitude_scaled: bool = False
    sandwich_norm: bool = False
    embedding_layernorm: bool = False
    mla: MLA | None = None
    moe: MoE | None = None
    mtp_num_layers: int = field(default=0, metadata=about(least=0))
    unsupported: tuple[str, ...] = ()
    source: str = ""

    __hash__ = HashedOnce.__hash__

    @cached_property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """One :class:`LayerKind` per decoder layer, in order (MTP layers are not among them)."""
        freq = self.moe.moe_layer_freq if self.moe else (0,) * self.num_layers
        return tuple(LayerKind(bool(freq[i]), self._window(i)) for i in range(self.num_layers))

    def _window(self, layer: int) -> int | None:
        if self.window_size is None:
            return None
        skip = self.window_attn_skip_freq
        return None if skip and (layer + 1) % skip == 0 else self.window_size

    @property
    def head_dim_qk(self) -> int:
        """Width of one query or key head (MLA: the part without position and the part with it together)."""
        return self.mla.qk_head_dim + self.mla.qk_pos_emb_head_dim if self.mla else self.kv_channels

    @property
    def head_dim_v(self) -> int:
        return self.mla.v_head_dim if self.mla else self.kv_channels
