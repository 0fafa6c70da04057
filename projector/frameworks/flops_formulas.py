"""FLOP per token by framework: pure functions of a workload (source at each). Training = 3 × forward, GEMM = 2·m·n·k.

Symbols: L layers, h hidden, S sequence, V vocabulary (padded where the framework pads), f dense MLP width, fe expert
width, fs shared-expert width, k experts per token, q = query heads × head width, kv = KV groups × head width, φ = 3
with a gated MLP else 2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from projector.workload.layer_kinds import Attention, GatedDeltaNet, Mamba2, Parallel, Recurrent, SharedBlock
from projector.workload.model import LayerKind, Model
from projector.workload.parameters import count
from projector.workload.sparse import BlockAttention, Compressed, CompressedAttention
from projector.workload.workload import Workload


def _hardware_2021(w: Workload) -> float:
    """Narayanan et al. 2021 (arXiv:2104.04473) eq. 3, and bigscience-workshop/Megatron-DeepSpeed megatron/training.py.

    c·κ·L·h²·(1 + S/6h + V/16Lh): c = 24, or 32 with a gated MLP (counted 4 h wide); κ = 4 with full recompute, which
    is thus counted, else 3. Full attention; grouped heads and the real MLP width are ignored.
    """
    m = w.model
    L, h = m.num_layers, m.hidden_size
    passes = 4 if w.recipe.recompute_granularity == "full" else 3
    factor = 32 if m.gated_linear_unit else 24
    return factor * passes * L * h**2 * (1 + w.recipe.seq_length / (6 * h) + w.padded_vocab_size / (16 * L * h))


def _megatron_early(w: Workload, apart: bool) -> float:
    """12·L·h²·((1 + g/n + S/h)·q/h + MLP + V/2Lh) with full attention, real f, grouped heads and experts per token.

    Megatron-LM@e116d81ed7 (core 0.6): q = h. @2bfe9beaae (core 0.7 to 0.11): head width ``apart`` from h; every layer MoE
    with ``ffn_hidden_size``; the shared experts that 0.10 and 0.11 add are included (models with them did not run on earlier
    releases).
    """
    m = w.model
    L, h, groups = m.num_layers, m.hidden_size, m.num_query_groups / m.num_attention_heads
    query = m.num_attention_heads * m.kv_channels / h if apart else 1.0
    shared = m.moe.moe_shared_expert_intermediate_size / h * 1.5 if m.moe and apart else 0.0
    mlp = _topk(m) * m.ffn_hidden_size / h * _gate(m) / 2 + shared
    return 12 * L * h**2 * ((1 + groups + w.recipe.seq_length / h) * query + mlp + w.padded_vocab_size / (2 * L * h))


def _megatron_2023_11(w: Workload) -> float:
    """Megatron-LM@2748e7c7d4 (core 0.5): f = 4h, no gate, no experts."""
    m = replace(w.model, ffn_hidden_size=4 * w.model.hidden_size, gated_linear_unit=False, moe=None)
    return _megatron_early(replace(w, model=m), False)


def _megatron_2025_03(w: Workload) -> float:
    """Megatron-LM@8873b55d6a: causal ½, ``moe_layer_freq``, expert width; MLA counted as plain attention, no MTP."""
    m = w.model
    attention = _plain_weights(m) + _plain_scores(m) * w.recipe.seq_length
    return 6 * (_mlp(m) + m.num_layers * attention + m.hidden_size * w.padded_vocab_size)


def _megatron_2025_04(w: Workload) -> float:
    """Megatron-LM@d4f9a6f7b4 and later, and Megatron-Bridge flop_utils since 2026-06: + MLA and MTP; an encoder, which they
    do not count, as its own tokens' products.

    Sliding windows count the mean context W − W(W−1)/2S of a windowed layer (Bridge; Megatron has no such term).
    """
    m, mtp = w.model, w.model.mtp_num_layers
    eh_proj = mtp * (3 * m.hidden_size + 2 * m.hidden_size**2)
    logits = float(m.hidden_size * w.padded_vocab_size * (1 + mtp))
    if w.recipe.freeze_language_model:  # no weight gradients
        alone = replace(w, model=replace(m, vision=None), recipe=replace(w.recipe, freeze_language_model=None))
        return 2 / 3 * _megatron_2025_04(alone) + 6 * _towers(w)
    logits += _towers(w)
    if not m.uniform:
        kinds = (*m.layer_kinds, *(mtp * (m.mtp_kind,)))
        layers = sum(_kind(m.within(kind), kind, w.recipe.seq_length) for kind in kinds)
        return 6 * (layers + logits + (0 if m.hybrid_layer_pattern else eh_proj))
    return 6 * (_mlp(m, mtp) + _attention(m, w.recipe.seq_length, mtp, norms=True) + eh_proj + logits)


def _megatron_2026_05(w: Workload) -> float:
    """Megatron-LM@5e4fc931ba and Megatron-Bridge since 2026-06: packed documents count the square of each one's length,
    not that of the sample's, and padding of the sample counts nothing."""
    if not w.recipe.document_lengths:
        return _megatron_2025_04(w)
    alike = Counter(w.recipe.document_lengths)
    alone = {length: replace(w, recipe=replace(w.recipe, seq_length=length)) for length in alike}
    counted = sum(length * number * _megatron_2025_04(alone[length]) for length, number in alike.items())
    return counted / w.recipe.seq_length


