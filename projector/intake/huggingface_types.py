"""One function a ``model_type``: its ``config.json`` to model fields (transformers, ``configuration_*.py``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from projector.intake.values import Reader

_Fields = dict[str, object]
_LEARNED = {"position_embedding_type": "learned_absolute"}
_BESIDE = "use_parallel_residual=True: attention and MLP one after the other"


def llama(c: Reader) -> _Fields:
    """The common part of LLaMA-like decoders: RMSNorm, rotary positions, a gated MLP."""
    found = sizes(
        c, num_layers="num_hidden_layers", hidden_size="hidden_size", ffn_hidden_size="intermediate_size",
        num_attention_heads="num_attention_heads", num_query_groups="num_key_value_heads", kv_channels="head_dim",
        vocab_size="vocab_size", max_position_embeddings="max_position_embeddings",
    )  # fmt: skip
    found["num_query_groups"] = found["num_query_groups"] or found["num_attention_heads"]
    found["add_bias_linear"] = c.flag("mlp_bias") or False
    found["add_qkv_bias"] = c.flag("attention_bias", "qkv_bias") or False
    found["untie_embeddings_and_output_weights"] = c.flag("tie_word_embeddings") is not True
    return found


def sizes(c: Reader, **keys: str) -> _Fields:
    """Model field to whole number, from the key (or several, the first that is there) that an architecture has for it."""
    return {field: c.integer(*names.split()) for field, names in keys.items()}


def routed(c: Reader, experts: str, width: str = "", topk: str = "num_experts_per_tok") -> _Fields:
    """Experts as :func:`sizes` of them; what is not there stays out."""
    named = {"moe_ffn_hidden_size": width} if width else {}
    return given(**sizes(c, num_experts=experts, moe_router_topk=topk, **named))


def sparse_steps(c: Reader) -> _Fields:
    """Experts in layer i when (i + 1) % decoder_sparse_step == 0 and i is not among ``mlp_only_layers``."""
    layers = min(c.integer("num_hidden_layers") or 0, 10_000)
    step = c.integer("decoder_sparse_step") or 1
    dense = set(c.integers("mlp_only_layers") or ())
    freq = [int((i + 1) % step == 0 and i not in dense) for i in range(layers)]
    return {**routed(c, "num_experts num_local_experts", "moe_intermediate_size"), "moe_layer_freq": freq}


def _deepseek(c: Reader) -> _Fields:
    """DeepSeek V2 and V3: latent attention, dense layers first, shared experts of the routed width."""
    found = {**llama(c), "kv_channels": None, "num_query_groups": c.integer("num_attention_heads")}
    latent = sizes(
        c, q_lora_rank="q_lora_rank", kv_lora_rank="kv_lora_rank", qk_head_dim="qk_nope_head_dim",
        qk_pos_emb_head_dim="qk_rope_head_dim", v_head_dim="v_head_dim",
    )  # fmt: skip
    found["mla"] = given(**latent)
    c.integer("qk_head_dim")  # the sum of both of its parts
    width = c.integer("moe_intermediate_size")
    score = c.word("scoring_func")
    experts = dense_first(c) | routed(c, "n_routed_experts num_experts", "moe_intermediate_size")
    found["moe"] = experts | given(
        moe_shared_expert_intermediate_size=(c.integer("n_shared_experts", "num_shared_experts") or 0) * (width or 0),
        moe_router_num_groups=_several(c.integer("n_group")),
        moe_router_group_topk=c.integer("topk_group") if _several(c.integer("n_group")) else None,
        moe_router_score_function=score,
        moe_router_enable_expert_bias=c.word("topk_method") == "noaux_tc" or score == "sigmoid",
    )
    found["mtp_num_layers"] = c.integer("num_nextn_predict_layers")
    return found


def dense_first(c: Reader) -> _Fields:
    layers = min(c.integer("num_hidden_layers") or 0, 10_000)
    dense, step = c.integer("first_k_dense_replace") or 0, c.integer("moe_layer_freq") or 1
    return {"moe_layer_freq": [int(i >= dense and i % step == 0) for i in range(layers)]}


def _several(groups: int | None) -> int | None:
    return groups if groups and groups > 1 else None


_GEMMA3N = {
    "altup_num_inputs": 4,
    "laurel_rank": 64,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262144,
    "num_kv_shared_layers": 15,
}


def _gemma3n(c: Reader) -> _Fields:
    """The language model of Gemma 3n; the width of the MLP is one or one a layer."""
    found, layers = llama(c), min(c.integer("num_hidden_layers") or 0, 10_000)
    kinds, window = c.words("layer_types"), c.integer("sliding_window") or 512
    if kinds is None:
        kinds = tuple(("sliding", "full")[(i + 1) % 5 == 0] for i in range(layers))
    cut, widths = c.raw("activation_sparsity_pattern"), c.raw("intermediate_size")
    if not isinstance(cut, list):
        cut = [float(layers > 10 and i < 10) for i in range(layers)]
    own = {
        "window_size": [0 if "full" in kind else window for kind in kinds],
        "sparse_activation": [int(bool(each)) for each in cut],
    }
    if isinstance(widths, list) and widths and all(type(each) is int for each in widths):
        c.problems[:] = [each for each in c.problems if each[0] != "intermediate_size"]
        found["ffn_hidden_size"] = max(widths)
        if widths != [widths[0]] * layers:
            own["ffn_hidden_size"] = widths
    stated = {name: c.integer(name) for name in _GEMMA3N}
    found |= {name: usual if stated[name] is None else stated[name] for name, usual in _GEMMA3N.items()}
    norms = dict.fromkeys(("qk_layernorm", "sandwich_norm", "v_layernorm"), True)
    tied = {"untie_embeddings_and_output_weights": c.flag("tie_word_embeddings") is False}
    plain = {"kv_channels": found["kv_channels"] or 256, "vocab_size": found["vocab_size"] or 262400}
    return found | norms | tied | plain | {"per_layer": own}


def gpt2(c: Reader) -> _Fields:
    found = classic(c) | sizes(
        c, num_layers="n_layer", hidden_size="n_embd", ffn_hidden_size="n_inner", num_attention_heads="n_head",
        max_position_embeddings="n_positions n_ctx",
    )  # fmt: skip
    return found | {"ffn_hidden_size": found["ffn_hidden_size"] or 4 * (c.integer("n_embd") or 0), **_LEARNED}


_MPT_NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
_MPT_MLP = ("mptmlp", "te_ln_mlp", "mptglu")


def _mpt(c: Reader) -> _Fields:
    """Of transformers, and of llm-foundry, whose files say more (its models/mpt/configuration_mpt.py, layers/ffn.py)."""
    hidden, width = c.integer("d_model") or 0, c.number("expansion_ratio") or 4
    attention, mlp = c.within("attn_config"), c.within("ffn_config")
    no_bias = c.flag("no_bias") is not False
    places = next((name for name in ("alibi", "rope") if attention.flag(name)), None)
    kind, shared = mlp.word("ffn_type") or "mptmlp", attention.word("attn_type") == "multiquery_attention"
    if kind not in _MPT_MLP:
        c.problems.append(("ffn_config.ffn_type", kind, f"one of {', '.join(_MPT_MLP)}"))
    return classic(c) | {
        "num_layers": c.integer("n_layers"),
        "hidden_size": hidden,
        "ffn_hidden_size": mlp.integer("ffn_hidden_size") or int(width * hidden),
        "gated_linear_unit": kind == "mptglu",
        "num_attention_heads": c.integer("n_heads"),
        "num_query_groups": 1 if shared else attention.integer("kv_n_heads"),
        "kv_channels": c.integer("head_dim"),
        "qk_layernorm": attention.flag("qk_ln") is True,
        "window_size": window if (window := attention.integer("sliding_window_size") or 0) > 0 else None,
        "position_embedding_type": places or ("none" if c.flag("learned_pos_emb") is False else "learned_absolute"),
        "max_position_embeddings": c.integer("max_seq_len"),
        "add_bias_linear": not no_bias,
        "normalization": _mpt_norm(c),
    }


def _mpt_norm(c: Reader) -> str | None:
    name = (c.word("norm_type") or "layernorm").lower()
    found = _MPT_NORMS.get(name.removeprefix("low_precision_").removeprefix("triton_"))
    if found is None:
        c.problems.append(("norm_type", name, "layernorm or rmsnorm, of low precision or Triton's"))
    return found


def _bloom(c: Reader) -> _Fields:
    hidden = c.integer("hidden_size", "n_embed")
    return classic(c) | {
        "num_layers": c.integer("n_layer", "num_hidden_layers"),
        "hidden_size": hidden,
        "ffn_hidden_size": 4 * (hidden or 0),
        "num_attention_heads": c.integer("n_head", "num_attention_heads"),
        "position_embedding_type": "alibi",
        "max_position_embeddings": c.integer("seq_length"),
        "embedding_layernorm": True,
    }


def _gpt_neox(c: Reader) -> _Fields:
    found = {**llama(c), **classic(c), "untie_embeddings_and_output_weights": not c.flag("tie_word_embeddings")}
    beside = () if c.flag("use_parallel_residual") is False else (_BESIDE,)
    return {**found, "add_qkv_bias": False, "position_embedding_type": "rope", "unmodelled": beside}


def classic(c: Reader) -> _Fields:
    """GPT-2's style: GELU without a gate, LayerNorm, biases, the output layer shares the embedding."""
    return {
        "vocab_size": c.integer("vocab_size"),
        "gated_linear_unit": False,
        "normalization": "LayerNorm",
        "add_bias_linear": True,
        "untie_embeddings_and_output_weights": c.flag("tie_word_embeddings") is False,
    }


