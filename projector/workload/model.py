"""Describes the architecture that is trained. Field names are Megatron-LM's; values are those of the published model."""

from __future__ import annotations

from dataclasses import field, replace
from functools import cached_property
from typing import Any

from projector.dataclass import dataclass
from projector.memo import HashedOnce
from projector.workload import layer_pattern
from projector.workload.field_facts import about
from projector.workload.layer_kinds import (
    Attention,
    Dense,
    Experts,
    GatedDeltaNet,
    KimiDelta,
    LayerKind,
    Lightning,
    Mamba1,
    Mamba2,
    Mixer,
    Mlp,
    Parallel,
    PerLayer,
    Recurrent,
    SharedBlock,
    SharedBlocks,
    ShortConvolution,
    decoder,
)
from projector.workload.sparse import BlockAttention, Compressed, CompressedAttention, FullAttention, Indexer
from projector.workload.towers import Encoder, Vision

__all__ = ["MLA", "LayerKind", "MoE", "Model", "PerLayer", "decoder"]


@dataclass(frozen=True, kw_only=True)
class MLA:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434). ``q_lora_rank`` None: queries are not compressed.
    ``mla_use_output_gate``: the output times the sigmoid of a projection as wide (Kimi K3)."""

    kv_lora_rank: int
    qk_head_dim: int
    qk_pos_emb_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    mla_use_output_gate: bool = False


@dataclass(frozen=True, kw_only=True)
class MoE:
    """Routed experts of a model. ``moe_layer_freq`` holds one 0/1 per decoder layer (1: this layer has experts).

    ``moe_latent_size``: width in which routed experts work, between two projections (arXiv:2512.20848, LatentMoE).
    ``zero_expert_num``: experts beside them that return their input (LongCat-Flash, arXiv:2509.01322, section 2.1).
    """

    num_experts: int = field(metadata=about(most=100_000))
    moe_router_topk: int
    moe_ffn_hidden_size: int = field(metadata=about(least=0))
    moe_layer_freq: tuple[int, ...]
    moe_shared_expert_intermediate_size: int = field(default=0, metadata=about(least=0))
    moe_shared_expert_gate: bool = False
    moe_latent_size: int | None = None
    moe_router_num_groups: int | None = None
    moe_router_group_topk: int | None = None
    moe_router_score_function: str = "softmax"
    moe_router_enable_expert_bias: bool = False
    zero_expert_num: int = field(default=0, metadata=about(least=0, most=100_000))

    @property
    def scored(self) -> int:
        """Returns the experts that the router scores."""
        return self.num_experts + self.zero_expert_num

    @property
    def computed_topk(self) -> float:
        """Returns the experts of a token that compute: their even share of the chosen ones (a token of LongCat-Flash
        has 8 of 12, to which its router is steered: arXiv:2509.01322, section 2.1.1)."""
        return self.moe_router_topk * self.num_experts / self.scored if self.zero_expert_num else self.moe_router_topk


@dataclass(frozen=True, kw_only=True)
class Model(HashedOnce):
    """A transformer: a decoder, or an encoder that masks nothing (``causal`` false). ``encoder``: a stack before it to whose
    output each of its layers attends; ``relative_attention_num_buckets``: rows of each stack's table of relative positions;
    ``vision``: a tower whose images stand among its tokens.

    ``ffn_hidden_size`` is the width of the *dense* MLP (one of gate/up, not their sum); ``kv_channels`` the head
    dimension; ``vocab_size`` the unpadded vocabulary (0: no embedding, no output layer and no loss).
    ``window_attn_skip_freq`` n: every n-th layer attends to the full sequence, the others to ``window_size`` tokens.
    ``sandwich_norm``: attention and MLP are normalised after, too (four norms a layer); ``embedding_layernorm``:
    the embedding is normalised (BLOOM); ``num_tokentypes``: embeddings of segments (BERT); ``masked_lm_head``: a linear and
    an activation before the last norm, and a bias after the output layer (BERT); ``bert_binary_head``: a linear on the first
    token and one to two classes (next sentence);
    ``parallel_residual``: attention and MLP side by side on one norm (PaLM, Command A).
    ``quick_geglu``: gated by x·σ(1.702·x), not by SiLU;
    ``activation_func_clamp_value``: both halves of a gated layer are clamped before the activation;
    ``activation_situ_beta``: β·tanh(x/β)·σ(x) of a gate in place of SiLU, and a tanh around its other half (Kimi K3);
    ``composed_gelu``: GELU by tanh, written operator by operator (transformers' gelu_new);
    ``rotary_magnitude_scaled``: YaRN multiplies rotated queries and keys by a factor other than 1;
    ``attention_output_gate``: the output of softmax attention times the sigmoid of a projection as wide as queries.
    ``share_q_dim``: width of a latent from which queries are made (Step-3's multi-matrix factorisation, arXiv:2412.19255);
    ``hybrid_layer_pattern``: a letter a layer, which is a mixer or an MLP alone; ``mixer_pattern``: a letter a
    layer for its mixer alone (see :mod:`projector.workload.layer_pattern`); ``per_layer``: sizes that differ from
    layer to layer; ``full_attention``: what layers without a window have otherwise; ``attention_k_eq_v``: values are
    the keys, without a product of their own; ``cla_share_factor``: layers of which the first makes keys and values for
    all (cross-layer attention, arXiv:2405.12981); ``indexer``: latent attention to keys that it chooses (DeepSeek-V3.2);
    ``num_kv_shared_layers``: last layers that read keys and values, after norm and rotation, of the last layer before them
    with their window (Gemma 3n); ``v_layernorm``: values are normed, too, where queries and keys are, without a weight;
    ``sparse_activation``: a multiple of its own mean and deviation is taken from a gate and the rest cut at zero;
    ``altup_num_inputs``: streams of which a layer reads one (AltUp), 0 for none; ``laurel_rank``: of a narrow product beside
    attention (LAuReL); ``hidden_size_per_layer_input``: width of an embedding of every layer's own, with
    ``vocab_size_per_layer_input`` rows;
    ``compressed``: compressed sparse attention of DeepSeek-V4; ``hyper_connections``: streams of the residual (mHC), 0
    for one that is added to; ``attn_res_block_size``: layers of a checkpoint (attention residuals), 0 for none,
    ``residual_candidates``: of the layer at hand; ``mamba`` and the fields after it: sizes of mixers by their letters;
    ``mtp_use_repeated_layer``: all depths of prediction share their weights. ``unsupported`` lists, in words, the parts
    of the published architecture that no operator here lowers: such a model can be named and counted, not projected;
    ``unmodelled`` those that are projected as something near: told, not refused.
    """

    name: str
    family: str
    num_layers: int = field(metadata=about(most=10_000))
    hidden_size: int = field(metadata=about(most=1_000_000))
    ffn_hidden_size: int = field(metadata=about(most=10_000_000))
    num_attention_heads: int = field(metadata=about(most=10_000))
    vocab_size: int = field(metadata=about(least=0, most=100_000_000))
    num_query_groups: int = field(metadata=about(most=10_000))
    kv_channels: int = field(metadata=about(most=100_000))
    gated_linear_unit: bool = True
    normalization: str = field(
        default="RMSNorm", metadata=about(choices=("RMSNorm", "LayerNorm", "NonParametricLayerNorm"))
    )
    position_embedding_type: str = field(
        default="rope", metadata=about(choices=("rope", "learned_absolute", "alibi", "relative", "none"))
    )
    max_position_embeddings: int | None = field(default=None, metadata=about(most=1_000_000_000))
    causal: bool = True
    qk_layernorm: bool = False
    v_layernorm: bool = False
    add_bias_linear: bool = False
    add_qkv_bias: bool = False
    untie_embeddings_and_output_weights: bool = True
    window_size: int | None = None
    window_attn_skip_freq: int | None = None
    attention_sinks: bool = False
    attention_output_gate: bool = False
    share_q_dim: int | None = None
    quick_geglu: bool = False
    sparse_activation: bool = False
    activation_func_clamp_value: float | None = None
    activation_situ_beta: float | None = None
    composed_gelu: bool = False
    rotary_magnitude_scaled: bool = False
    sandwich_norm: bool = False
    embedding_layernorm: bool = False
    num_tokentypes: int = field(default=0, metadata=about(least=0, most=1_000_000))
    masked_lm_head: bool = False
    bert_binary_head: bool = False
    parallel_residual: bool = False
    mla: MLA | None = None
    moe: MoE | None = None
    mtp_num_layers: int = field(default=0, metadata=about(least=0))
    mtp_use_repeated_layer: bool = False
    hybrid_layer_pattern: str | None = None
    mixer_pattern: str | None = None
    per_layer: PerLayer | None = None
    mamba: Mamba2 | None = None
    mamba1: Mamba1 | None = None
    shared_blocks: SharedBlocks | None = None
    block_attention: BlockAttention | None = None
    gdn: GatedDeltaNet | None = None
    kda: KimiDelta | None = None
    lightning: Lightning | None = None
    short_convolution: ShortConvolution | None = None
    full_attention: FullAttention | None = None
    attention_k_eq_v: bool = False
    cla_share_factor: int = field(default=1, metadata=about(most=10_000))
    indexer: Indexer | None = None
    compressed: Compressed | None = None
    num_kv_shared_layers: int = field(default=0, metadata=about(least=0))
    hyper_connections: int = field(default=0, metadata=about(least=0, most=64))
    altup_num_inputs: int = field(default=0, metadata=about(least=0, most=64))
    laurel_rank: int = field(default=0, metadata=about(least=0))
    hidden_size_per_layer_input: int = field(default=0, metadata=about(least=0))
    vocab_size_per_layer_input: int = field(default=0, metadata=about(least=0, most=100_000_000))
    attn_res_block_size: int = field(default=0, metadata=about(least=0))
    residual_candidates: int = 1
    encoder: Encoder | None = None
    vision: Vision | None = None
    relative_attention_num_buckets: int = 32
    unsupported: tuple[str, ...] = ()
    unmodelled: tuple[str, ...] = ()
    source: str = ""

    __hash__ = HashedOnce.__hash__

    @cached_property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Returns one :class:`LayerKind` per decoder layer, in order (MTP layers are not among them)."""
        if not self.attn_res_block_size:
            return self._beside_encoder(self._kinds())
        return tuple(replace(kind, residual_candidates=self.candidates(i)) for i, kind in enumerate(self._kinds()))

    @cached_property
    def tower_kinds(self) -> tuple[LayerKind, ...]:
        """Returns the kinds of the layers of an encoder or a vision tower, which stand before these on the first stage."""
        vision = self.vision and replace(self.vision, output_size=self.vision.output_size or self.hidden_size)
        tower = self.encoder or vision
        if tower is None:
            return ()
        kinds = [LayerKind(tower=tower)] * tower.num_layers
        kinds[0] = replace(kinds[0], first=True)
        return (*kinds[:-1], replace(kinds[-1], last=True))

    def _beside_encoder(self, kinds: tuple[LayerKind, ...]) -> tuple[LayerKind, ...]:
        """Returns ``kinds`` beside an encoder: each attends to it, the first makes relative positions for all."""
        if self.encoder is not None:
            kinds = tuple(replace(kind, cross=True) for kind in kinds)
        relative = self.position_embedding_type == "relative"
        return (replace(kinds[0], first=True), *kinds[1:]) if relative and kinds else kinds

    def candidates(self, layer: int) -> int:
        """Returns the number of candidates before ``layer`` (attention residuals), the running sum and the checkpoints; 1
        without them."""
        block = self.attn_res_block_size
        return 1 + -(-layer // block) if block else 1

    def _kinds(self) -> tuple[LayerKind, ...]:
        if self.hybrid_layer_pattern is not None:
            letters = layer_pattern.expand(self.hybrid_layer_pattern)
            return tuple(self._single_module(each, letters[:i].count("Z")) for i, each in enumerate(letters))
        freq = self.moe.moe_layer_freq if self.moe else (0,) * self.num_layers
        shares = self.cla_share_factor > 1 or self.num_kv_shared_layers
        if not any((self.mixer_pattern, self.per_layer, self.full_attention, self.compressed, shares)):
            return tuple(decoder(bool(freq[i]), self._window(i)) for i in range(self.num_layers))
        letters = layer_pattern.expand(self.mixer_pattern or "") or "*" * self.num_layers
        mixers = [self._mixer(letter, i) for i, letter in enumerate(letters)]
        return tuple(LayerKind(mixer, self._mlp(bool(freq[i]), i)) for i, mixer in enumerate(mixers))

    @cached_property
    def uniform(self) -> bool:
        """Returns whether every layer has attention and an MLP or experts, none a recurrence or one of both alone."""
        kinds = dict.fromkeys(self.layer_kinds)
        return not any(kind.mlp is None or isinstance(kind.mixer, Recurrent | BlockAttention | None) for kind in kinds)

    @cached_property
    def mtp_kind(self) -> LayerKind:
        """Returns the layer inside a depth of multi-token prediction: that of the last decoder layer, with both of its
        halves."""
        if self.compressed is not None:
            return LayerKind(CompressedAttention(ratio=self._ratio(self.num_layers)), self.layer_kinds[-1].mlp)
        if self.hybrid_layer_pattern is None:
            return self.layer_kinds[-1]
        return LayerKind(Attention(latent=self.mla is not None), Experts() if self.moe else Dense())

    def within(self, kind: LayerKind) -> Model:
        """Returns the model as a layer of ``kind`` sees it: with the heads and widths of that layer."""
        if isinstance(kind.tower, Vision):
            return Model(name=self.name, family=self.family, **kind.tower.sizes())
        differs: dict[str, Any] = kind.differs()
        return replace(self, **differs) if differs else self

    def _single_module(self, letter: str, shared: int) -> LayerKind:
        """Returns the layer of a letter of a hybrid pattern. ``shared``: layers before it that have shared blocks."""
        if letter == "Z" and self.mamba is not None and self.shared_blocks is not None:
            block = shared % self.shared_blocks.num_mem_blocks
            return LayerKind(SharedBlock(mamba=self.mamba, sizes=self.shared_blocks, block=block), None)
        if letter in layer_pattern.MIXERS:
            return LayerKind(self._mixer(letter, None), None)
        return LayerKind(None, Experts() if letter == "E" else Dense())

    def _mixer(self, letter: str, layer: int | None) -> Mixer | None:
        if letter not in "*+":
            recurrent: Mixer | None = getattr(self, layer_pattern.SIZES[letter])
            return Parallel(mamba=recurrent) if letter == "P" and isinstance(recurrent, Mamba2) else recurrent
        if self.compressed is not None:
            return CompressedAttention(ratio=self._ratio(layer or 0))
        sizes = self._own(layer, "num_attention_heads", "num_query_groups", "kv_channels")
        if sizes.get("num_attention_heads") == 0:
            return None
        window = None if layer is None else self._window(layer)
        if self.full_attention is not None and not window:
            sizes |= self.full_attention.differs()
        latent = letter == "+" if self.mla is not None or letter == "+" else None
        reuses = layer is not None and self.kv_source(layer) is not None
        return Attention(window=window, latent=latent, reuses_kv=reuses, **sizes)

    def kv_source(self, layer: int) -> int | None:
        """Returns the layer whose keys and values ``layer`` reads (None: it makes them): the first of its group, or the
        last one with its window before the layers that share them."""
        if layer % self.cla_share_factor:
            return layer - layer % self.cla_share_factor
        first = self.num_layers - self.num_kv_shared_layers
        if layer < first:
            return None
        window = self._window(layer)
        return max((i for i in range(first) if self._window(i) == window), default=None)

    def _ratio(self, layer: int) -> int:
        """Returns the tokens of a compressed entry of one layer; 0 (a window alone) for the depths of prediction."""
        ratios = self.compressed.compress_ratios if self.compressed else ()
        return ratios[layer] if layer < len(ratios) else 0

    def _mlp(self, moe: bool, layer: int) -> Mlp | None:
        if moe:
            return Experts()
        sizes = self._own(layer, "ffn_hidden_size", "sparse_activation")
        return None if sizes.get("ffn_hidden_size") == 0 else Dense(**sizes)

    def _own(self, layer: int | None, *names: str) -> dict[str, Any]:
        """Returns the sizes of one layer that differ from the model's."""
        lists = {name: getattr(self.per_layer, name) for name in names} if self.per_layer and layer is not None else {}
        return {
            name: values[layer] for name, values in lists.items() if values and values[layer] != getattr(self, name)
        }

    def _window(self, layer: int) -> int | None:
        if self.per_layer and self.per_layer.window_size:
            return self.per_layer.window_size[layer] or None
        if self.window_size is None:
            return None
        skip = self.window_attn_skip_freq
        return None if skip and (layer + 1) % skip == 0 else self.window_size

    @property
    def residual_width(self) -> int:
        """Returns the elements of a token that pass from layer to layer."""
        return self.hidden_size * max(1, self.hyper_connections, self.altup_num_inputs)

    @property
    def head_dim_qk(self) -> int:
        """Returns the width of one query or key head (MLA: the part without position and the part with it together)."""
        return self.mla.qk_head_dim + self.mla.qk_pos_emb_head_dim if self.mla else self.kv_channels

    @property
    def head_dim_v(self) -> int:
        return self.mla.v_head_dim if self.mla else self.kv_channels
