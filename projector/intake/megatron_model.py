"""Turns Megatron-LM arguments into model fields (megatron/training/arguments.py, transformer_config.py), kinds of layers
included: hybrid strings, linear attention every few layers, convolutions.

NVIDIA/Megatron-LM@d98e8a64dd megatron/core/models/hybrid/hybrid_layer_allocation.py, core/transformer/transformer_config.py;
AMD-AGI/Primus@fd1eeabb lfm2_8B_A1B.yaml, @1dc9a0e6 primus/backends/megatron/core/models/hybrid/{hybrid_block,
hybrid_mamba_mla_layer_specs}.py.
"""

from __future__ import annotations

import re
from typing import Any

from projector.intake.tables import table
from projector.intake.values import Reader
from projector.workload.layer_pattern import expand, stages
from projector.workload.moe_layer_freq import numbers

_PATTERNS = ("hybrid_layer_pattern", "hybrid_override_pattern")
#: Specifications of layers that other arguments describe; what another one builds is told.
_SPECIFICATIONS = re.compile(
    r"^$|(?:\b|_)(?:(?:hybrid|mamba)_stack_spec(?:_no_te)?|layer_with_transformer_engine_spec)\W*$"
)
_HEAD = 64  # Megatron-LM's default of mamba_head_dim


def kinds(args: Reader, hidden: object, layers: object) -> dict[str, object]:
    """Returns the model fields that state each layer's kind; empty where all layers are attention and an MLP."""
    if isinstance(text := _pattern(args) or _stack(args, layers), str):
        return _hybrid(args, text, hidden)
    fields: dict[str, object] = {}
    words = args.raw("lfm_layer_types")
    if isinstance(words, (list, tuple)) and any("conv" in str(word) for word in words):
        fields["mixer_pattern"] = "".join("C" if "conv" in str(word) else "*" for word in words)
        fields["short_convolution"] = _stated(args, {"conv_L_cache": "conv_width"})
    variant = args.word("experimental_attention_variant")
    if variant in ("gated_delta_net", "gdn") and type(layers) is int:
        marks = _linear_layers(args.raw("linear_attention_freq"), layers)
        fields["mixer_pattern"] = "".join(
            "G" if mark else "+" if args.flag("multi_latent_attention") else "*" for mark in marks
        )
        fields["gdn"] = _layer_sizes(args, "delta")
    if args.word("model_type") == "kimi_k3" and type(layers) is int:
        marks = _linear_layers(numbers(args.raw("linear_attention_freq"), layers), layers)
        fields["mixer_pattern"] = "".join("K" if mark else "+" for mark in marks)
        # sizes of Kimi Delta Attention (AMD-AGI/Primus@fd1eeabb primus/configs/models/megatron/kimi_k3_base.yaml)
        sizes = {
            "linear_num_key_heads": "num_heads",
            "linear_key_head_dim": "head_dim",
            "linear_conv_kernel_dim": "conv_width",
            "kda_chunk_size": "chunk",
        }
        stated: dict[str, object] = {**_stated(args, sizes)}
        fields["kda"] = stated | ({"gate_rank": None} if args.flag("kda_use_full_rank_gate") else {})
    return fields


def _fused_kimi(args: Reader) -> dict[str, object]:
    """Reads sizes of Kimi Delta Attention in Primus' stack: one fused projection; the width of the values is also the rank
    of decay and gate (AMD-AGI/Primus@fd1eeabb primus/backends/megatron/core/models/hybrid/kimi_delta_attention.py).
    Sizes that are not stated are Megatron-LM's defaults."""
    width = args.integer("linear_value_head_dim") or 128
    return {
        "num_heads": args.integer("linear_num_value_heads") or 32,
        "num_key_heads": args.integer("linear_num_key_heads") or 16,
        "head_dim": args.integer("linear_key_head_dim") or 128,
        "value_dim": width,
        "gate_rank": width,
        "conv_width": args.integer("linear_conv_kernel_dim") or 4,
        "gate_bias": True,
        "fused": True,
    }


