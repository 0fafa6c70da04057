"""Counts the parameters of a model, part by part: exact integers, from the shapes of its published weights."""

from __future__ import annotations

from dataclasses import replace

from projector.dataclass import dataclass
from projector.workload.layer_kinds import Attention, Parallel, SharedBlock
from projector.workload.model import LayerKind, Model
from projector.workload.sparse import BlockAttention, CompressedAttention


@dataclass(frozen=True, slots=True)
class LayerCount:
    """Parameters (elements) of one decoder layer in all, and those of its routed experts."""

    total: int
    experts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Parameters (elements) of a whole model, unsharded. ``main`` is the published figure: all but those of
    multi-token prediction (``mtp``). ``active``: those of ``main`` that one token passes through, with those of the
    input ``embedding`` and of the output layer."""

    embedding: int
    main: int
    mtp: int
    active: int

    @property
    def total(self) -> int:
        """Returns the parameters that are trained."""
        return self.main + self.mtp


def count(model: Model) -> ParameterCount:
    """Counts ``model``: biases, attention sinks, learned positions, tied embeddings, MLA and query/key norms included.

    The vocabulary is the unpadded one. The load-balancing bias of auxiliary-loss-free routing is a buffer, not counted.
    """
    kinds = (*model.tower_kinds, *model.layer_kinds)
    per_kind = {kind: layer(model, kind) for kind in set(kinds)}
    layers = [per_kind[kind] for kind in kinds]
    embedding = model.vocab_size * model.hidden_size
    narrow = model.vocab_size_per_layer_input * model.num_layers * model.hidden_size_per_layer_input
    learned = model.position_embedding_type == "learned_absolute"
    position = (model.max_position_embeddings or 0) * model.hidden_size if learned else 0
    position += model.num_tokentypes * model.hidden_size
    if model.position_embedding_type == "relative":
        tables = 1 if model.encoder is None else 2
        position += tables * model.relative_attention_num_buckets * model.num_attention_heads
    ends = model.vision.entry + model.vision.exit(model.hidden_size) if model.vision else 0
    head = (embedding if model.untie_embeddings_and_output_weights else 0) + _bert_heads(model)
    unrouted = 0
    if model.moe is not None:
        idle = model.moe.scored - model.moe.moe_router_topk
        unrouted = sum(part.experts for part in layers) * idle // model.moe.scored
    last = 1 + model.embedding_layernorm + (model.encoder is not None)
    norms = _norm(model) * last + _sum_of_streams(model) + _around_layers(model)
    blocks = sum(part.total for part in layers) - _repeated_blocks(model) + ends + norms
    embeddings = embedding + narrow
    main = embeddings + position + blocks + head
    depths = 1 if model.mtp_use_repeated_layer else model.mtp_num_layers
    return ParameterCount(embedding=embeddings, main=main, mtp=depths * _mtp_layer(model), active=main - unrouted)


def _shared_sizes(model: Model) -> tuple[int, int, int, int]:
    """Returns the hidden size, the widths of queries and of keys, and the width of the MLP."""
    d = model.kv_channels
    return model.hidden_size, model.num_attention_heads * d, model.num_query_groups * d, model.ffn_hidden_size


def _repeated_blocks(model: Model) -> int:
    """Counts what the layers have of shared blocks beyond the first use of each."""
    uses = [kind.mixer for kind in model.layer_kinds if isinstance(kind.mixer, SharedBlock)]
    return (len(uses) - len({use.block for use in uses})) * uses[0].shared(*_shared_sizes(model)) if uses else 0


def layer(model: Model, kind: LayerKind) -> LayerCount:
    """Returns the parameters of one decoder layer of ``kind``."""
    model = model.within(kind)
    halves = 1 if model.parallel_residual else sum(part is not None for part in (kind.mixer, kind.mlp)) + kind.cross
    norms = (_norm(model) * (2 if model.sandwich_norm else 1) + _hyper(model) + _mixer_of_residuals(model)) * halves
    norms += _around_layer(model)
    rest = norms + _mixer(model, kind) + (_attention(model) if kind.cross else 0)
    if kind.mlp is None:
        return LayerCount(rest)
    if not kind.moe or model.moe is None:
        return LayerCount(rest + _mlp(model, model.ffn_hidden_size, 1))
    moe = model.moe
    rest += model.hidden_size * moe.scored + (moe.scored if model.add_bias_linear else 0)  # the router
    if moe.moe_shared_expert_intermediate_size:
        rest += _mlp(model, moe.moe_shared_expert_intermediate_size, 1)
    if moe.moe_shared_expert_gate:
        rest += model.hidden_size
    narrow = model
    if moe.moe_latent_size:  # experts between two products of their own
        rest += 2 * model.hidden_size * moe.moe_latent_size
        narrow = replace(model, hidden_size=moe.moe_latent_size)
    experts = _mlp(narrow, moe.moe_ffn_hidden_size, moe.num_experts)
    return LayerCount(rest + experts, experts)


def _mixer(model: Model, kind: LayerKind) -> int:
    if kind.mixer is None:
        return 0
    if isinstance(kind.mixer, CompressedAttention):
        assert model.compressed is not None
        heads, width = model.num_attention_heads, model.kv_channels
        return model.compressed.parameters(kind.mixer.ratio, model.hidden_size, heads, width)
    if isinstance(kind.mixer, BlockAttention):
        return _attention(model) + kind.mixer.parameters(model.hidden_size, model.num_attention_heads)
    if isinstance(kind.mixer, Parallel):
        return _attention(model) + kind.mixer.mamba.parameters(model.hidden_size)
    if isinstance(kind.mixer, SharedBlock):
        sizes = _shared_sizes(model)
        return kind.mixer.shared(*sizes) + kind.mixer.own(*sizes)
    if not isinstance(kind.mixer, Attention):
        return kind.mixer.parameters(model.hidden_size)
    if model.mla is not None:
        return _mla(model)
    return _attention(model, reuses_kv=kind.mixer.reuses_kv and not model.num_kv_shared_layers)


def _hyper(model: Model) -> int:
    """Counts hyper-connections of a sub-layer (arXiv:2512.24880): a projection of all streams, its biases, three scales."""
    n = model.hyper_connections
    return n and (n * n + 2 * n) * (n * model.hidden_size + 1) + 3


def _mixer_of_residuals(model: Model) -> int:
    """Counts a norm and a vector over one candidate (attention residuals)."""
    return 2 * model.hidden_size if model.attn_res_block_size else 0


def _sum_of_streams(model: Model) -> int:
    """Counts the weighted sum of the streams at the end: a projection to one number for each, its biases, a scale."""
    n = model.hyper_connections
    return (n and n * (n * model.hidden_size + 1) + 1) + _mixer_of_residuals(model)


def _around_layer(model: Model) -> int:
    """Counts AltUp (router with its norm, scale, maps), LAuReL and the layer's own embedding (two products, a norm)."""
    n, h = model.altup_num_inputs, model.hidden_size
    rank, narrow = model.laurel_rank, model.hidden_size_per_layer_input
    altup = n and 2 * h + n * h + n**2 + n**3
    return altup + sum(2 * h * width + _norm(model) for width in (rank, narrow) if width)


