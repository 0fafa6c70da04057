"""The model of a record: a zoo name, a zoo name with overrides, or a full architecture that the record states."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harness.evidence.ingest import vocabulary
from harness.evidence.ingest.record import FIELDS, Record, integer
from projector.errors import Problem
from projector.workload import zoo
from projector.workload.field_facts import about_of
from projector.workload.model import MLA, Model, MoE
from projector.workload.moe_layer_freq import expand, numbers
from projector.workload.schema import parse_model

# Key of the record → field of Model (top level), MLA or MoE.
_PLAIN, _MLA, _MOE = (
    {key: field for key, field in FIELDS.items() if field in about_of(kind) and field != "moe_layer_freq"}
    for kind in (Model, MLA, MoE)
)
_PLAIN |= {"sliding_window": "window_size", "window_attn_skip_freq": "window_attn_skip_freq"}
_is_architecture = re.compile(r"arch\.").match  # subjects of a vocabulary
_FLAGS = {"attention_sinks": "attention_sinks", "swiglu": "gated_linear_unit", "bias": "add_bias_linear"}
_MOST_LAYERS = 1000
_MAY_BE_ZERO = ("q_lora_rank", "shared_expert_ffn", "sliding_window", "window_attn_skip_freq")
# Marks of parts that no operator lowers.
_FOREIGN = {"n_state": "recurrent layers"}


def architecture(record: Record) -> tuple[Model | None, str]:
    """Returns the model and its name; the model is None where it is unknown or incomplete, and the record says why."""
    text = record.text("model")
    name = zoo.find(text) if text else None
    stated = _stated_fields(record)
    foreign = [why for key, why in _FOREIGN.items() if record.get(f"arch.{key}", f"other.args.{key}") is not None]
    for why in dict.fromkeys(foreign):
        record.refuse(f"architecture not modelled: {why}")
    if not text and not stated:
        record.refuse("model not stated")
        return None, ""
    if name is None:
        built = None if foreign else _from_scratch(record, text, stated)
        return built, text or (built.name if built else "")
    model = _zoo_model(record, name, text, stated)
    for why in model.unsupported if model else ():
        record.refuse(f"architecture not modelled: {why}")
    return model, name


def _stated_fields(record: Record) -> dict[str, Any]:
    """Returns the model fields that the record states, nested as the model schema nests them."""
    mla, moe, fields = (_counts(record, keys) for keys in (_MLA, _MOE, _PLAIN))
    if (tied := record.flag("arch.tied_embeddings")) is not None:
        fields["untie_embeddings_and_output_weights"] = not tied
    for key, field in _FLAGS.items():
        if (flag := record.flag(f"arch.{key}")) is not None:
            fields[field] = flag
    for key in filter(_is_architecture, vocabulary.subjects()):
        words = vocabulary.read(key, record.text(key))
        fields |= words.settings
        record.leave(key, ", ".join(words.unread))
    if "position_embedding_type" not in fields and "alibi attention" in record.text("note").lower():
        fields["position_embedding_type"] = "alibi"
    if pattern := record.text("arch.hybrid_layer_pattern"):
        fields["hybrid_layer_pattern"] = pattern
    mtp = record.integer("other.mtp_num_layers", "other.args.mtp_num_layers", "arch.mtp_layers", "other.mtp_layers")
    if mtp is not None:
        fields["mtp_num_layers"] = mtp
    if mla and ("kv_lora_rank" in mla):
        fields["mla"] = mla
        fields.pop("kv_channels", None)
    if moe:
        fields["moe"] = moe
    fields |= _compressed_attention(record)
    return fields


def _compressed_attention(record: Record) -> dict[str, object]:
    """Reads compressed sparse attention: tokens of an entry by layer, one for the prediction depths last; entries chosen;
    whether a loss of its own trains the indexer."""
    ratios = record.get("arch.compress_ratios", "other.args.csa_compress_ratios")
    topk = record.integer("arch.index_topk")
    values = {"index_topk": topk, "compress_ratios": numbers(ratios, _MOST_LAYERS)}
    sizes = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items() if value}
    coefficient = record.number("other.indexer_distill_loss_coeff", "other.args.dsa_indexer_loss_coeff")
    trained = {"trained": True} if coefficient else {}
    return {"compressed": {**sizes, **trained}} if ratios is not None or trained else {}


def _counts(record: Record, keys: Mapping[str, str]) -> dict[str, Any]:
    return {field: value for key, field in keys.items() if (value := _count(record, key)) is not None}


def _count(record: Record, key: str) -> int | None:
    """Reads a count of the architecture; a text such as ``~250k (250680 class)`` gives the number in its bracket."""
    if (value := record.get(f"arch.{key}")) is None:
        return None
    count = integer(value)
    if count is not None and count < (0 if key in _MAY_BE_ZERO else 1):
        record.refuse(f"arch.{key} = {count} is not positive")
        return None
    if count is None and isinstance(value, str) and (inner := re.search(r"\((\d{3,})[^)]*\)", value)):
        count = int(inner[1])
        record.assume(f"{_PLAIN.get(key, key)}={count} (source says {value!r})")
    elif count is None:
        record.leave(f"arch.{key}", value)
    return count


def _zoo_model(record: Record, name: str, text: str, stated: dict[str, Any]) -> Model | None:
    """Returns the zoo model with what the record states otherwise, layer counts in the text included."""
    base = zoo.load(name)
    layers = re.search(r"(\d+)[- ]layers?\b", text)
    if "num_layers" not in stated and layers:
        stated["num_layers"] = int(layers[1])
    if "truncated" in text and "num_layers" not in stated:
        record.refuse("layer count of the truncated model not stated")
        return None
    if "w/o mtp" in text.lower() and record.get("other.mtp_num_layers") is None:
        stated["mtp_num_layers"] = 0
    if base.mla is not None:
        stated.pop("kv_channels", None)
        stated.pop("num_query_groups", None)
    else:
        _set_head_width(base, stated)
    if zoo.is_template(name) and (missing := [field for field in _SHAPE if field not in stated]):
        record.refuse(f"architecture not stated: {text} ({', '.join(missing)})")
        return None
    if base.moe is None:
        _add_experts(record, base, stated)
    elif "moe" in stated:
        # A shared expert's width the record leaves out stays the base's, as do its group limits.
        stated["moe"] = dict(stated["moe"])
    # Megatron's NullTokenizer adds an end-of-document token to the stated vocabulary (training/tokenizer)
    if record.text("other.tokenizer") == "NullTokenizer":
        stated["vocab_size"] = stated.get("vocab_size", base.vocab_size) + 1
        record.map("vocab_size", stated["vocab_size"], "NullTokenizer adds one")
    overrides = _differences(base, stated)
    _set_layer_pattern(record, base, overrides)
    if not overrides:
        record.map("model", name, text)
        return base
    model, problems = parse_model({"base": name, **overrides}, record.where)
    record.map("model", f"{name} with {', '.join(f'{key}={value}' for key, value in overrides.items())}", text)
    return _refuse_problems(record, model, problems)


def _add_experts(record: Record, base: Model, stated: dict[str, Any]) -> None:
    """Puts experts that the record states into the layers of a dense zoo model."""
    moe = stated.pop("moe", None)
    if not isinstance(moe, Mapping) or moe.get("num_experts", 1) == 1:
        return
    sizes = {field: stated.get(field, getattr(base, field)) for field in ("num_layers", "ffn_hidden_size")}
    stated["moe"] = _complete_moe(record, {**sizes, "moe": moe})["moe"]


def _set_head_width(base: Model, stated: dict[str, Any]) -> None:
    """Derives the head width from a changed width or head count, unless the record states it."""
    usual = base.hidden_size, base.num_attention_heads
    hidden, heads = stated.get("hidden_size", usual[0]), stated.get("num_attention_heads", usual[1])
    if (hidden, heads) != usual and "kv_channels" not in stated:
        stated["kv_channels"] = hidden // heads
        if base.num_query_groups == base.num_attention_heads:
            stated.setdefault("num_query_groups", heads)


def _differences(base: Model, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what differs from the zoo's model, nested parts reduced to their differing fields."""
    differences: dict[str, Any] = {}
    for field, value in stated.items():
        current = getattr(base, field)
        if isinstance(value, Mapping):
            value = {k: v for k, v in value.items() if current is None or getattr(current, k) != v}
            if value:
                differences[field] = value
        elif current != value:
            differences[field] = value
    return differences


