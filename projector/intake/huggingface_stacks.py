"""Readers of ``config.json`` of models with a stack of layers before their own: T5 and what is built like it, LLaVA."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from projector.intake.huggingface_types import sizes
from projector.intake.values import Reader, section


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
STACKS: Mapping[str, Callable[[Reader], dict[str, object]]] = MappingProxyType({"t5": _t5, "mt5": _t5})