def layout(args: Reader) -> str | None:
    """Returns the layout that ``|`` in a hybrid string means, as ``pipeline_model_parallel_layout`` spells it, or None."""
    text = _pattern(args)
    parts = stages(text.split("/")[0]) if isinstance(text, str) else ()
    if not parts:
        return None
    depths = len(str(text).split("/")) - 1
    last = len(parts) - 1
    return "|".join(
        ("E" if i == 0 else "") + "t" * layers + ("m" * depths + "L" if i == last else "")
        for i, layers in enumerate(parts)
    )


def _pattern(args: Reader) -> object:
    return next((value for name in _PATTERNS if (value := args.raw(name))), None)


def _stack(args: Reader, layers: object) -> str | None:
    """Returns the string of the stack that ``spec`` names: mixers alone, or Primus' alternation of a mixer (or attention)
    and an MLP; None for other stacks.

    Primus begins with an attention layer and puts equally many mixers behind each; the remaining mixers end the stack.
    Primus does not look at ``hybrid_mlp_ratio``.
    """
    if args.word("model_type") not in ("mamba", "hybrid") or type(layers) is not int:
        return None
    spec, share = str(args.raw("spec") or ""), args.number("hybrid_attention_ratio") or 0.0
    if "mamba_stack_spec" in spec and not share and not args.number("hybrid_mlp_ratio"):
        return "M" * layers
    sized = len(_layer_sizes(args, "delta").keys() - {"linear_conv_kernel_dim"}) == 4
    mixer = "G" if "gdn_hybrid_stack_spec" in spec and sized else "M" if "'hybrid_stack_spec'" in spec else None
    mixer = "K" if "kda_hybrid_stack_spec" in spec else mixer
    if mixer is None or not 0.0 <= share <= 0.5:
        return None
    attention = int(layers // 2 * share)
    mixers = layers // 2 - attention
    turn, block = f"{mixer}-", "+-" if args.flag("multi_latent_attention") else "*-"
    if not attention:
        return turn * mixers
    return (block + turn * (mixers // attention)) * attention + turn * (mixers % attention)


def _hybrid(args: Reader, text: str, hidden: object) -> dict[str, object]:
    """Returns the fields of hybrid string ``text``; ``/`` begins a prediction depth: one attention, one MLP or experts."""
    main, *depths = text.split("/")
    letters = expand(main)
    fields: dict[str, object] = {"hybrid_layer_pattern": letters, "num_layers": len(letters)}
    wrong = [depth for depth in depths if expand(depth) not in ("*E", "*-", "+E", "+-")]
    if wrong:
        args.problems.append((_PATTERNS[0], text, "an attention and an MLP or experts in every depth after /"))
    if (args.integer("num_experts") or 0) > 1 and "E" not in letters and not any("E" in depth for depth in depths):
        args.problems.append(("num_experts", args.raw("num_experts"), f"E for their layers in the pattern {text}"))
    if depths:
        fields["mtp_num_layers"] = len(depths)
    if args.flag("mtp_use_repeated_layer"):
        fields["mtp_use_repeated_layer"] = True
    if "M" in letters:
        mamba = _layer_sizes(args, "mamba")
        if "mamba_num_heads" not in mamba and isinstance(hidden, int):
            wide = 1 if "'hybrid_stack_spec'" in str(args.raw("spec")) else 2  # Primus' stack expands by one
            mamba["mamba_num_heads"] = wide * hidden // (mamba.get("mamba_head_dim") or _HEAD)
        fields["mamba"] = mamba
    if "K" in letters:
        fields["kda"] = _fused_kimi(args)
    if "G" in letters:
        fields["gdn"] = _layer_sizes(args, "delta")
    return fields


def _layer_sizes(args: Reader, layers: str) -> dict[str, Any]:
    """Returns the stated sizes that ``tables/megatron.yaml`` lists under ``layers``."""
    return {name: value for name, value in args.named(table("megatron", layers)).items() if value is not None}


def _stated(args: Reader, names: dict[str, str]) -> dict[str, int]:
    return {field: value for name, field in names.items() if (value := args.integer(name)) is not None}


def _linear_layers(freq: object, layers: int) -> list[bool]:
    """Returns which layers are linear attention: a list states it, a number n makes every n-th layer softmax attention."""
    if isinstance(freq, (list, tuple)):
        return [bool(mark) for mark in freq]
    every = freq if type(freq) is int and freq > 0 else 1
    return [every == 1 or (layer + 1) % every != 0 for layer in range(layers)]


_POSITIONS = {"absolute": "learned_absolute", "rotary": "rope", "yarn": "rope", "mrope": "rope"}


def model_fields(args: Reader) -> dict[str, object]:
    """Returns the model fields that ``args`` states, as a mapping for ``parse_model``; absent fields stay absent."""
    fields: dict[str, object] = args.named(table("megatron", "model"))
    if args.has("decoder_seq_length"):  # an encoder and a decoder: others print every name of theirs but this
        fields["encoder"] = {"num_layers": args.integer("encoder_num_layers", "num_layers") or 0}
        fields["num_layers"] = args.integer("decoder_num_layers", "num_layers", "encoder_num_layers")
        args.integer("relative_attention_max_distance")
        fields["relative_attention_num_buckets"] = args.integer("relative_attention_num_buckets")
    if args.flag("disable_bias_linear"):
        fields["add_bias_linear"] = False
    fields["gated_linear_unit"] = _gated(args)
    fields["quick_geglu"] = args.flag("quick_geglu") or None
    fields["position_embedding_type"] = _position(args)
    fields |= _attention(args, fields["num_attention_heads"])
    fields["ffn_hidden_size"] = args.integer("ffn_hidden_size") or _ffn(
        args, fields["hidden_size"], args.flag("swiglu")
    )
    fields |= _mla(args)
    fields |= _compressed(args)
    fields |= _moe(args, fields["ffn_hidden_size"])
    layer_kinds = kinds(args, fields["hidden_size"], fields["num_layers"])
    fields |= layer_kinds | _unsupported(args, layer_kinds)
    return {field: value for field, value in fields.items() if value is not None}


def _gated(args: Reader) -> bool | None:
    for name in ("swiglu", "glu_activation", "quick_geglu", "geglu", "gelu_tanh", "t5_swiglu"):
        if args.raw(name):
            return True
    return False if args.has("swiglu", "glu_activation", "openai_gelu", "squared_relu") else None


def _position(args: Reader) -> str | None:
    if args.flag("use_rotary_position_embeddings"):
        return "rope"
    word = args.word("position_embedding_type")
    if word in (None, "learned_absolute") and args.flag("add_position_embedding", "position_embedding") is False:
        return "none"
    return None if word is None else _POSITIONS.get(word, word)


def _ffn(args: Reader, hidden: object, swiglu: object) -> int | None:
    """Returns the default MLP width (Megatron-LM validate_args): 4·H, with ``swiglu`` (no other gate) two thirds of 4·H
    rounded down to a multiple of 64, in FlagScale up to one of ``multiple_of``."""
    if not isinstance(hidden, int):
        return None
    multiple, factor = args.integer("multiple_of"), args.number("hidden_dim_multiplier")
    if swiglu and multiple:
        return -(-int(int(8 * hidden / 3) * (factor or 1)) // multiple) * multiple
    return int(4 * hidden * 2 / 3 / 64) * 64 if swiglu else 4 * hidden


def _attention(args: Reader, heads: object) -> dict[str, object]:
    grouped, groups = args.flag("group_query_attention"), args.integer("num_query_groups")
    fields: dict[str, object] = {}
    if grouped is False:
        fields["num_query_groups"] = heads
    elif grouped or groups is not None:
        fields["num_query_groups"] = groups
    widths = args.integers("window_size") or (0,)  # to the left and to the right
    if len(widths) > 2:
        args.problems.append(("window_size", list(widths), "one or two whole numbers"))
    fields["window_size"] = widths[0] if widths[0] > 0 else None
    fields["window_attn_skip_freq"] = _window_freq(args) if fields["window_size"] else None
    if args.choice("softmax_type", ("vanilla", "off-by-one", "learnable")) == "learnable" or args.flag(
        "use_sink_attention"
    ):
        fields["attention_sinks"] = True
        width = args.integer("sink_sliding_window")
        if width:
            every_other = args.flag("sink_window_even_layers_only")
            fields |= {"window_size": width, "window_attn_skip_freq": 2 if every_other else None}
    return fields


def _window_freq(args: Reader) -> int | None:
    """Returns n where every n-th layer has no window; a list (1: windowed layer) must have such a period."""
    pattern = args.raw("window_attn_skip_freq")
    if not isinstance(pattern, (list, tuple)):
        return args.integer("window_attn_skip_freq")
    marks = [bool(item) for item in pattern]
    if any(item not in (0, 1) for item in pattern):
        args.problems.append(("window_attn_skip_freq", list(pattern), "a list of 0 and 1"))
    if all(marks):
        return None
    every = marks.index(False) + 1
    if marks != [(layer + 1) % every != 0 for layer in range(len(marks))]:
        args.problems.append(("window_attn_skip_freq", list(pattern), "a period: every n-th layer 0, the others 1"))
    return every


#: NVIDIA/Megatron-LM megatron/training/arguments.py, the sizes of latent attention that a command line leaves out.
_LATENT = {"kv_lora_rank": 32, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128}


def _mla(args: Reader) -> dict[str, object]:
    latent = args.flag("multi_latent_attention") or args.word("model_type") == "kimi_k3"  # its builder needs no switch
    if args.flag("multi_latent_attention") is None and not latent:
        return {}
    ranks = args.named(table("megatron", "latent"))
    if not latent:
        return {"mla": False}
    if args.flag("mla_use_output_gate"):
        ranks["mla_use_output_gate"] = True
    return {"mla": {**_LATENT, **{field: value for field, value in ranks.items() if value is not None}}}


def _compressed(args: Reader) -> dict[str, object]:
    """Reads DeepSeek-V4 in words of Primus (primus/configs/models/megatron/deepseek_v4_base.yaml) and Megatron-LM."""
    streams = args.integer("hc_mult")
    if args.flag("enable_hyper_connections", "enable_mhc_connections"):  # its number is printed without them, too
        streams = args.integer("num_residual_streams", "mhc_num_residual_streams") or _STREAMS
    fields: dict[str, object] = {"hyper_connections": streams if streams and streams > 1 else None}
    ratios = args.raw("compress_ratios") or args.raw("csa_compress_ratios")
    if ratios is None:
        return fields
    sizes = args.named(table("megatron", "compressed"))
    stated: dict[str, object] = {name: value for name, value in sizes.items() if value is not None}
    # at 0 Primus keeps the indexer frozen, and so does Megatron-LM
    stated["trained"] = any([args.number("v4_indexer_distill_loss_coeff"), args.number("dsa_indexer_loss_coeff")])
    return fields | {"attention_sinks": args.flag("attn_sink"), "compressed": {**stated, "compress_ratios": ratios}}


_STREAMS = 4  # NVIDIA/Megatron-LM core/transformer/transformer_config.py, num_residual_streams


def _moe(args: Reader, ffn: object) -> dict[str, object]:
    sizes = args.named(table("megatron", "experts"))
    stated = {name: value for name, value in sizes.items() if value is not None}
    if sizes["num_experts"] is None:
        return {"moe": stated} if stated else {}
    if sizes["moe_ffn_hidden_size"] is None and ffn is not None:
        stated["moe_ffn_hidden_size"] = ffn
    return {"moe": stated}


def _unsupported(args: Reader, asked: dict[str, object]) -> dict[str, object]:
    """Returns in words what no model field expresses, without the kinds of layers that ``asked`` already holds."""
    variants = table("megatron", "variants")
    reasons = [reason for name, reason in table("megatron", "parts").items() if args.raw(name)]
    kind, variant, spec = (
        args.raw("model_type"),
        args.raw("experimental_attention_variant"),
        str(args.raw("spec") or ""),
    )
    if not _SPECIFICATIONS.search(spec):
        args.used.discard("spec")
    if kind in ("mamba", "hybrid"):
        reasons.insert(0, "Mamba layers")
    named = [reason for mark, reason in variants.items() if mark == variant or re.search(rf"(^|_|\W){mark}", spec)]
    if any(mark != "Mamba layers" for mark in named):  # the specification says what stands where Mamba layers would
        general = ("Mamba layers", "an experimental attention variant", "linear attention layers")
        named = [reason for reason in named if reason != "Mamba layers"]
        reasons = [reason for reason in reasons if reason not in general]
    if asked:
        known = (
            "Mamba layers",
            variants["gdn"],
            variants["kda"],
            "linear attention layers",
            "an experimental attention variant",
        )
        named, reasons = ([reason for reason in some if reason not in known] for some in (named, reasons))
    distinct = tuple(dict.fromkeys((*named, *reasons)))
    return {"unsupported": list(distinct)} if distinct else {}