def _bridge(w: Workload, context: float | None) -> float:
    """NVIDIA-NeMo/Megatron-Bridge training/utils/flop_utils.py: a gate counts with SiLU alone (``activation_func ==
    F.silu``). v0.4.0: every layer attends to all ``context``; @14a29340 (since eaddead3f, 2026-03-31): a windowed layer
    counts W/2 keys a token, where full attention counts S/2. baa0259bd (2026-05-28) made both exact
    (``megatron-2025-04``)."""
    m, S = w.model, w.recipe.seq_length
    if not m.uniform:
        return _megatron_2025_04(w)
    gates = _mlp(m, m.mtp_num_layers) * (1 if m.quick_geglu else 0) / _gate(m)
    seen = sum(context or min(float(kind.window or S), float(S)) for kind in m.layer_kinds)
    exact = sum(_context(kind.window, S) for kind in m.layer_kinds)
    scores = _mla_scores(m) if m.mla else _plain_scores(m)
    return _megatron_2025_04(w) - 6 * (gates + scores * (exact - seen))


def _nemo(w: Workload) -> float:
    """NVIDIA-NeMo/NeMo nemo/utils/flops_formulas.py: its per-family formulas are one form; V is not padded.

    L·h²·(12 + 12·g/n + 18·f/h + 6·S/h) + 6·h·V with a causal half; queries are taken as wide as h; MLA explicit.
    """
    m, S, mtp = w.model, w.recipe.seq_length, w.model.mtp_num_layers
    h, groups = m.hidden_size, m.num_query_groups / m.num_attention_heads
    logits = h * m.vocab_size * (1 + mtp)
    if m.mla is not None:
        return 6 * (_mlp(m, mtp) + _attention(m, S, mtp, norms=False) + mtp * 2 * h**2 + logits)
    return 6 * (_mlp(m) + m.num_layers * (h**2 * (2 + 2 * groups) + h * S) + h * m.vocab_size)


def _with_scores(parameters: float, m: Model, width: float, S: int) -> float:
    """6·P + 12·L·``width``·S: full attention of heads of that width together."""
    return 6 * parameters + 12 * m.num_layers * width * S


def _deepspeed(w: Workload) -> float:
    """deepspeedai/Megatron-DeepSpeed megatron/utils.py: K and V weigh 2//(n/g), an integer; recompute counted."""
    m, S = w.model, w.recipe.seq_length
    L, h = m.num_layers, m.hidden_size
    scores = 2 * L * m.num_attention_heads * m.kv_channels * S
    kv = 2 // max(1, m.num_attention_heads // m.num_query_groups)
    macs = L * (2 + kv) * h**2 + scores + L * _gate(m) * m.ffn_hidden_size * h * _topk(m) + w.padded_vocab_size * h
    again = {"full": macs, "selective": scores}.get(w.recipe.recompute_granularity or "", 0)
    return 2 * (3 * macs + again)


