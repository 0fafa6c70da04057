"""Which kinds of layers Megatron-LM's arguments ask for: hybrid strings, linear attention every few layers, convolutions.

NVIDIA/Megatron-LM@d98e8a64dd megatron/core/models/hybrid/hybrid_layer_allocation.py, core/transformer/transformer_config.py;
AMD-AGI/Primus@fd1eeabb lfm2_8B_A1B.yaml, @1dc9a0e6 primus/backends/megatron/core/models/hybrid/{hybrid_block,
hybrid_mamba_mla_layer_specs}.py.
"""

from __future__ import annotations

from typing import Any

from projector.intake.tables import table
from projector.intake.values import Reader
from projector.workload.layer_pattern import expand, stages
from projector.workload.moe_layer_freq import numbers

_PATTERNS = ("hybrid_layer_pattern", "hybrid_override_pattern")
_HEAD = 64  # Megatron-LM's default of mamba_head_dim


def kinds(args: Reader, hidden: object, layers: object) -> dict[str, object]:
    """Model fields that say which layer is of which kind; nothing where all are attention and an MLP."""
    if isinstance(text := _pattern(args) or _stack(args, layers), str):
        return _hybrid(args, text, hidden)
    found: dict[str, object] = {}
    words = args.raw("lfm_layer_types")
    if isinstance(words, (list, tuple)) and any("conv" in str(word) for word in words):
        found["mixer_pattern"] = "".join("C" if "conv" in str(word) else "*" for word in words)
        found["short_convolution"] = _stated(args, {"conv_L_cache": "conv_width"})
    variant = args.word("experimental_attention_variant")
    if variant in ("gated_delta_net", "gdn") and type(layers) is int:
        marks = _marks(args.raw("linear_attention_freq"), layers)
        found["mixer_pattern"] = "".join(
            "G" if mark else "+" if args.flag("multi_latent_attention") else "*" for mark in marks
        )
        found["gdn"] = _of(args, "delta")
    if args.word("model_type") == "kimi_k3" and type(layers) is int:
        marks = _marks(numbers(args.raw("linear_attention_freq"), layers), layers)
        found["mixer_pattern"] = "".join("K" if mark else "+" for mark in marks)
        found["kda"] = _kimi(args)
    return found


def _kimi(args: Reader) -> dict[str, object]:
    """Sizes of Kimi Delta Attention (AMD-AGI/Primus@fd1eeabb primus/configs/models/megatron/kimi_k3_base.yaml)."""
    sizes = {
        "linear_num_key_heads": "num_heads",
        "linear_key_head_dim": "head_dim",
        "linear_conv_kernel_dim": "conv_width",
        "kda_chunk_size": "chunk",
    }
    stated: dict[str, object] = {**_stated(args, sizes)}
    return stated | ({"gate_rank": None} if args.flag("kda_use_full_rank_gate") else {})


def _fused_kimi(args: Reader) -> dict[str, object]:
    """Of a stack of Primus: one projection, values of a width of their own, which is the rank of decay and gate, too
    (AMD-AGI/Primus@fd1eeabb primus/backends/megatron/core/models/hybrid/kimi_delta_attention.py); what is not said is
    Megatron-LM's default."""
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
    """The pipeline layout that ``|`` in a hybrid string means, in the words of ``pipeline_model_parallel_layout``."""
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
    """The string of a stack that ``spec`` names: mixers alone, or Primus' turns of a mixer (or attention) and an MLP.

    Primus begins with an attention layer and lets as many mixers follow each as go evenly; what is left over ends the
    stack. ``hybrid_mlp_ratio`` is not looked at there. Other stacks than these have no string here.
    """
    if args.word("model_type") not in ("mamba", "hybrid") or type(layers) is not int:
        return None
    spec, share = str(args.raw("spec") or ""), args.number("hybrid_attention_ratio") or 0.0
    if "mamba_stack_spec" in spec and not share and not args.number("hybrid_mlp_ratio"):
        return "M" * layers
    sized = len(_of(args, "delta").keys() - {"linear_conv_kernel_dim"}) == 4
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
    """``/`` begins a depth of prediction: one attention, one MLP or experts there, as the model has them."""
    main, *depths = text.split("/")
    letters = expand(main)
    found: dict[str, object] = {"hybrid_layer_pattern": letters, "num_layers": len(letters)}
    wrong = [depth for depth in depths if expand(depth) not in ("*E", "*-", "+E", "+-")]
    if wrong:
        args.problems.append((_PATTERNS[0], text, "an attention and an MLP or experts in every depth after /"))
    if (args.integer("num_experts") or 0) > 1 and "E" not in letters and not any("E" in depth for depth in depths):
        args.problems.append(("num_experts", args.raw("num_experts"), f"E for their layers in the pattern {text}"))
    if depths:
        found["mtp_num_layers"] = len(depths)
    if args.flag("mtp_use_repeated_layer"):
        found["mtp_use_repeated_layer"] = True
    if "M" in letters:
        mamba = _of(args, "mamba")
        if "mamba_num_heads" not in mamba and isinstance(hidden, int):
            wide = 1 if "'hybrid_stack_spec'" in str(args.raw("spec")) else 2  # Primus' stack expands by one
            mamba["mamba_num_heads"] = wide * hidden // (mamba.get("mamba_head_dim") or _HEAD)
        found["mamba"] = mamba
    if "K" in letters:
        found["kda"] = _fused_kimi(args)
    if "G" in letters:
        found["gdn"] = _of(args, "delta")
    return found


def _of(args: Reader, layers: str) -> dict[str, Any]:
    """What is stated of the sizes of such layers."""
    return {name: value for name, value in args.named(table("megatron", layers)).items() if value is not None}


def _stated(args: Reader, names: dict[str, str]) -> dict[str, int]:
    return {field: value for name, field in names.items() if (value := args.integer(name)) is not None}


def _marks(freq: object, layers: int) -> list[bool]:
    """Which layers are linear: a list says so, a number n makes every n-th softmax attention."""
    if isinstance(freq, (list, tuple)):
        return [bool(mark) for mark in freq]
    every = freq if type(freq) is int and freq > 0 else 1
    return [every == 1 or (layer + 1) % every != 0 for layer in range(layers)]
