"""Builds readers of ``config.json`` from ``tables/huggingface.yaml``, for architectures that differ from others by words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from projector.intake.huggingface_types import (
    MODEL_TYPES,
    classic,
    dense_first,
    depth,
    given,
    routed,
    sizes,
    sparse_steps,
)
from projector.intake.tables import whole
from projector.intake.values import Reader

_Fields = dict[str, Any]
_FILE = "huggingface"
_BASES: Mapping[str, Callable[[Reader], _Fields]] = {**MODEL_TYPES, "classic": classic}
_COMPRESSED = (
    *("q_lora_rank", "qk_pos_emb_head_dim", "o_groups", "o_lora_rank", "attn_sliding_window"),
    *("index_n_heads", "index_head_dim", "index_topk", "compress_ratios"),
)
_INDEXER = ("index_n_heads", "index_head_dim", "index_topk")


def readers() -> Mapping[str, Callable[[Reader], _Fields]]:
    """Returns the readers of ``config.json`` by ``model_type``."""
    return MappingProxyType({name: partial(_read, name) for name in whole(_FILE)})


def _read(name: str, c: Reader) -> _Fields:
    table = whole(_FILE)
    entry = table[name]
    like = entry.get("like")
    fields: _Fields = {} if like is None else dict(_read(like, c) if like in table else _BASES[like](c))
    fields |= {field: value for field, value in sizes(c, **entry.get("fields", {})).items() if value is not None}
    fields |= {field: bool(c.flag(key)) for field, key in entry.get("flags", {}).items()}
    fields |= {field: c.flag(key) is not False for field, key in entry.get("usually", {}).items()}
    fields |= {field: fields.get(field) or value for field, value in entry.get("unsaid", {}).items()}
    if "window_if" in entry:
        fields["window_size"] = c.integer("sliding_window") if c.flag(entry["window_if"]) else None
    if "tied" in entry:
        tied = c.flag("tie_word_embeddings")
        fields["untie_embeddings_and_output_weights"] = tied is False if entry["tied"] else tied is not True
    for field, keys in entry.get("switched", {}).items():
        switch, *sized = keys.split()
        if c.flag(switch) and (stated := c.integer(*(sized or (field,)))):
            fields[field] = stated
    if "times" in entry:
        fields["ffn_hidden_size"] = fields.get("ffn_hidden_size") or entry["times"] * (fields.get("hidden_size") or 0)
    fields |= _experts(entry, c, fields)
    fields |= _windows(entry, c)
    fields |= _full(entry, c)
    fields |= _mixers(entry, c)
    fields |= _sparse(entry, c)
    for key, value in entry.get("fixed", {}).items():
        if not key.startswith("moe."):
            fields[key] = value
        elif isinstance(fields.get("moe"), dict):
            fields["moe"] |= {key.removeprefix("moe."): value}
    for key, unstated in entry.get("unstated", {}).items():
        fields |= {} if c.has(key) else unstated
    missing = [why for key, why in entry.get("refused_if", {}).items() if _is_on(c, key)]
    same = entry.get("equal", {}).items()
    missing += [why for key, (other, why) in same if c.integer(key) not in (None, c.integer(other))]
    for key, meanings in entry.get("values", {}).items():
        said = dict(meanings.get(c.flag(key), {}))
        missing += said.pop("unsupported", ())
        fields |= said
    fields["unsupported"] = [*entry.get("unsupported", ()), *missing]
    return fields | ({"unmodelled": tuple(entry["counted"])} if "counted" in entry else {})


def _experts(entry: Mapping[str, Any], c: Reader, fields: _Fields) -> _Fields:
    keys, condition = entry.get("experts"), entry.get("only_if")
    if keys is None:
        return {"moe": fields["moe"] | _expert_layers(entry, c)} if isinstance(fields.get("moe"), dict) else {}
    if condition and not _is_on(c, condition):
        return {}
    number, topk, width = keys
    moe = routed(c, number, width, topk)
    shared, own = entry.get("shared", {}), moe.get("moe_ffn_hidden_size")
    count = c.integer(*shared["number"].split()) if "number" in shared else None
    wide = c.integer(*shared["width"].split()) if "width" in shared else None
    total = wide if wide is not None else count * own if count and isinstance(own, int) else None
    groups = entry.get("groups", ())
    limits = [c.integer(key) for key in groups]
    if limits and (limits[0] or 0) > 1:
        moe |= given(moe_router_num_groups=limits[0], moe_router_group_topk=limits[1])
    gated = {"moe_shared_expert_gate": True} if total and shared.get("gate") else {}
    return {"moe": moe | given(moe_shared_expert_intermediate_size=total, **gated) | _expert_layers(entry, c)}


def _is_on(c: Reader, key: str) -> bool:
    return bool(c.flag(key) if isinstance(c.raw(key), bool) else c.integer(key))


def _expert_layers(entry: Mapping[str, Any], c: Reader) -> _Fields:
    layers, key = depth(c), entry.get("placed", "")
    kinds = c.raw("mlp_layer_types")
    if key == "all":
        return {}
    if isinstance(kinds, (list, tuple)):
        return {"moe_layer_freq": [int("dense" not in str(kind)) for kind in kinds]}
    if key in ("steps", "dense_first"):
        return {"moe_layer_freq": (sparse_steps if key == "steps" else dense_first)(c)["moe_layer_freq"]}
    if key in ("moe_layers", "moe_layers_enum"):
        step = c.integer("interleave_moe_layer_step") or 1
        at = set(c.integers(key) or (range(1, layers) if key.endswith("enum") else range(step - 1, layers, step)))
        return {"moe_layer_freq": [int(i in at) for i in range(layers)]}
    first = c.integer(key if key and key != "mlp_layer_types" else "first_k_dense_replace") or 0
    return {"moe_layer_freq": [int(i >= first) for i in range(layers)]}


def _windows(entry: Mapping[str, Any], c: Reader) -> _Fields:
    """Returns the layers' windows from a list of kinds of layers, or from full attention in every n-th layer."""
    if entry.get("windows") != "layer_types":
        return {}
    width, kinds = c.integer("sliding_window"), c.raw("layer_types")
    every = c.integer("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")
    if not isinstance(kinds, (list, tuple)):
        return {"window_size": width, "window_attn_skip_freq": every} if width and every else {}
    return {"per_layer": {"window_size": [width or 0 if "sliding" in str(kind) else 0 for kind in kinds]}}