def _maxtext(w: Workload) -> float:
    """AI-Hypercomputer/maxtext maxtext_utils.py: projections, causal half of attention, router, unpadded logits."""
    m, S = w.model, w.recipe.seq_length
    router = m.hidden_size * m.moe.num_experts * sum(m.moe.moe_layer_freq) if m.moe else 0
    return 6 * (_mlp(m) + _attention(m, S, 0, norms=False) + router + m.hidden_size * m.vocab_size)


def _internevo(w: Workload) -> float:
    """InternLM/InternEvo@c628a8c internlm/utils/common.py get_megatron_flops: c·(8 + 4rk)·h² + c·4·S·h a layer, 6·h·V.

    r = f/h, k = 1.5 with a gate; c = 4 with full recompute, which is thus counted, else 3; full attention.
    """
    m = w.model
    h, passes = m.hidden_size, 4 if w.recipe.recompute_granularity == "full" else 3
    mlp = 4 * m.ffn_hidden_size / h * (1.5 if m.gated_linear_unit else 1.0)
    return passes * m.num_layers * ((8 + mlp) * h**2 + 4 * w.recipe.seq_length * h) + 6 * h * m.vocab_size


def _paddlenlp(w: Workload) -> float:
    """PaddlePaddle/PaddleNLP paddlenlp/transformers/utils.py caculate_llm_per_token_flops; its TFLOP are 2**40.

    2·(L·(3·a + what runs again) + 3·h·V), a = 4h² + 2·S·h + 3·h·f + f: no grouped heads, full attention, a gate always.
    """
    m, S = w.model, w.recipe.seq_length
    h, f = m.hidden_size, m.ffn_hidden_size
    scores = 2 * S * h
    layer = 4 * h**2 + scores + 3 * h * f + f
    again = {"full": layer, "selective": scores}.get(w.recipe.recompute_granularity or "", 0)
    return 2 * (m.num_layers * (3 * layer + again) + 3 * h * m.vocab_size) * 1e12 / 2**40


def _topk(m: Model) -> float:
    return m.moe.computed_topk if m.moe else 1


def _gate(m: Model) -> int:
    return 3 if m.gated_linear_unit else 2


def _mlp(m: Model, mtp: int = 0) -> float:
    """Returns the multiply-adds per token in all MLPs; MTP layers are of the last layer's kind."""
    if m.moe is None:
        return float(m.hidden_size * _gate(m) * m.ffn_hidden_size * (m.num_layers + mtp))
    sparse = sum(m.moe.moe_layer_freq) + (mtp if m.moe.moe_layer_freq[-1] else 0)
    dense = m.num_layers + mtp - sparse
    experts = m.moe.moe_ffn_hidden_size * m.moe.computed_topk + m.moe.moe_shared_expert_intermediate_size
    return float(m.hidden_size * _gate(m) * (m.ffn_hidden_size * dense + experts * sparse))


def _towers(w: Workload) -> float:
    """Returns the multiply-adds, for each token of the model, in an encoder and of attention to it, or in a vision
    tower (forward alone where it is frozen) and its projector."""
    m, S = w.model, w.recipe.seq_length
    if m.vision is not None:
        v = m.vision
        layers = sum(_kind(m.within(kind), kind, v.tokens) for kind in m.tower_kinds) * v.tokens
        layers += v.patches * v.patch_elements * v.hidden_size
        projector = v.image_tokens * v.projector_hidden_size * (v.merged + m.hidden_size)
        return w.recipe.images / S * (layers * (1 / 3 if w.recipe.freeze_vision_model else 1) + projector)
    if m.encoder is None:
        return 0.0
    there = m.encoder.seen(w.recipe).seq_length
    found = sum(_kind(m.within(kind), kind, there) for kind in m.tower_kinds) * there
    cross = _plain_weights(m) + (there / S - 1) * _keys_and_values(m) + 2 * _plain_scores(m) * there
    return found / S + cross * sum(kind.cross for kind in m.layer_kinds)