_LETTERS = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"}


def _hybrid(c: Reader) -> _Fields:
    """Nemotron-H: attention, Mamba and experts in layers of their own."""
    moe = routed(c, "n_routed_experts", "moe_intermediate_size")
    base = {**llama(c), "gated_linear_unit": False, "position_embedding_type": "none"}
    pattern, kinds = c.word("hybrid_override_pattern"), c.words("layers_block_type")
    if pattern is None and kinds and all(kind in _LETTERS for kind in kinds):
        pattern, base["num_layers"] = "".join(_LETTERS[kind] for kind in kinds), len(kinds)
    for several in ("n_group", "topk_group"):  # groups of one, else the pattern below has no word for them
        if (c.integer(several) or 1) > 1:
            c.problems.append((several, c.integer(several), "1"))
    if pattern is None:
        return {**base, "unsupported": ["Mamba layers"]}
    sizes = {
        "mamba_num_heads": c.integer("mamba_num_heads"),
        "mamba_head_dim": c.integer("mamba_head_dim"),
        "mamba_num_groups": c.integer("n_groups", "mamba_n_groups"),
        "mamba_state_dim": c.integer("ssm_state_size", "mamba_d_state"),
        "conv_width": c.integer("conv_kernel", "mamba_d_conv"),
        "chunk": c.integer("chunk_size", "mamba_chunk_size"),
    }
    found = {**base, "hybrid_layer_pattern": pattern, "mamba": given(**sizes)}
    if "num_experts" not in moe:
        return found
    latent, shared = c.integer("moe_latent_size"), c.integer("moe_shared_expert_intermediate_size")
    return {**found, "moe": {**moe, **given(moe_latent_size=latent, moe_shared_expert_intermediate_size=shared)}}


def given(**values: object) -> _Fields:
    return {name: value for name, value in values.items() if value is not None}


MODEL_TYPES: Mapping[str, Callable[[Reader], _Fields]] = MappingProxyType(
    {
        "llama": llama,
        "deepseek_v2": _deepseek,
        "deepseek_v3": _deepseek,
        "kimi_k2": _deepseek,
        "gpt2": gpt2,
        "gpt_neox": _gpt_neox,
        "mpt": _mpt,
        "bloom": _bloom,
        "gemma3n": _gemma3n,
        "gemma3n_text": _gemma3n,
        "nemotron_h": _hybrid,
    }
)