def _around_layers(model: Model) -> int:
    """Counts products of the streams at both ends; the projection to the embeddings of all layers and its norm."""
    n, h, width = model.altup_num_inputs, model.hidden_size, model.hidden_size_per_layer_input
    return (2 * (n - 1) * h**2 if n else 0) + (h * model.num_layers + 1) * width


def _bert_heads(model: Model) -> int:
    """Counts linears with biases for masked words and the next sentence (arXiv:1810.04805), a bias of each word."""
    h, square = model.hidden_size, model.hidden_size * (model.hidden_size + 1)
    masked = square + model.vocab_size if model.masked_lm_head else 0
    return masked + (square + 2 * (h + 1) if model.bert_binary_head else 0)


def _norm(model: Model, width: int | None = None) -> int:
    """Counts one normalisation over ``width`` (None: the hidden size): a weight, for LayerNorm a bias too, nothing when it
    is not parametric (OLMo)."""
    per_feature = {"RMSNorm": 1, "LayerNorm": 2, "NonParametricLayerNorm": 0}
    return per_feature.get(model.normalization, 1) * (model.hidden_size if width is None else width)


def _mlp(model: Model, width: int, copies: int) -> int:
    up = 2 * width if model.gated_linear_unit else width
    weights = model.hidden_size * (up + width)
    biases = up + model.hidden_size if model.add_bias_linear else 0
    return copies * (weights + biases)


def _attention(model: Model, *, reuses_kv: bool = False) -> int:
    q = model.num_attention_heads * model.kv_channels
    products = 0 if reuses_kv else 1 if model.attention_k_eq_v else 2
    kv = products * model.num_query_groups * model.kv_channels
    weights = model.hidden_size * ((3 if model.attention_output_gate else 2) * q + kv)
    if rank := model.share_q_dim:  # to a latent with a norm of its own, and up from it
        weights += rank * (model.hidden_size + q) + _norm(model, rank) - model.hidden_size * q
    biases = q + kv if model.add_bias_linear or model.add_qkv_bias else 0
    biases += model.hidden_size if model.add_bias_linear else 0
    sinks = model.num_attention_heads if model.attention_sinks else 0
    return weights + biases + sinks + (2 * _norm(model, model.kv_channels) if model.qk_layernorm else 0)


def _mla(model: Model) -> int:
    """Counts MLA (arXiv:2405.04434, appendix C): down- and up-projections, norms of the latents, output projection."""
    mla = model.mla
    assert mla is not None
    heads, hidden = model.num_attention_heads, model.hidden_size
    q_width = heads * (mla.qk_head_dim + mla.qk_pos_emb_head_dim)
    if mla.q_lora_rank is None:
        q = hidden * q_width
    else:
        q = hidden * mla.q_lora_rank + _norm(model, mla.q_lora_rank) + mla.q_lora_rank * q_width
    kv_down = hidden * (mla.kv_lora_rank + mla.qk_pos_emb_head_dim) + _norm(model, mla.kv_lora_rank)
    kv_up = mla.kv_lora_rank * heads * (mla.qk_head_dim + mla.v_head_dim)
    chooses = model.indexer.parameters(hidden, mla.q_lora_rank or hidden) if model.indexer else 0
    outputs = 2 if mla.mla_use_output_gate else 1
    return q + kv_down + kv_up + outputs * heads * mla.v_head_dim * hidden + chooses


def _mtp_layer(model: Model) -> int:
    """Returns one multi-token-prediction depth (arXiv:2412.19437, 2.2): two norms, a 2H→H projection, a layer, a final
    norm."""
    if not model.mtp_num_layers:
        return 0
    return 2 * model.hidden_size**2 + 3 * _norm(model) + _sum_of_streams(model) + layer(model, model.mtp_kind).total