def _plain_weights(m: Model) -> float:
    query, wide = m.num_attention_heads * m.kv_channels, 2 if m.attention_output_gate else 1
    return float(m.hidden_size * (wide + 1) * query + _keys_and_values(m))


def _keys_and_values(m: Model) -> float:
    return float((1 if m.attention_k_eq_v else 2) * m.hidden_size * m.num_query_groups * m.kv_channels)


def _plain_scores(m: Model) -> float:
    return float(m.num_attention_heads * m.kv_channels)


def _attention(m: Model, S: int, mtp: int, *, norms: bool) -> float:
    """Returns the multiply-adds per token in all attention blocks, causal half; ``norms``: Megatron counts the latent
    norms."""
    if m.compressed is not None:
        return _compressed(m, m.compressed, S, mtp)
    if m.mla is None and m.full_attention is not None:
        kinds = [*m.layer_kinds, *(m.mtp_kind for _ in range(mtp))]
        return sum(
            _plain_weights(own := m.within(kind)) + _plain_scores(own) * _context(kind.window, S) for kind in kinds
        )
    weights, scores = (_mla_weights(m, norms), _mla_scores(m)) if m.mla else (_plain_weights(m), _plain_scores(m))
    contexts = sum(_context(kind.window, S) for kind in m.layer_kinds) * (1 if m.causal else 2) + mtp * S
    reusing = sum(isinstance(kind.mixer, Attention) and kind.mixer.reuses_kv for kind in m.layer_kinds)
    return (m.num_layers + mtp) * weights - reusing * _keys_and_values(m) + scores * contexts


def _kind(m: Model, kind: LayerKind, S: int) -> float:
    """Returns the multiply-adds per token of one layer, as Megatron-LM@d98e8a64dd megatron/training/training.py counts a
    hybrid model's: a Mamba layer is charged with an inner width of 2h whatever its heads are; the router is not counted."""
    h, mixer, gate = m.hidden_size, kind.mixer, _gate(m)
    found = 0.0
    if isinstance(mixer, Attention | Parallel):
        weights, scores = (_mla_weights(m, True), _mla_scores(m)) if m.mla else (_plain_weights(m), _plain_scores(m))
        found += weights + scores * _context(kind.window, S) * (1 if m.causal else 2)
    if isinstance(mixer, BlockAttention):
        seen = 2 * mixer.keys(S)
        if mixer.compressed:
            seen += S / mixer.block_size + _context(mixer.window_size, S)
        found += _plain_weights(m) + mixer.parameters(h, m.num_attention_heads) + _plain_scores(m) * seen
    if isinstance(mixer, SharedBlock):
        d = m.kv_channels
        sizes = h, m.num_attention_heads * d, m.num_query_groups * d, m.ffn_hidden_size
        found += mixer.shared(*sizes) + mixer.own(*sizes) - mixer.mamba.parameters(h)
        found += _plain_scores(m) * _context(None, S)
    mixer = mixer.mamba if isinstance(mixer, Parallel | SharedBlock) else mixer
    if isinstance(mixer, Mamba2):
        states, heads = mixer.mamba_state_dim, mixer.mamba_num_heads
        found += h * (4 * h + 2 * mixer.mamba_num_groups * states + heads) + 7 * 2 * h * states / 2 + 2 * h * h
    elif isinstance(mixer, GatedDeltaNet):
        heads, value = mixer.linear_num_value_heads, mixer.linear_value_head_dim
        convolved = mixer.linear_conv_kernel_dim * (2 * mixer.keys + mixer.values)
        projected = h * (2 * mixer.keys + 2 * mixer.values + 2 * heads) + h * mixer.values
        found += projected + convolved + 4 * heads * value**2
    elif isinstance(mixer, Recurrent):
        found += mixer.parameters(h)
    if kind.moe and m.moe:
        latent = m.moe.moe_latent_size
        routed = m.moe.computed_topk * gate * (latent or h) * m.moe.moe_ffn_hidden_size
        found += routed + 2 * h * (latent or 0) + gate * h * m.moe.moe_shared_expert_intermediate_size
    elif kind.mlp is not None:
        found += gate * h * m.ffn_hidden_size
    return found