def _mixers(entry: Mapping[str, Any], c: Reader) -> _Fields:
    """Returns mixer letters from a list of kinds of layers, or full attention every n-th layer, and sizes of each letter."""
    letters = entry.get("mixers")
    if letters is None:
        return {}
    lists = (c.raw(key) for key in ("layer_types", "layers_block_type", "attn_type_list"))
    kinds = next((kinds for kinds in lists if isinstance(kinds, (list, tuple))), None)
    if kinds is None:
        every, layers = c.integer("full_attention_interval") or 4, depth(c)
        full = next(kind for kind, letter in letters.items() if letter in "*+")
        other = next(kind for kind, letter in letters.items() if letter not in "*+")
        kinds = [full if (i + 1) % every == 0 else other for i in range(layers)]
    unknown = sorted({str(kind) for kind in kinds} - set(letters))
    if unknown:
        c.problems.append(("layer_types", ", ".join(unknown), f"kinds of layers: {', '.join(letters)}"))
    fields: _Fields = {"mixer_pattern": "".join(letters.get(str(kind), "") for kind in kinds)}
    for field, keys in entry.get("sizes", {}).items():
        fields[field] = given(**sizes(c, **keys))
        if keys.get("head_dim") == "head_dim" and (heads := c.integer("num_attention_heads")):
            fields[field].setdefault("head_dim", (c.integer("hidden_size") or 0) // heads)
    return fields


def _full(entry: Mapping[str, Any], c: Reader) -> _Fields:
    stated = given(**sizes(c, **entry.get("full", {})))
    stated |= {field: True for field, key in entry.get("full_flags", {}).items() if c.flag(key)}
    return {"full_attention": stated} if stated else {}


def _sparse(entry: Mapping[str, Any], c: Reader) -> _Fields:
    fields: _Fields = {}
    if "indexer" in entry:
        fields["indexer"] = given(
            **{field: c.integer(key) for field, key in zip(_INDEXER, entry["indexer"], strict=True)}
        )
    if "compressed" in entry:
        keys = dict(zip(_COMPRESSED, entry["compressed"], strict=True))
        ratios = c.raw(keys.pop("compress_ratios"))
        fields["compressed"] = given(**sizes(c, **keys), compress_ratios=ratios)
    return fields