def _set_layer_pattern(record: Record, base: Model, overrides: dict[str, Any]) -> None:
    """Sets the dense/MoE pattern: the stated one or number of dense layers first, else the base's for its layer count."""
    if base.moe is None:
        return
    layers = overrides.get("num_layers", base.num_layers)
    dense = record.integer("arch.dense_layers")
    prefix = base.moe.moe_layer_freq.index(1) if 1 in base.moe.moe_layer_freq else len(base.moe.moe_layer_freq)
    pattern = record.get("arch.moe_layer_freq", "other.args.moe_layer_freq")
    if pattern is not None and dense is None:
        marks, wrong = expand(pattern, layers)
        if wrong:
            record.leave("moe_layer_freq", f"{pattern}: {wrong}")
        elif marks != base.moe.moe_layer_freq:
            overrides["moe"] = {**overrides.get("moe", {}), "moe_layer_freq": str(list(marks))}
        if marks:
            return
    if dense is None:
        # Whoever keeps a few layers of a mixture-of-experts model to look at its experts makes all of them such layers
        # (PRIMUS_MOE_LAYER_FREQ=1 in the proxy scripts of AMD-AGI/Primus).
        few = layers <= 2 * prefix
        dense = 0 if few else prefix
        if "num_layers" in overrides and prefix:
            record.assume(f"dense layers={dense} ({'few layers: all have experts' if few else 'as the full model'})")
    if layers == base.num_layers and dense == prefix:
        return
    moe = dict(overrides.get("moe", {}))
    overrides["moe"] = moe | {"moe_layer_freq": f"([0]*{dense}+[1]*{layers - dense})"}


