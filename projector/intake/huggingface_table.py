"""Builds readers of ``config.json`` from ``tables/huggingface.yaml``, for architectures that differ from others by words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from projector.intake.tables import whole
from projector.intake.values import Reader

_Fields = dict[str, Any]
_FILE = "huggingface"
_MOST = 10_000  # layers, beyond which a count is a mistake that is reported elsewhere
_COMPRESSED = (
    *("q_lora_rank", "qk_pos_emb_head_dim", "o_groups", "o_lora_rank", "attn_sliding_window"),
    *("index_n_heads", "index_head_dim", "index_topk", "compress_ratios"),
)
_INDEXER = ("index_n_heads", "index_head_dim", "index_topk")


def sizes(c: Reader, **keys: str) -> _Fields:
    """Returns whole numbers by model field; ``keys`` names each field's key (``a.b``: b in section a), or several: the first
    present counts; a number behind them holds where they say none or 0."""
    return {field: _integer(c, *names.split()) for field, names in keys.items()}


def _integer(c: Reader, *names: str) -> int | None:
    if names[-1].isdigit():
        return _integer(c, *names[:-1]) or int(names[-1])
    section, dot, last = names[0].partition(".")
    return c.within(section).integer(last) if dot else c.integer(*names)


def depth(c: Reader, key: str = "num_hidden_layers") -> int:
    """Returns the number of layers, at most 10,000, so that lists with an entry a layer stay small."""
    return min(c.integer(key) or 0, _MOST)


def routed(c: Reader, experts: str, width: str = "", topk: str = "num_experts_per_tok") -> _Fields:
    """Returns the sizes of the experts; fields that the file does not state stay out."""
    named = {"moe_ffn_hidden_size": width} if width else {}
    return given(**sizes(c, num_experts=experts, moe_router_topk=topk, **named))


def given(**values: object) -> _Fields:
    """Returns ``values`` without those that are None."""
    return {name: value for name, value in values.items() if value is not None}


def readers() -> Mapping[str, Callable[[Reader], _Fields]]:
    """Returns the readers of ``config.json`` by ``model_type``."""
    return MappingProxyType({name: partial(read, name) for name in whole(_FILE) if not name.startswith("_")})


def read(name: str, c: Reader) -> _Fields:
    """Returns the model fields of a configuration by the entry ``name`` of the table."""
    entry = whole(_FILE)[name]
    fields: _Fields = read(entry["like"], c) if "like" in entry else {}
    fields |= {field: value for field, value in sizes(c, **entry.get("fields", {})).items() if value is not None}
    _put(fields, {field: bool(c.flag(*keys.split())) for field, keys in entry.get("flags", {}).items()})
    fields |= {field: c.flag(key) is not False for field, key in entry.get("usually", {}).items()}
    fields |= {field: fields.get(field) or (fields.get(value) if isinstance(value, str) else value)
               for field, value in entry.get("unsaid", {}).items()}  # fmt: skip
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
    fields |= {field: _sized(c, keys) for field, keys in entry.get("sizes", {}).items()}
    fields |= {field: letter * depth(c) for field, letter in entry.get("each", {}).items()}
    _put(fields, given(**{field: c.word(key) for field, key in entry.get("words", {}).items()}))
    _put(fields, entry.get("fixed", {}))
    for key, unstated in entry.get("unstated", {}).items():
        fields |= {} if c.has(key) else unstated
    missing = [why for key, why in entry.get("refused_if", {}).items() if _is_on(c, key)]
    same = entry.get("equal", {}).items()
    missing += [why for key, (other, why) in same if c.integer(key) not in (None, c.integer(other))]
    for key, meanings in entry.get("values", {}).items():
        switch = True in meanings or False in meanings
        said = dict(meanings.get(c.flag(key) if switch else c.choice(key, meanings), {}))
        missing += said.pop("unsupported", ())
        _put(fields, said)
    fields["unsupported"] = [*entry.get("unsupported", ()), *missing]
    return fields | ({"unmodelled": tuple(entry["counted"])} if "counted" in entry else {})


def _sized(c: Reader, keys: Mapping[str, str]) -> _Fields:
    """Returns the sizes of a kind of layer; a width of heads as that of attention, which is the hidden size's where none is
    stated; with ``expand`` those of Mamba, whose ``auto`` follows from the hidden size."""
    if "expand" in keys:
        return _recurrent(c, keys)
    stated = given(**sizes(c, **keys))
    if keys.get("head_dim") == "head_dim" and (heads := c.integer("num_attention_heads")):
        stated.setdefault("head_dim", (c.integer("hidden_size") or 0) // heads)
    return stated


def _recurrent(c: Reader, keys: Mapping[str, str]) -> _Fields:
    """Returns the sizes of Mamba: without a stated ``inner``, ``expand`` hidden sizes are its channels. Mamba-1's steps have
    the rank of a sixteenth of the hidden size, rounded up; Mamba-2's heads share the channels."""
    stated = given(
        **sizes(c, **{name: key for name, key in keys.items() if name != "expand" and c.raw(key.split()[0]) != "auto"})
    )
    hidden = c.integer("hidden_size") or 0
    inner = stated.pop("inner", None) or (_integer(c, *keys["expand"].split()) or 0) * hidden
    if "dt_rank" in keys:
        return {"dt_rank": -(-hidden // 16), **stated, "inner": inner}
    return {"mamba_head_dim": inner // max(1, stated["mamba_num_heads"]), **stated}


def _put(fields: _Fields, said: Mapping[str, object]) -> None:
    """Puts fields into ``fields``; those of a part (``moe.x``, ``mamba.x``) only where there is the part."""
    for key, value in said.items():
        part, dot, name = key.rpartition(".")
        if not dot:
            fields[key] = value
        elif isinstance(fields.get(part), dict):
            fields[part] |= {name: value}


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
    groups, most = entry.get("groups", (None, None))
    if groups and (number_of := c.integer(groups) or 0) > 1:
        moe |= given(moe_router_num_groups=number_of, moe_router_group_topk=c.integer(most))
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
    if key == "steps":
        every, without = c.integer("decoder_sparse_step") or 1, set(c.integers("mlp_only_layers") or ())
        return {"moe_layer_freq": [int((i + 1) % every == 0 and i not in without) for i in range(layers)]}
    if key == "dense_first":
        dense, every = c.integer("first_k_dense_replace") or 0, c.integer("moe_layer_freq") or 1
        return {"moe_layer_freq": [int(i >= dense and i % every == 0) for i in range(layers)]}
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
    at = set(c.integers(entry["full_at"]) or ()) if "full_at" in entry else None
    lists = (c.raw(key) for key in entry.get("listed", ("layer_types", "layers_block_type", "attn_type_list")))
    kinds = next((kinds for kinds in lists if isinstance(kinds, (list, tuple))), None)
    if kinds is None:
        layers = depth(c)
        if at is None:
            every = c.integer("full_attention_interval") or 4
            at = {i for i in range(layers) if (i + 1) % every == 0}
        full = next(kind for kind, letter in letters.items() if letter in "*+")
        other = next(kind for kind, letter in letters.items() if letter not in "*+")
        kinds = [full if i in at else other for i in range(layers)]
    unknown = sorted({str(kind) for kind in kinds} - set(letters))
    if unknown:
        c.problems.append(("layer_types", ", ".join(unknown), f"kinds of layers: {', '.join(letters)}"))
    fields: _Fields = {"mixer_pattern": "".join(letters.get(str(kind), "") for kind in kinds)}
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
