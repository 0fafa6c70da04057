"""Parameter counts of a model, part by part: exact integers, from the shapes of its published weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

from projector.workload.model import LayerKind, Model

__all__ = ["LayerCount", "ParameterCount", "count", "layer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCount:
    """Parameters (elements) of one decoder layer. ``experts`` holds all routed experts, ``shared`` the shared ones."""

    attention: int
    mlp: int = 0
    router: int = 0
    experts: int = 0
    shared: int = 0
    norms: int = 0

    @property
    def total(self) -> int:
        return self.attention + self.mlp + self.router + self.experts + self.shared + self.norms

    @property
    def dense(self) -> int:
        """What every rank of an expert-parallel group holds: all but the routed experts."""
        return self.total - self.experts


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Parameters (elements) of a whole model, unsharded.

    ``head`` is 0 when the output layer shares the embedding. ``main`` is the published figure (no multi-token
    prediction), ``total`` what is trained (with it). ``active``: those that one token passes through in ``main``,
    embedding and output included.
    """

    embedding: int
    position: int
    attention: int
    mlp: int
    router: int
    experts: int
    shared: int
    norms: int
    head: int
    mtp: int
    active: int

    @property
    def main(self) -> int:
        blocks = self.attention + self.mlp + self.router + self.experts + self.shared + self.norms
        return self.embedding + self.position + blocks + self.head

    @property
    def total(self) -> int:
        return self.main + self.mtp

    @property
    def non_embedding(self) -> int:
        return self.main - self.embedding - self.position - self.head


def count(model: Model) -> ParameterCount:
    """Count ``model``: biases, attention sinks, learned positions, tied embeddings, MLA and query/key norms included.

    The vocabulary is the unpadded one. The load-balancing bias of auxiliary-loss-free routing is a buffer, not counted.
    """
    kinds = model.layer_kinds
    per_kind = {kind: layer(model, kind) for kind in set(kinds)}
    layers = [per_kind[kind] for kind in kinds]
    embedding = model.vocab_size * model.hidden_size
    learned = model.position_embedding_type == "learned_absolute"
    position = (model.max_position_embeddings or 0) * model.hidden_size if learned else 0
    head = embedding if model.untie_embeddings_and_output_weights else 0
    unrouted = 0
    if model.moe is not None:
        idle = model.moe.num_experts - model.moe.moe_router_topk
        unrouted = sum(part.experts for part in layers) * idle // model.moe.num_experts
    norms = sum(part.norms for part in layers) + _norm(model) * (2 if model.embedding_layernorm else 1)
    whole = ParameterCount(
        embedding=embedding,
        position=position,
        attention=sum(part.attention for part in layers),
        mlp=sum(part.mlp for part in layers),
        router=sum(part.router for part in layers),
        experts=sum(part.experts for part in layers),
        shared=sum(part.shared for part in layers),
        norms=norms,
        head=head,
        mtp=model.mtp_num_layers * _mtp_layer(model),
        active=0,
    )
    return replace(whole, active=whole.main - unrouted)


def layer(model: Model, kind: LayerKind) -> LayerCount:
    """Parameters of one decoder layer of ``kind``."""
    norms = _norm(model) * (4 if model.sandwich_norm else 2)
    attention = _mla(model) if model.mla is not None else _attention(model)
    if not kind.moe or model.moe is None:
        return LayerCount(attention=attention, mlp=_mlp(model, model.ffn_hidden_size, 1), norms=norms)
    moe = model.moe
    bias = moe.num_experts if model.add_bias_linear else 0
    gate = model.hidden_size if moe.moe_shared_expert_gate else 0
    width = moe.moe_shared_expert_intermediate_size
    return LayerCount(
        attention=attention,
        router=model.hidden_size * moe.num_experts + bias,
        experts=_mlp(model, moe.moe_ffn_hidden_size, moe.num_experts),
        shared=(_mlp(model, width, 1) if width else 0) + gate,
        norms=norms,
    )


def _norm(model: Model) -> int:
    """One normalisation: a weight, for LayerNorm a bias too, nothing when it is not parametric (OLMo)."""
    per_feature = {"RMSNorm": 1, "LayerNorm": 2, "NonParametricLayerNorm": 0}
    return per_feature.get(model.normalization, 1) * model.hidden_size


def _mlp(model: Model, width: int, copies: int) -> int:
    up = 2 * width if model.gated_linear_unit else width
    weights = model.hidden_size * (up + width)
    biases = up + model.hidden_size if model.add_bias_linear else 0
    return copies * (weights + biases)


def _attention(model: Model) -> int:
    q = model.num_attention_heads * model.kv_channels
    kv = 2 * model.num_query_groups * model.kv_channels
    weights = model.hidden_size * (2 * q + kv)
    biases = q + kv if model.add_bias_linear or model.add_qkv_bias else 0
    biases += model.hidden_size if model.add_bias_linear else 0
    sinks = model.num_attention_heads if model.attention_sinks else 0
    return weights + biases + sinks + (2 * model.kv_channels if model.qk_layernorm else 0)


def _mla(model: Model) -> int:
    """arXiv:2405.04434, appendix C: down- and up-projections, the two norms of the latents, the output projection."""
    mla = model.mla
    assert mla is not None
    heads, hidden = model.num_attention_heads, model.hidden_size
    q_width = heads * (mla.qk_head_dim + mla.qk_pos_emb_head_dim)
    if mla.q_lora_rank is None:
        q = hidden * q_width
    else:
        q = hidden * mla.q_lora_rank + mla.q_lora_rank + mla.q_lora_rank * q_width
    kv_down = hidden * (mla.kv_lora_rank + mla.qk_pos_emb_head_dim) + mla.kv_lora_rank
    kv_up = mla.kv_lora_rank * heads * (mla.qk_head_dim + mla.v_head_dim)
    return q + kv_down + kv_up + heads * mla.v_head_dim * hidden


def _mtp_layer(model: Model) -> int:
    """One multi-token-prediction depth (arXiv:2412.19437, 2.2): two norms, a 2H→H projection, a layer, a final norm."""
    if not model.mtp_num_layers:
        return 0
    return 2 * model.hidden_size**2 + 3 * _norm(model) + layer(model, model.layer_kinds[-1]).total