_SHAPE = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads")
_NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")


def _from_scratch(record: Record, text: str, stated: dict[str, Any]) -> Model | None:
    """Builds a model that no zoo has from a record that states the whole architecture."""
    missing = [field for field in _NEEDED if field not in stated]
    if "ffn_hidden_size" not in stated and "moe" not in stated:
        missing.append("ffn_hidden_size")
    if missing:
        unknown = f"unknown model {text!r}" if text else "model not stated"
        record.refuse(f"{unknown}, architecture incomplete (no {', '.join(missing)})" if stated else unknown)
        return None
    full = _block_style(record, text, stated) | stated
    heads, hidden = full["num_attention_heads"], full["hidden_size"]
    full.setdefault("num_query_groups", heads)
    full.setdefault("kv_channels", hidden // max(1, heads))
    if isinstance(full.get("moe"), Mapping):
        full = _complete_moe(record, full)
    slug = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "model"
    if min(heads, hidden) < 1:
        record.refuse(f"architecture with {heads} heads of a width of {hidden}")
        return None
    model, problems = parse_model({"name": slug, "family": slug, **full}, record.where)
    record.map("model", f"{full['num_layers']} layers of {hidden}", text)
    return _refuse_problems(record, model, problems)


def _block_style(record: Record, text: str, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what an architecture leaves unsaid: GPT-like where the MLP is 4 h wide and not gated, else Llama-like."""
    hidden, ffn = stated["hidden_size"], stated.get("ffn_hidden_size")
    gpt = stated.get("gated_linear_unit") is False or (ffn == 4 * hidden and "gated_linear_unit" not in stated)
    if "gpt-style" in text.lower() and "gated_linear_unit" not in stated:
        record.assume("gated_linear_unit=False (GPT-style)")
        gpt = True
    if gpt:
        record.assume("GPT block: GELU, LayerNorm, biases, learned positions")
        return {
            "gated_linear_unit": False,
            "normalization": "LayerNorm",
            "add_bias_linear": True,
            "add_qkv_bias": True,
            "position_embedding_type": "learned_absolute",
            "untie_embeddings_and_output_weights": False,
        }
    record.assume("Llama block: SwiGLU, RMSNorm, rotary positions, no biases")
    return {}


def _complete_moe(record: Record, full: dict[str, Any]) -> dict[str, Any]:
    layers = full["num_layers"]
    dense = record.integer("arch.dense_layers") or 0
    pattern = record.get("arch.moe_layer_freq", "other.args.moe_layer_freq")
    moe = {"moe_layer_freq": pattern or f"([0]*{dense}+[1]*{layers - dense})", **full["moe"]}
    width = moe.get("moe_ffn_hidden_size", full.get("ffn_hidden_size"))
    return {"ffn_hidden_size": width, **full, "moe": moe | {"moe_ffn_hidden_size": width}}


def _refuse_problems(record: Record, model: Model | None, problems: list[Problem]) -> Model | None:
    for problem in problems:
        record.refuse(f"{problem.key}: {problem.found!r} is not {problem.expected}")
    return model
