"""The parts of a decoder in plain torch, in the shapes of one rank: attention (GQA, MLA), dense and routed feed-forward,
embedding, output and loss. Weights are leaves whose gradients accumulate; nothing communicates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from projector.benchmark.device import Device
from projector.benchmark.job import filled, torch_type
from projector.errors import Unsupported
from projector.workload.model import MLA, LayerKind, Model, MoE
from projector.workload.workload import Workload

__all__ = ["Built", "embedding", "head", "layer"]

_STANDARD = 0.02  # deviation of initial weights (Megatron-LM --init-method-std)
_EPSILON = 1e-5


@dataclass(frozen=True)
class Built:
    """A part of the model: ``run`` maps ``inputs`` to an output (or a loss); ``weights`` hold its parameters."""

    run: Callable[[Any], Any]
    inputs: Any
    weights: list[Any]


@dataclass
class _Parts:
    """What builders share: the device, the sizes, and the weights made so far."""

    device: Device
    workload: Workload
    weights: list[Any] = field(default_factory=list)

    @property
    def torch(self) -> Any:
        return self.device.torch

    @property
    def nn(self) -> Any:
        return self.device.torch.nn.functional

    @property
    def model(self) -> Model:
        return self.workload.model

    @property
    def dtype(self) -> Any:
        return torch_type(self.device, self.workload.recipe.precision)

    @property
    def batch(self) -> int:
        return self.workload.recipe.micro_batch_size

    @property
    def length(self) -> int:
        return self.workload.recipe.seq_length

    @property
    def tokens(self) -> int:
        return self.batch * self.length

    def weight(self, *shape: int) -> Any:
        made = filled(self.device, shape, self.dtype).mul_(_STANDARD).requires_grad_(True)
        self.weights.append(made)
        return made

    def ones(self, width: int) -> Any:
        made = self.torch.ones(width, dtype=self.dtype, device=self.device.place).requires_grad_(True)
        self.weights.append(made)
        return made

    def tensor(self, *shape: int) -> Any:
        return filled(self.device, shape, self.dtype).requires_grad_(True)

    def linear(self, inputs: int, outputs: int, bias: bool = False) -> Callable[[Any], Any]:
        weight = self.weight(outputs, inputs)
        shift = self.ones(outputs) if bias else None
        return lambda x: self.nn.linear(x, weight, shift)

    def norm(self, width: int) -> Callable[[Any], Any]:
        weight = self.ones(width)
        if self.model.normalization == "LayerNorm":
            shift = self.ones(width)
            return lambda x: self.nn.layer_norm(x, (width,), weight, shift, _EPSILON)
        return lambda x: self.nn.rms_norm(x, (width,), weight, _EPSILON)


def layer(kind: LayerKind, workload: Workload, device: Device) -> Built:
    """One decoder layer on [tokens, hidden]. Raises :class:`Unsupported` for what these plain parts lack."""
    parts = _Parts(device, workload)
    model = workload.model
    if kind.window is not None:
        raise Unsupported("live layers with sliding-window attention")
    attention = _latent(parts, model.mla) if model.mla else _attention(parts)
    mlp = _routed(parts, model.moe) if kind.moe and model.moe else _mlp(parts, model.ffn_hidden_size)
    before, between = parts.norm(model.hidden_size), parts.norm(model.hidden_size)

    def run(x: Any) -> Any:
        x = x + attention(before(x))
        return x + mlp(between(x))

    return Built(run, parts.tensor(parts.tokens, model.hidden_size), parts.weights)


def embedding(workload: Workload, device: Device) -> Built:
    """Token embedding of one micro-batch."""
    parts = _Parts(device, workload)
    table = parts.weight(workload.padded_vocab_size, workload.model.hidden_size)
    ids = parts.torch.randint(workload.model.vocab_size, (parts.tokens,), device=device.place)
    return Built(lambda ids: parts.nn.embedding(ids, table), ids, parts.weights)


def head(workload: Workload, device: Device) -> Built:
    """Final norm, output layer and cross-entropy in fp32: a scalar."""
    parts = _Parts(device, workload)
    hidden = workload.model.hidden_size
    norm, output = parts.norm(hidden), parts.linear(hidden, workload.padded_vocab_size)
    labels = parts.torch.randint(workload.model.vocab_size, (parts.tokens,), device=device.place)

    def run(x: Any) -> Any:
        return parts.nn.cross_entropy(output(norm(x)).float(), labels)

    return Built(run, parts.tensor(parts.tokens, hidden), parts.weights)


def _rotary(parts: _Parts, width: int) -> Callable[[Any], Any]:
    """Rotation of [batch, length, heads, width] in halves (RoFormer, arXiv:2104.09864)."""
    torch = parts.torch
    if parts.model.position_embedding_type != "rope":
        return lambda x: x
    rates = 10000.0 ** (-torch.arange(0, width, 2, device=parts.device.place).float() / width)
    angles = torch.arange(parts.length, device=parts.device.place).float()[:, None] * rates
    both = torch.cat([angles, angles], dim=-1)[:, None, :]
    cos, sin = both.cos().to(parts.dtype), both.sin().to(parts.dtype)

    def rotate(x: Any) -> Any:
        low, high = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-high, low], dim=-1) * sin

    return rotate


def _core(parts: _Parts, q: Any, k: Any, v: Any) -> Any:
    """Causal attention of [batch, length, heads, width] tensors; [tokens, heads x width]."""
    grouped = {"enable_gqa": True} if k.shape[2] < q.shape[2] else {}
    out = parts.nn.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, **grouped
    )
    return out.transpose(1, 2).reshape(parts.tokens, -1)


def _attention(parts: _Parts) -> Callable[[Any], Any]:
    model = parts.model
    heads, groups, width = model.num_attention_heads, model.num_query_groups, model.kv_channels
    qkv = parts.linear(model.hidden_size, (heads + 2 * groups) * width, model.add_bias_linear or model.add_qkv_bias)
    out = parts.linear(heads * width, model.hidden_size, model.add_bias_linear)
    rotate = _rotary(parts, width)
    norms = (parts.norm(width), parts.norm(width)) if model.qk_layernorm else None

    def run(x: Any) -> Any:
        mixed = qkv(x).view(parts.batch, parts.length, heads + 2 * groups, width)
        q, k, v = mixed.split([heads, groups, groups], dim=2)
        if norms is not None:
            q, k = norms[0](q), norms[1](k)
        return out(_core(parts, rotate(q), rotate(k), v))

    return run


def _latent(parts: _Parts, mla: MLA) -> Callable[[Any], Any]:
    torch, model, heads = parts.torch, parts.model, parts.model.num_attention_heads
    plain, turned, values = mla.qk_head_dim, mla.qk_pos_emb_head_dim, mla.v_head_dim
    hidden, rank = model.hidden_size, mla.q_lora_rank
    compress = (parts.linear(hidden, rank), parts.norm(rank)) if rank else None
    queries = parts.linear(rank or hidden, heads * (plain + turned))
    down, norm = parts.linear(hidden, mla.kv_lora_rank + turned), parts.norm(mla.kv_lora_rank)
    up = parts.linear(mla.kv_lora_rank, heads * (plain + values))
    out, rotate = parts.linear(heads * values, hidden), _rotary(parts, turned)
    shape = (parts.batch, parts.length, heads, -1)

    def run(x: Any) -> Any:
        q = queries(compress[1](compress[0](x)) if compress else x).view(shape)
        latent, key = down(x).split([mla.kv_lora_rank, turned], dim=-1)
        k, v = up(norm(latent)).view(shape).split([plain, values], dim=-1)
        key = rotate(key.reshape(parts.batch, parts.length, 1, turned)).expand(-1, -1, heads, -1)
        q_plain, q_turned = q.split([plain, turned], dim=-1)
        return out(_core(parts, torch.cat([q_plain, rotate(q_turned)], -1), torch.cat([k, key], -1), v))

    return run


def _activated(parts: _Parts, x: Any) -> Any:
    if not parts.model.gated_linear_unit:
        return parts.nn.gelu(x)
    gate, up = x.chunk(2, dim=-1)
    return parts.nn.silu(gate) * up


def _mlp(parts: _Parts, width: int) -> Callable[[Any], Any]:
    model = parts.model
    first = parts.linear(model.hidden_size, (2 if model.gated_linear_unit else 1) * width, model.add_bias_linear)
    second = parts.linear(width, model.hidden_size, model.add_bias_linear)
    return lambda x: second(_activated(parts, first(x)))


def _routed(parts: _Parts, moe: MoE) -> Callable[[Any], Any]:
    """Router, permutation, experts and the weighted way back; tokens are spread evenly, whatever the router says."""
    torch, hidden, width = parts.torch, parts.model.hidden_size, moe.moe_ffn_hidden_size
    count, topk = moe.num_experts, moe.moe_router_topk
    router = parts.linear(hidden, count)
    experts = _experts(parts, count, (2 if parts.model.gated_linear_unit else 1) * width, width)
    shared = _mlp(parts, moe.moe_shared_expert_intermediate_size) if moe.moe_shared_expert_intermediate_size else None
    place = parts.device.place
    even = torch.arange(parts.tokens * topk, device=place).remainder(count)
    order = even.argsort(stable=True)
    source = order.div(topk, rounding_mode="floor")
    ends = torch.bincount(even, minlength=count).cumsum(0)

    def run(x: Any) -> Any:
        scores = torch.softmax(router(x).float(), dim=-1)
        chosen, _ = torch.topk(scores, topk, dim=-1)
        share = chosen.reshape(-1).index_select(0, order).to(x.dtype)
        made = experts(x.index_select(0, source), ends) * share[:, None]
        out = torch.zeros_like(x).index_add(0, source, made)
        return out if shared is None else out + shared(x)

    return run


def _experts(parts: _Parts, count: int, wide: int, width: int) -> Callable[[Any, Any], Any]:
    torch, hidden = parts.torch, parts.model.hidden_size
    first, second = parts.weight(count, hidden, wide), parts.weight(count, width, hidden)
    # one kernel for all experts where the build has it for this type; its offsets are 32-bit
    if parts.dtype == torch.bfloat16 and hasattr(torch, "_grouped_mm"):

        def fused(x: Any, ends: Any) -> Any:
            offsets = ends.to(torch.int32)
            inner = _activated(parts, torch._grouped_mm(x, first, offs=offsets))
            return torch._grouped_mm(inner, second, offs=offsets)

        return fused

    def loop(x: Any, ends: Any) -> Any:
        starts = [0, *ends.tolist()]
        pieces = [x[a:b] for a, b in pairwise(starts)]
        return torch.cat([_activated(parts, each @ first[i]) @ second[i] for i, each in enumerate(pieces)])

    return loop
