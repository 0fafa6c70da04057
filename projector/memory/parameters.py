"""Elements that one rank of a pipeline stage holds: dense and expert apart, and the shapes of its matrices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from projector.frameworks.types import Resolved
from projector.memory.sizes import sizes
from projector.workload.layout import Chunk
from projector.workload.model import LayerKind, Model
from projector.workload.recipe import Recipe

__all__ = ["StageParameters", "Weights", "embedding", "head", "layer", "mtp", "stage"]

Shape = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of one module on one rank, elements.

    ``dense`` and ``expert`` count everything; ``linear`` and ``expert_linear`` the matrices of quantisable linear
    layers among them; ``shapes`` those matrices' (rows, columns), for caches that exist once per distinct shape.
    """

    dense: float
    expert: float = 0.0
    linear: float = 0.0
    expert_linear: float = 0.0
    shapes: frozenset[Shape] = frozenset()
    expert_shapes: frozenset[Shape] = frozenset()

    @property
    def total(self) -> float:
        return self.dense + self.expert


@dataclass(frozen=True, slots=True)
class StageParameters:
    """All weights of one pipeline rank. ``unit``: the largest layer (one unit of sharded data parallelism);
    ``embedding`` and ``head``: the units at the ends of the model, where the rank holds them; ``adapters``: LoRA."""

    weights: Weights
    unit: float
    embedding: float
    head: float
    adapters: float = 0.0


def stage(resolved: Resolved, chunks: Iterable[Chunk]) -> StageParameters:
    """Weights of one rank that holds these model chunks (all of them on the same pipeline rank)."""
    model = resolved.workload.model
    kinds = model.layer_kinds
    unit = 0.0
    embeds = heads = mtps = 0
    count: dict[bool, int] = {}
    for chunk in chunks:
        for index in chunk.layers:
            count[kinds[index].moe] = count.get(kinds[index].moe, 0) + 1
        embeds += chunk.embedding
        heads += chunk.head
        mtps += chunk.mtp
    parts: list[Weights] = []
    for moe, number in count.items():
        one = layer(resolved, LayerKind(moe))
        parts.append(_scaled(one, number))
        unit = max(unit, one.total)
    if mtps:
        parts.append(_scaled(mtp(resolved), mtps))
        unit = max(unit, mtp(resolved).total)
    # prediction modules embed their tokens themselves; tied weights exist once on a rank that holds both ends
    first = embedding(resolved) if embeds or mtps else Weights(0.0)
    shared = not model.untie_embeddings_and_output_weights and first.total > 0
    last = head(resolved, weight=not shared) if heads else Weights(0.0)
    layers = sum(count.values()) + mtps
    adapters = layers * _adapter_elements(resolved)
    return StageParameters(_sum([*parts, first, last]), unit, first.total, last.total, adapters)


@lru_cache(maxsize=1024)
def layer(resolved: Resolved, kind: LayerKind) -> Weights:
    """One decoder layer (attention, MLP or experts, norms)."""
    workload = resolved.workload
    model, recipe = workload.model, workload.recipe
    matrices = _attention(model, recipe)
    norm = model.hidden_size * (2 if model.normalization == "LayerNorm" else 1)
    small = 2.0 * norm + _attention_vectors(model, recipe)
    experts: list[tuple[Shape, float]] = []
    if kind.moe:
        shared, experts, router = _moe(model, recipe)
        matrices += shared
        small += router
    else:
        matrices += _mlp(model.hidden_size, model.ffn_hidden_size / recipe.tp, model.gated_linear_unit)
        if model.add_bias_linear:
            small += (2 if model.gated_linear_unit else 1) * model.ffn_hidden_size / recipe.tp + model.hidden_size
    linear = sum(r * c for r, c in matrices)
    expert_linear = sum(r * c * n for (r, c), n in experts)
    return Weights(
        dense=linear + small,
        expert=expert_linear,
        linear=linear,
        expert_linear=expert_linear,
        shapes=frozenset(matrices),
        expert_shapes=frozenset(shape for shape, _ in experts),
    )


def embedding(resolved: Resolved) -> Weights:
    """Word embedding, padded and split over TP; learned positions are replicated."""
    workload = resolved.workload
    model = workload.model
    count = sizes(resolved).vocab * model.hidden_size
    if model.position_embedding_type in ("learned_absolute", "learned"):
        count += (model.max_position_embeddings or workload.recipe.seq_length) * model.hidden_size
    return Weights(dense=count)


def head(resolved: Resolved, weight: bool = True) -> Weights:
    """Final norm and output layer; ``weight`` False where a tied embedding of the same rank serves as the matrix.

    The output layer is no quantised linear, but it shares the cache of placeholder gradients (its shape is listed).
    """
    model = resolved.workload.model
    norm = model.hidden_size * (2.0 if model.normalization == "LayerNorm" else 1.0)
    rows = sizes(resolved).vocab
    matrix = rows * model.hidden_size if weight else 0.0
    return Weights(dense=norm + matrix, shapes=frozenset({(rows, float(model.hidden_size))}))


