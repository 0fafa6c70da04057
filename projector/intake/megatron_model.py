"""Megatron-LM arguments to model fields (megatron/training/arguments.py, transformer_config.py)."""

from __future__ import annotations

import re

from projector.intake.megatron_kinds import kinds
from projector.intake.tables import table
from projector.intake.values import Reader

_POSITIONS = {"absolute": "learned_absolute", "rotary": "rope", "yarn": "rope", "mrope": "rope"}


def model_fields(args: Reader) -> dict[str, object]:
    """The model fields that ``args`` states, as a mapping for ``parse_model``; what is absent stays absent."""
    found: dict[str, object] = args.named(table("megatron", "model"))
    if args.has("decoder_seq_length"):  # an encoder and a decoder: others print every name of theirs but this
        found["encoder"] = {"num_layers": args.integer("encoder_num_layers", "num_layers") or 0}
        found["num_layers"] = args.integer("decoder_num_layers", "num_layers", "encoder_num_layers")
        args.integer("relative_attention_max_distance")
        found["relative_attention_num_buckets"] = args.integer("relative_attention_num_buckets")
    if args.flag("disable_bias_linear"):
        found["add_bias_linear"] = False
    found["gated_linear_unit"] = _gated(args)
    found["quick_geglu"] = args.flag("quick_geglu") or None
    found["position_embedding_type"] = _position(args)
    found |= _attention(args, found["num_attention_heads"])
    found["ffn_hidden_size"] = args.integer("ffn_hidden_size") or _ffn(found["hidden_size"], found["gated_linear_unit"])
    found |= _mla(args)
    found |= _compressed(args)
    found |= _moe(args, found["ffn_hidden_size"])
    asked = kinds(args, found["hidden_size"], found["num_layers"])
    found |= asked | _unsupported(args, asked)
    return {field: value for field, value in found.items() if value is not None}


def _gated(args: Reader) -> bool | None:
    for name in ("swiglu", "glu_activation", "quick_geglu", "geglu", "gelu_tanh", "t5_swiglu"):
        if args.raw(name):
            return True
    return False if args.has("swiglu", "glu_activation", "openai_gelu", "squared_relu") else None


def _position(args: Reader) -> str | None:
    if args.flag("use_rotary_position_embeddings"):
        return "rope"
    word = args.word("position_embedding_type")
    return None if word is None else _POSITIONS.get(word, word)


def _ffn(hidden: object, gated: object) -> int | None:
    """Megatron-LM validate_args: 4·H, with a gate two thirds of it rounded down to a multiple of 64."""
    if not isinstance(hidden, int):
        return None
    return int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden


def _attention(args: Reader, heads: object) -> dict[str, object]:
    grouped, groups = args.flag("group_query_attention"), args.integer("num_query_groups")
    found: dict[str, object] = {}
    if grouped is False:
        found["num_query_groups"] = heads
    elif grouped or groups is not None:
        found["num_query_groups"] = groups
    window = args.raw("window_size")
    if isinstance(window, str):
        window = next(iter(args.integers("window_size") or ()), None)
    elif isinstance(window, (list, tuple)) and window:
        window = window[0]
    found["window_size"] = window if type(window) is int and window > 0 else None
    found["window_attn_skip_freq"] = _window_freq(args) if found["window_size"] else None
    if args.word("softmax_type") == "learnable" or args.flag("use_sink_attention"):
        found["attention_sinks"] = True
        width = args.integer("sink_sliding_window")
        if width:
            every_other = args.flag("sink_window_even_layers_only")
            found |= {"window_size": width, "window_attn_skip_freq": 2 if every_other else None}
    return found


def _window_freq(args: Reader) -> int | None:
    """Every n-th layer attends to everything. A list, one 1 for each windowed layer, means the n that gives it."""
    pattern = args.raw("window_attn_skip_freq")
    if not isinstance(pattern, (list, tuple)):
        return args.integer("window_attn_skip_freq")
    marks = [bool(item) for item in pattern]
    if all(marks):
        return None
    every = marks.index(False) + 1
    if marks != [(layer + 1) % every != 0 for layer in range(len(marks))]:
        args.problems.append(("window_attn_skip_freq", list(pattern), "a period: every n-th layer 0, the others 1"))
    return every


def _mla(args: Reader) -> dict[str, object]:
    latent = args.flag("multi_latent_attention") or args.word("model_type") == "kimi_k3"  # its builder needs no switch
    if args.flag("multi_latent_attention") is None and not latent:
        return {}
    ranks = args.named(table("megatron", "latent"))
    if not latent:
        return {"mla": False}
    if args.flag("mla_use_output_gate"):
        ranks["mla_use_output_gate"] = True
    return {"mla": {field: value for field, value in ranks.items() if value is not None}}


def _compressed(args: Reader) -> dict[str, object]:
    """DeepSeek-V4 as Primus names it (primus/configs/models/megatron/deepseek_v4_base.yaml), and Megatron-LM."""
    streams = args.integer("hc_mult", "num_residual_streams")
    if args.raw("enable_hyper_connections") and streams is None:
        streams = _STREAMS
    found: dict[str, object] = {"hyper_connections": streams if streams and streams > 1 else None}
    ratios = args.raw("compress_ratios") or args.raw("csa_compress_ratios")
    if ratios is None:
        return found
    sizes = args.named(table("megatron", "compressed"))
    stated: dict[str, object] = {name: value for name, value in sizes.items() if value is not None}
    # at 0 Primus keeps the indexer frozen, and so does Megatron-LM
    stated["trained"] = any([args.number("v4_indexer_distill_loss_coeff"), args.number("dsa_indexer_loss_coeff")])
    return found | {"attention_sinks": args.flag("attn_sink"), "compressed": {**stated, "compress_ratios": ratios}}


_STREAMS = 4  # NVIDIA/Megatron-LM core/transformer/transformer_config.py, num_residual_streams


def _moe(args: Reader, ffn: object) -> dict[str, object]:
    found = args.named(table("megatron", "experts"))
    stated = {name: value for name, value in found.items() if value is not None}
    if found["num_experts"] is None:
        return {"moe": stated} if stated else {}
    if found["moe_ffn_hidden_size"] is None and ffn is not None:
        stated["moe_ffn_hidden_size"] = ffn
    return {"moe": stated}


def _unsupported(args: Reader, asked: dict[str, object]) -> dict[str, object]:
    """What nothing here lowers, in words; not what is ``asked`` for by kinds of layers."""
    variants = table("megatron", "variants")
    reasons = [reason for name, reason in table("megatron", "parts").items() if args.raw(name)]
    kind, variant, spec = (
        args.raw("model_type"),
        args.raw("experimental_attention_variant"),
        str(args.raw("spec") or ""),
    )
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
    found = tuple(dict.fromkeys((*named, *reasons)))
    return {"unsupported": list(found)} if found else {}
