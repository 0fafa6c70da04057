"""More of :mod:`.huggingface_types`: decoders that differ from LLaMA or GPT-2 by more than words, those whose layers are not
all made alike (searched blocks, double layers), and models with a stack of layers before their own (T5, LLaVA).

Keys and defaults: transformers ``configuration_*.py`` and the files published with the models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from projector.intake.huggingface_types import MODEL_TYPES, classic, dense_first, given, gpt2, llama, routed, sizes
from projector.intake.values import Reader, section

_Fields = dict[str, Any]
_MOST = 10_000  # layers, beyond which a count is a mistake that is reported elsewhere
#: Encoders and decoders that are read.
STACKED = ("t5", "mt5")


def _opt(c: Reader) -> _Fields:
    projected = c.integer("word_embed_proj_dim") not in (None, c.integer("hidden_size"))
    missing = ["embeddings of another width"] if projected else []
    missing += ["norms after attention and MLP"] if c.flag("do_layer_norm_before") is False else []
    found = sizes(
        c, num_layers="num_hidden_layers", hidden_size="hidden_size", ffn_hidden_size="ffn_dim",
        num_attention_heads="num_attention_heads", max_position_embeddings="max_position_embeddings",
    )  # fmt: skip
    return {**classic(c), **found} | {
        "position_embedding_type": "learned_absolute",
        "add_bias_linear": c.flag("enable_bias") is not False,
        "unsupported": missing,
    }


def _gpt_bigcode(c: Reader) -> _Fields:
    return {**gpt2(c), "num_query_groups": c.integer("n_head") if c.flag("multi_query") is False else 1}


def _dbrx(c: Reader) -> _Fields:
    attention, experts = c.within("attn_config"), c.within("ffn_config")
    found = sizes(
        c, num_layers="n_layers", hidden_size="d_model", num_attention_heads="n_heads", vocab_size="vocab_size",
        max_position_embeddings="max_seq_len",
    )  # fmt: skip
    return found | {
        "ffn_hidden_size": experts.integer("ffn_hidden_size"),
        "num_query_groups": attention.integer("kv_n_heads"),
        "normalization": "LayerNorm",
        "untie_embeddings_and_output_weights": not c.flag("tie_word_embeddings"),
        "moe": routed(experts, "moe_num_experts", "ffn_hidden_size", "moe_top_k"),
    }


def _chatglm(c: Reader) -> _Fields:
    missing = ["norms after attention and MLP"] if c.flag("apply_residual_connection_post_layernorm") else []
    groups = c.integer("multi_query_group_num") if c.flag("multi_query_attention") else None
    alike = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "kv_channels")
    return {
        **sizes(c, **{name: name for name in alike}),
        **sizes(c, vocab_size="padded_vocab_size vocab_size", max_position_embeddings="seq_length"),
        "num_query_groups": groups or c.integer("num_attention_heads"),
        "normalization": "RMSNorm" if c.flag("rmsnorm") is not False else "LayerNorm",
        "add_bias_linear": bool(c.flag("add_bias_linear")),
        "add_qkv_bias": bool(c.flag("add_qkv_bias")),
        "untie_embeddings_and_output_weights": not c.flag("tie_word_embeddings"),
        "unsupported": missing,
    }


def _baichuan(c: Reader) -> _Fields:
    """The 7B has rotary positions and says how many; the 13B has ALiBi and does not."""
    rotary = c.has("max_position_embeddings")
    return {**llama(c), "position_embedding_type": "rope" if rotary else "alibi"}


def _gptj(c: Reader) -> _Fields:
    found = {**gpt2(c), "position_embedding_type": "rope", "parallel_residual": True}
    biases = "biases of attention (there are none) and of the output layer: as those of the MLP, and left out"
    return {**found, "untie_embeddings_and_output_weights": not c.flag("tie_word_embeddings"), "unmodelled": (biases,)}


def _qwen(c: Reader) -> _Fields:
    """The first Qwen: its width of the MLP is that of gate and up together."""
    width = c.integer("intermediate_size")
    return {**llama(c), "add_qkv_bias": True, "ffn_hidden_size": width // 2 if width else None}


def _deepseek_moe(c: Reader) -> _Fields:
    """DeepSeekMoE (arXiv:2401.06066): plain attention, dense layers first, shared experts of the routed width."""
    width = c.integer("moe_intermediate_size")
    moe = dense_first(c) | routed(c, "n_routed_experts", "moe_intermediate_size")
    moe["moe_shared_expert_intermediate_size"] = (c.integer("n_shared_experts") or 0) * (width or 0)
    return {**llama(c), "moe": moe}


def _searched(c: Reader) -> _Fields:
    """Nemotron-NAS (Puzzle, arXiv:2411.19146): a block says what it has of attention and of an MLP, and how wide.

    A width is ⌊2/3 · ``ffn_mult`` · hidden size⌋ rounded up to a multiple of 256 (NVIDIA/Megatron-LM@d98e8a64dd
    megatron/core/transformer/heterogeneous/heterogeneous_config.py); 0 heads or a width of 0: the block has none.
    """
    found, heads, hidden = llama(c), c.integer("num_attention_heads") or 0, c.integer("hidden_size") or 0
    blocks = c.raw("block_configs")
    halves = [(section(each, "attention"), section(each, "ffn")) for each in blocks] if isinstance(blocks, list) else []
    if len(halves) != (c.integer("num_hidden_layers") or 1) or not all(_readable(*half) for half in halves):
        c.problems.append(("block_configs", f"{len(halves)} blocks", "attention and ffn of each of num_hidden_layers"))
        return found
    groups = [0 if _none(one) else heads // int(one["n_heads_in_group"]) for one, _ in halves]
    widths = [0 if _none(other) else -(-int(2 * other["ffn_mult"] * hidden / 3) // 256) * 256 for _, other in halves]
    replaced = any(half.get("replace_with_linear") for pair in halves for half in pair)
    return found | {
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
    """LongCat-Flash (arXiv:2509.01322): a layer is twice latent attention and an MLP; experts read what the first MLP reads
    and are added after the second one, so a layer is two here, the first MLP a shared expert of the first."""
    layers, width = min(c.integer("num_layers") or 0, _MOST), c.integer("ffn_hidden_size")
    experts = routed(c, "n_routed_experts", "expert_ffn_hidden_size", "moe_topk")
    zero = given(zero_expert_num=c.integer("zero_expert_num"), moe_shared_expert_intermediate_size=width)
    found = MODEL_TYPES["deepseek_v3"](c)
    return found | {
        "num_layers": 2 * layers or None,
        "ffn_hidden_size": width,
        "mtp_num_layers": None,
        "moe": experts | zero | {"moe_router_enable_expert_bias": True, "moe_layer_freq": [1, 0] * layers},
    }


def _step3(c: Reader) -> _Fields:
    """Step-3 (arXiv:2507.19427): queries through a latent, few key and value heads, experts in the layers that are named."""
    layers, chosen = min(c.integer("num_hidden_layers") or 0, _MOST), c.integers("moe_layers_enum")
    moe = routed(c, "moe_num_experts", "moe_intermediate_size", "moe_top_k")
    found = llama(c) | {"num_query_groups": c.integer("num_attention_groups"), "share_q_dim": c.integer("share_q_dim")}
    freq = [int(i in set(chosen or range(1, layers))) for i in range(layers)]
    shared = given(moe_shared_expert_intermediate_size=c.integer("share_expert_dim"))
    return found | {"moe": moe | shared | {"moe_layer_freq": freq}}


def _t5(c: Reader) -> dict[str, object]:
    """T5, version 1.1, FLAN-T5 (transformers models/t5/configuration_t5.py) and mT5, whose defaults are version 1.1's."""
    later = c.word("model_type") == "mt5"
    layers = c.integer("num_layers")
    tied, act = c.flag("tie_word_embeddings"), c.word("feed_forward_proj") or ("gated-gelu" if later else "relu")
    found: dict[str, object] = {
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
        found["gated_linear_unit"] = c.flag("is_gated_act")
    return found | ({"relative_attention_num_buckets": buckets} if buckets else {})


def vision(config: Mapping[str, object], c: Reader) -> dict[str, object]:
    """The tower of LLaVA-1.5 (transformers models/llava), CLIP's (defaults: models/clip/configuration_clip.py). All of its
    layers run, though the projector reads the last but one; the norm after them, which it does not read, is held. ``c`` is
    told of what is another tower or another projector."""
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


DECODERS: Mapping[str, Callable[[Reader], _Fields]] = MappingProxyType(
    {
        "gpt_bigcode": _gpt_bigcode,
        "opt": _opt,
        "dbrx": _dbrx,
        "chatglm": _chatglm,
        "baichuan": _baichuan,
        "qwen": _qwen,
        "gptj": _gptj,
        "deepseek": _deepseek_moe,
        "nemotron-nas": _searched,
        "longcat_flash": _longcat,
        "step3_text": _step3,
        **dict.fromkeys(STACKED, _t5),
    }
)