def mtp(resolved: Resolved) -> Weights:
    """One multi-token-prediction module: a layer of the last kind, two norms, the joining matrix and a final norm.

    Embedding and output weights are shared (Megatron-LM core/transformer/multi_token_prediction.py).
    """
    workload = resolved.workload
    model = workload.model
    h = float(model.hidden_size)
    joining = (h / workload.recipe.tp, 2 * h)
    norms = 3 * h * (2 if model.normalization == "LayerNorm" else 1)
    own = Weights(dense=norms + joining[0] * joining[1], linear=joining[0] * joining[1], shapes=frozenset({joining}))
    return _sum([layer(resolved, LayerKind(model.layer_kinds[-1].moe)), own])


def _attention(model: Model, recipe: Recipe) -> list[Shape]:
    h, n, t = float(model.hidden_size), model.num_attention_heads, recipe.tp
    if model.mla is None:
        d = model.kv_channels
        # with fewer key/value groups than TP ranks, each rank keeps a copy of one group
        return [((n + 2 * max(model.num_query_groups, t)) * d / t, h), (h, n * d / t)]
    mla = model.mla
    latent, rope = float(mla.kv_lora_rank), mla.qk_pos_emb_head_dim
    q_width = n * (mla.qk_head_dim + rope) / t
    # the down projections are replicated on every TP rank
    q = [(q_width, h)] if mla.q_lora_rank is None else [(float(mla.q_lora_rank), h), (q_width, float(mla.q_lora_rank))]
    return [
        *q,
        (latent + rope, h),
        (n * (mla.qk_head_dim + mla.v_head_dim) / t, latent),
        (h, n * mla.v_head_dim / t),
    ]


def _attention_vectors(model: Model, recipe: Recipe) -> float:
    if model.mla is not None:
        return float((model.mla.q_lora_rank or 0) + model.mla.kv_lora_rank)
    n, g, d, t = model.num_attention_heads, model.num_query_groups, model.kv_channels, recipe.tp
    vectors = 2.0 * d if model.qk_layernorm else 0.0
    if model.add_qkv_bias or model.add_bias_linear:
        vectors += (n + 2 * max(g, t)) * d / t
    if model.add_bias_linear:
        vectors += model.hidden_size
    return vectors + (n / t if model.attention_sinks else 0.0)


def _mlp(hidden: float, ffn: float, gated: bool) -> list[Shape]:
    return [((2 if gated else 1) * ffn, float(hidden)), (float(hidden), ffn)]


def _moe(model: Model, recipe: Recipe) -> tuple[list[Shape], list[tuple[Shape, float]], float]:
    """Shared-expert matrices, (expert matrix, copies on the rank), and the elements of the router."""
    moe = model.moe
    assert moe is not None
    h, gated = model.hidden_size, model.gated_linear_unit
    local = moe.num_experts / recipe.ep
    experts = [(shape, local) for shape in _mlp(h, moe.moe_ffn_hidden_size / recipe.etp, gated)]
    shared: list[Shape] = []
    router = float(moe.num_experts * h)
    if moe.moe_shared_expert_intermediate_size:
        shared = _mlp(h, moe.moe_shared_expert_intermediate_size / recipe.tp, gated)
        router += h if moe.moe_shared_expert_gate else 0
    return shared, experts, router


def _adapter_elements(resolved: Resolved) -> float:
    """Adapter weights of one layer on one rank: dim·(inputs + outputs) of every targeted matrix, split over TP."""
    workload = resolved.workload
    model, recipe = workload.model, workload.recipe
    if recipe.lora is None:
        return 0.0
    h, t = model.hidden_size, recipe.tp
    qkv = (model.num_attention_heads + 2 * model.num_query_groups) * model.head_dim_qk
    out = model.num_attention_heads * model.head_dim_v
    fc1 = (2 if model.gated_linear_unit else 1) * model.ffn_hidden_size
    widths = {
        "linear_qkv": h + qkv,
        "linear_proj": h + out,
        "linear_fc1": h + fc1,
        "linear_fc2": h + model.ffn_hidden_size,
    }
    return recipe.lora.dim * sum(widths.get(name, 0) for name in recipe.lora.targets) / t


def _scaled(w: Weights, times: int) -> Weights:
    return Weights(
        w.dense * times, w.expert * times, w.linear * times, w.expert_linear * times, w.shapes, w.expert_shapes
    )


def _sum(parts: Iterable[Weights]) -> Weights:
    parts = list(parts)
    return Weights(
        dense=sum(p.dense for p in parts),
        expert=sum(p.expert for p in parts),
        linear=sum(p.linear for p in parts),
        expert_linear=sum(p.expert_linear for p in parts),
        shapes=frozenset().union(*(p.shapes for p in parts)),
        expert_shapes=frozenset().union(*(p.expert_shapes for p in parts)),
    )