def _compressed(m: Model, sizes: Compressed, S: int, mtp: int) -> float:
    """Returns the count of NVIDIA-NeMo/Megatron-Bridge@067f987df training/utils/flop_utils.py, ``dsv4_hybrid``: every
    matrix of a layer, the visible keys, the indexer's scores; at S tokens, not S × streams."""
    kinds = [kind.mixer for kind in m.layer_kinds] + [m.mtp_kind.mixer] * mtp
    ratios = [mixer.ratio for mixer in kinds if isinstance(mixer, CompressedAttention)]
    n, d = m.num_attention_heads, m.kv_channels
    weights = sum(sizes.parameters(ratio, m.hidden_size, n, d) for ratio in ratios)
    scores = sum(2 * n * d * sizes.keys(ratio, S) for ratio in ratios)
    chosen = sum(S / ratio / 2 for ratio in ratios if ratio and ratio == sizes.chosen)
    return weights + scores + chosen * sizes.index_n_heads * sizes.index_head_dim


def _context(window: int | None, S: int) -> float:
    """Returns twice the mean number of keys that a token of a causal sequence sees (S without a window)."""
    if window is None or window >= S:
        return float(S)
    return 2 * (window - window * (window - 1) / (2 * S))


def _mla_weights(m: Model, norms: bool) -> float:
    assert m.mla is not None
    a, h, n, one = m.mla, m.hidden_size, m.num_attention_heads, int(norms)
    width = n * (a.qk_head_dim + a.qk_pos_emb_head_dim)
    query = h * width if a.q_lora_rank is None else a.q_lora_rank * (h + width + one)
    keys = a.kv_lora_rank * (h + n * (a.qk_head_dim + a.v_head_dim) + one)
    return float(query + keys + h * a.qk_pos_emb_head_dim + n * a.v_head_dim * h)


def _mla_scores(m: Model) -> float:
    """Returns half the width of all heads, queries' and values' together."""
    return m.num_attention_heads * (m.head_dim_qk + m.head_dim_v) / 2


def _active_without_embedding(m: Model) -> float:
    """Returns active parameters with the output projection, without the input embedding (tied weights count as output)."""
    found = count(m)
    return found.active - (m.vocab_size * m.hidden_size if m.untie_embeddings_and_output_weights else 0)


FORMULAS: Mapping[str, Callable[[Workload], float]] = MappingProxyType(
    {
        "hardware-2021": _hardware_2021,
        "megatron-2023-11": _megatron_2023_11,
        "megatron-2024-03": lambda w: _megatron_early(w, False),
        "megatron-2024-04": lambda w: _megatron_early(w, True),
        "megatron-2025-03": _megatron_2025_03,
        "megatron-2025-04": _megatron_2025_04,
        "megatron-2026-05": _megatron_2026_05,
        "megatron-bridge-2025-09": lambda w: _bridge(w, float(w.recipe.seq_length)),
        "megatron-bridge-2026-04": lambda w: _bridge(w, None),
        "nemo": _nemo,
        # pytorch/torchtitan before and since 5a090f21e (2025-10), models/utils.py: h or n·(d_qk + d_v)/2 as the width
        "torchtitan-2024": lambda w: _with_scores(
            _active_without_embedding(w.model), w.model, w.model.hidden_size, w.recipe.seq_length
        ),
        "torchtitan": lambda w: _with_scores(
            _active_without_embedding(w.model), w.model, _mla_scores(w.model), w.recipe.seq_length
        ),
        # mosaicml/llm-foundry scripts/train/benchmarking: tied weights once
        "llm-foundry": lambda w: _with_scores(count(w.model).active, w.model, w.model.hidden_size, w.recipe.seq_length),
        "deepspeed": _deepspeed,
        "internevo": _internevo,
        "maxtext": _maxtext,
        "paddlenlp": _paddlenlp,
        # PaLM appendix B (arXiv:2204.02311)
        "palm": lambda w: _with_scores(count(w.model).active, w.model, _mla_scores(w.model), w.recipe.seq_length),
        "6p": lambda w: 6.0 * count(w.model).active,  # weights only
    }
)
