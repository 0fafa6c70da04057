"""Turns ``config.json`` into model fields by one function for each ``model_type``: decoders that differ from LLaMA or GPT-2
by more than ``tables/huggingface.yaml`` says, models whose layers differ (searched blocks, double layers, recurrent layers
among layers of attention), and models with another stack of layers before the decoder (T5, LLaVA).

Keys and defaults: transformers ``configuration_*.py`` and the files published with the models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from projector.intake.huggingface_table import depth, given, read, routed, sizes
from projector.intake.values import Reader, section

_Fields = dict[str, Any]


_GEMMA3N = {
    "altup_num_inputs": 4,
    "laurel_rank": 64,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262144,
    "num_kv_shared_layers": 15,
}


def _gemma3n(c: Reader) -> _Fields:
    """Reads the language model of Gemma 3n, whose MLP width is one number or a list with one a layer."""
    fields, layers = read("llama", c), depth(c)
    kinds, window = c.words("layer_types"), c.integer("sliding_window") or 512
    if kinds is None:
        kinds = tuple(("sliding", "full")[(i + 1) % 5 == 0] for i in range(layers))
    cut, widths = c.raw("activation_sparsity_pattern"), c.raw("intermediate_size")
    if not isinstance(cut, list):
        cut = [float(layers > 10 and i < 10) for i in range(layers)]
    per_layer = {
        "window_size": [0 if "full" in kind else window for kind in kinds],
        "sparse_activation": [int(bool(each)) for each in cut],
    }
    if isinstance(widths, list) and widths and all(type(each) is int for each in widths):
        c.problems[:] = [each for each in c.problems if each[0] != "intermediate_size"]
        fields["ffn_hidden_size"] = max(widths)
        if widths != [widths[0]] * layers:
            per_layer["ffn_hidden_size"] = widths
    stated = {name: c.integer(name) for name in _GEMMA3N}
    fields |= {name: default if stated[name] is None else stated[name] for name, default in _GEMMA3N.items()}
    norms = dict.fromkeys(("qk_layernorm", "sandwich_norm", "v_layernorm"), True)
    tied = {"untie_embeddings_and_output_weights": c.flag("tie_word_embeddings") is False}
    plain = {"kv_channels": fields.get("kv_channels") or 256, "vocab_size": fields.get("vocab_size") or 262400}
    return fields | norms | tied | plain | {"per_layer": per_layer}


def _falcon(c: Reader) -> _Fields:
    """Reads Falcon: MLP beside attention on one norm, on two in the architecture of 40B and 180B, whose key and value heads
    are counted; one of them serves all queries otherwise."""
    newer, heads = c.flag("new_decoder_architecture") is True, c.integer("num_attention_heads")
    beside, stated = c.flag("parallel_attn") is not False, c.integer("num_kv_heads")
    shared = 1 if c.flag("multi_query") is not False else heads
    norms = c.integer("num_ln_in_parallel_attn") or (2 if newer else 1)
    return read("_classic", c) | {
        **sizes(c, num_layers="num_hidden_layers n_layer", hidden_size="hidden_size"),
        "ffn_hidden_size": c.integer("ffn_hidden_size") or 4 * (c.integer("hidden_size") or 0),
        "num_attention_heads": heads,
        "num_query_groups": stated if newer else shared,
        "max_position_embeddings": c.integer("max_position_embeddings"),
        "position_embedding_type": "alibi" if c.flag("alibi") else "rope",
        "add_bias_linear": c.flag("bias") is True,
        "add_qkv_bias": c.flag("bias") is True,
        "parallel_residual": newer or beside,
        "unmodelled": ("a norm of attention and one of the MLP: counted as one",) if newer and norms == 2 else (),
    }


_MPT_NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
_MPT_MLP = ("mptmlp", "te_ln_mlp", "mptglu")


def _mpt(c: Reader) -> _Fields:
    """Reads MPT of transformers and of llm-foundry, which states more (models/mpt/configuration_mpt.py, layers/ffn.py)."""
    hidden, width = c.integer("d_model") or 0, c.number("expansion_ratio") or 4
    attention, mlp = c.within("attn_config"), c.within("ffn_config")
    no_bias = c.flag("no_bias") is not False
    places = next((name for name in ("alibi", "rope") if attention.flag(name)), None)
    kind, shared = mlp.word("ffn_type") or "mptmlp", attention.word("attn_type") == "multiquery_attention"
    if kind not in _MPT_MLP:
        c.problems.append(("ffn_config.ffn_type", kind, f"one of {', '.join(_MPT_MLP)}"))
    return read("_classic", c) | {
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
    norm = _MPT_NORMS.get(name.removeprefix("low_precision_").removeprefix("triton_"))
    if norm is None:
        c.problems.append(("norm_type", name, "layernorm or rmsnorm, of low precision or Triton's"))
    return norm


_LETTERS = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"}


def _hybrid(c: Reader) -> _Fields:
    """Reads Nemotron-H, in which attention, Mamba and experts are separate layers."""
    moe = routed(c, "n_routed_experts", "moe_intermediate_size")
    base = {**read("llama", c), "gated_linear_unit": False, "position_embedding_type": "none"}
    pattern, kinds = c.word("hybrid_override_pattern"), c.words("layers_block_type")
    if pattern is None and kinds and all(kind in _LETTERS for kind in kinds):
        pattern, base["num_layers"] = "".join(_LETTERS[kind] for kind in kinds), len(kinds)
    for several in ("n_group", "topk_group"):  # groups of one, else the pattern below has no word for them
        if (c.integer(several) or 1) > 1:
            c.problems.append((several, c.integer(several), "1"))
    if pattern is None:
        return {**base, "unsupported": ["Mamba layers"]}
    mamba = sizes(
        c, mamba_num_heads="mamba_num_heads", mamba_head_dim="mamba_head_dim", mamba_num_groups="n_groups mamba_n_groups",
        mamba_state_dim="ssm_state_size mamba_d_state", conv_width="conv_kernel mamba_d_conv",
        chunk="chunk_size mamba_chunk_size",
    )  # fmt: skip
    fields = {**base, "hybrid_layer_pattern": pattern, "mamba": given(**mamba)}
    if "num_experts" not in moe:
        return fields
    latent, shared = c.integer("moe_latent_size"), c.integer("moe_shared_expert_intermediate_size")
    return {**fields, "moe": {**moe, **given(moe_latent_size=latent, moe_shared_expert_intermediate_size=shared)}}


#: Encoders and decoders that are read.
STACKED = ("t5", "mt5")


def _qwen(c: Reader) -> _Fields:
    """Reads the first Qwen, whose ``intermediate_size`` is the width of gate and up together."""
    width = c.integer("intermediate_size")
    return {**read("llama", c), "add_qkv_bias": True, "ffn_hidden_size": width // 2 if width else None}


def _searched(c: Reader) -> _Fields:
    """Reads Nemotron-NAS (Puzzle, arXiv:2411.19146), in which each block states its attention, its MLP and their widths.

    A width is ⌊2/3 · ``ffn_mult`` · hidden size⌋ rounded up to a multiple of 256 (NVIDIA/Megatron-LM@d98e8a64dd
    megatron/core/transformer/heterogeneous/heterogeneous_config.py); 0 heads or a width of 0: the block has none.
    """
    fields, heads, hidden = read("llama", c), c.integer("num_attention_heads") or 0, c.integer("hidden_size") or 0
    blocks = c.raw("block_configs")
    halves = [(section(each, "attention"), section(each, "ffn")) for each in blocks] if isinstance(blocks, list) else []
    if len(halves) != (c.integer("num_hidden_layers") or 1) or not all(_readable(*half) for half in halves):
        c.problems.append(("block_configs", f"{len(halves)} blocks", "attention and ffn of each of num_hidden_layers"))
        return fields
    groups = [0 if _none(one) else heads // int(one["n_heads_in_group"]) for one, _ in halves]
    widths = [0 if _none(other) else -(-int(2 * other["ffn_mult"] * hidden / 3) // 256) * 256 for _, other in halves]
    replaced = any(half.get("replace_with_linear") for pair in halves for half in pair)
    return fields | {
        "ffn_hidden_size": max(widths) or None,
        "num_query_groups": max(groups) or None,
        "per_layer": {
            "num_attention_heads": [heads if each else 0 for each in groups],
            "num_query_groups": [each or max(groups) for each in groups],
            "ffn_hidden_size": widths,
        },
        "unsupported": ["a linear in place of attention or of an MLP"] if replaced else [],
    }


def _none(half: Mapping[str, Any]) -> bool:
    return bool(half.get("no_op") or half.get("replace_with_linear"))


def _readable(attention: Mapping[str, Any], ffn: Mapping[str, Any]) -> bool:
    group, width = attention.get("n_heads_in_group"), ffn.get("ffn_mult")
    heads = _none(attention) or (type(group) is int and group > 0)
    return heads and (_none(ffn) or (isinstance(width, (int, float)) and 0 < width < 1000))


def _longcat(c: Reader) -> _Fields:
    """Reads LongCat-Flash (arXiv:2509.01322), whose layer is twice latent attention and an MLP; experts read what the first
    MLP reads and are added after the second, so a layer counts as two, the first MLP as a shared expert of the first."""
    layers, width = depth(c, "num_layers"), c.integer("ffn_hidden_size")
    experts = routed(c, "n_routed_experts", "expert_ffn_hidden_size", "moe_topk")
    zero = given(zero_expert_num=c.integer("zero_expert_num"), moe_shared_expert_intermediate_size=width)
    fields = read("deepseek_v3", c)
    return fields | {
        "num_layers": 2 * layers or None,
        "ffn_hidden_size": width,
        "mtp_num_layers": None,
        "moe": experts | zero | {"moe_router_enable_expert_bias": True, "moe_layer_freq": [1, 0] * layers},
    }


def _t5(c: Reader) -> dict[str, object]:
    """Reads T5, T5 1.1, FLAN-T5 (transformers models/t5/configuration_t5.py) and mT5, which has the defaults of T5 1.1."""
    later = c.word("model_type") == "mt5"
    layers = c.integer("num_layers")
    tied, act = c.flag("tie_word_embeddings"), c.word("feed_forward_proj") or ("gated-gelu" if later else "relu")
    fields: dict[str, object] = {
        **sizes(
            c, hidden_size="d_model", kv_channels="d_kv", ffn_hidden_size="d_ff", num_attention_heads="num_heads",
            vocab_size="vocab_size",
        ),
        "num_layers": c.integer("num_decoder_layers") or layers,
        "encoder": {"num_layers": layers or 0},
        "gated_linear_unit": act.startswith("gated"),
        "untie_embeddings_and_output_weights": later if tied is None else not tied,
        "position_embedding_type": "relative",
    }  # fmt: skip
    buckets = c.integer("relative_attention_num_buckets")
    c.integer("relative_attention_max_distance", "n_positions")
    if c.flag("is_gated_act") is not None:
        fields["gated_linear_unit"] = c.flag("is_gated_act")
    return fields | ({"relative_attention_num_buckets": buckets} if buckets else {})


def vision(config: Mapping[str, object], c: Reader) -> dict[str, object]:
    """Returns the vision tower of LLaVA-1.5 (transformers models/llava), which is CLIP's (defaults: models/clip/
    configuration_clip.py). All layers run, though the projector reads the last but one; the norm after them is held and
    not read. Another tower or another projector is reported in ``c.problems``."""
    tower = Reader(section(config, "vision_config"))
    sized = sizes(
        tower, num_layers="num_hidden_layers", hidden_size="hidden_size", ffn_hidden_size="intermediate_size",
        num_attention_heads="num_attention_heads", image_size="image_size", patch_size="patch_size",
    )  # fmt: skip
    text = {**LANGUAGE_DEFAULTS, **section(config, "text_config")}
    c.problems += [(f"vision_config.{key}", value, expected) for key, value, expected in tower.problems]
    known = (
        ("vision_config.model_type", tower.raw("model_type"), "clip_vision_model"),
        ("vision_feature_select_strategy", config.get("vision_feature_select_strategy"), "default"),
        ("multimodal_projector_bias", config.get("multimodal_projector_bias"), True),
    )
    c.problems += [(key, value, str(one)) for key, value, one in known if value not in (None, one)]
    if isinstance(config.get("vision_feature_layer"), list):
        c.problems.append(("vision_feature_layer", config["vision_feature_layer"], "one layer"))
    stated = {**_CLIP, **{name: value for name, value in sized.items() if value is not None}}
    return {**stated, "projector_hidden_size": text["hidden_size"], "post_norm": True}


_CLIP = {"num_layers": 12, "hidden_size": 768, "ffn_hidden_size": 3072, "num_attention_heads": 12, "image_size": 224,
         "patch_size": 32}  # fmt: skip
#: What a ``text_config`` of LLaMA leaves out (transformers models/llama/configuration_llama.py).
LANGUAGE_DEFAULTS: Mapping[str, object] = MappingProxyType(
    {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
     "num_attention_heads": 32, "vocab_size": 32000, "tie_word_embeddings": False}
)  # fmt: skip


def _letters(c: Reader, key: str, letters: Mapping[str, str]) -> str:
    """Returns one letter a layer for a list of words: that of the first mark which the word contains; attention is ``*``."""
    stated = c.raw(key)
    words = stated if isinstance(stated, (list, tuple)) else ()
    letters = {**letters, "attention": "*"}
    if unknown := sorted({str(word) for word in words if not any(mark in str(word) for mark in letters)}):
        c.problems.append((key, ", ".join(unknown), f"kinds of layers: {', '.join(letters)}"))
    return "".join(next((at for mark, at in letters.items() if mark in str(word)), "") for word in words)


def _jamba(c: Reader) -> _Fields:
    """Reads Jamba: attention every n-th layer from an offset on, else Mamba-1; experts by a rule of the same kind."""
    layers = depth(c)
    every, at = c.integer("attn_layer_period") or 8, c.integer("attn_layer_offset")
    fields: _Fields = {
        **read("_jamba", c),
        "mixer_pattern": "".join("*" if i % every == (4 if at is None else at) else "S" for i in range(layers)),
    }
    moe = routed(c, "num_experts", "intermediate_size")
    if (c.integer("num_experts") or 1) == 1:
        return fields
    every, at = c.integer("expert_layer_period") or 2, c.integer("expert_layer_offset")
    freq = [int(i % every == (1 if at is None else at)) for i in range(layers)]
    return {**fields, "moe": moe | {"moe_layer_freq": freq}}


def _zamba2(c: Reader) -> _Fields:
    """Reads Zamba2: hybrid layers have one of ``num_mem_blocks`` shared blocks, by turns, before their mixer."""
    hidden, heads, at = (
        c.integer("hidden_size") or 0,
        c.integer("num_attention_heads") or 1,
        c.integers("hybrid_layer_ids"),
    )
    listed = "".join("Z" if i in set(at or ()) else "M" for i in range(depth(c)))
    mlps, attention = c.flag("use_shared_mlp_adapter"), c.flag("use_shared_attention_adapter")
    blocks = given(**sizes(c, num_mem_blocks="num_mem_blocks", adapter_rank="adapter_rank"))
    return {
        **read("_zamba2", c),
        "ffn_hidden_size": c.integer("intermediate_size", "ffn_hidden_size") or 4 * hidden,
        "kv_channels": c.integer("attention_head_dim") or 2 * hidden // max(1, heads),
        "position_embedding_type": "rope" if c.flag("use_mem_rope") else "none",
        "untie_embeddings_and_output_weights": c.flag("tie_word_embeddings") is False,
        "hybrid_layer_pattern": _letters(c, "layers_block_type", {"hybrid": "Z", "mamba": "M", "linear": "M"})
        or listed,
        "shared_blocks": blocks | {"use_shared_attention_adapter": bool(attention)},
        "unsupported": ["shared blocks without adapters of their MLP"] if mlps is False else [],
    }


def _lfm2(c: Reader) -> _Fields:
    """Reads LFM2, whose MLP's width is stated before it is cut to two thirds and rounded up, unless a flag denies it; the
    model with experts has neither flag nor cut."""
    width = c.integer("block_ff_dim", "intermediate_size")
    cut = c.flag("block_auto_adjust_ff_dim")
    if width and (cut or (cut is None and not c.has("num_experts"))):
        multiple = c.integer("block_multiple_of") or 256
        width = -(-int((c.number("block_ffn_dim_multiplier") or 1.0) * (2 * width // 3)) // multiple) * multiple
    tied = c.flag("tie_embedding", "tie_word_embeddings")
    return {**read("_lfm2", c), "ffn_hidden_size": width, "untie_embeddings_and_output_weights": tied is False}


MODEL_TYPES: Mapping[str, Callable[[Reader], _Fields]] = MappingProxyType(
    {
        "mpt": _mpt,
        "falcon": _falcon,
        **dict.fromkeys(("gemma3n", "gemma3n_text"), _gemma3n),
        "nemotron_h": _hybrid,
        "qwen": _qwen,
        "nemotron-nas": _searched,
        "longcat_flash": _longcat,
        **dict.fromkeys(STACKED, _t5),
        "jamba": _jamba,
        "zamba2": _zamba2,
        **dict.fromkeys(("lfm2", "lfm2_moe"), _lfm2),
    }
)
