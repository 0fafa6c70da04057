"""The model that torchtitan prints as it builds it: its name, and the dataclass of a Llama's arguments where it is none of
the published ones.

Other families' arguments (experts, latent or linear attention, what forks add) are left to the name: a part of them would
make another model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from harness.evidence.ingest.logs.numbers import whole
from harness.evidence.ingest.logs.words import LLAMA, WORDS

_BUILDING = re.compile(
    r"Building ([\w.-]{2,40}) (?:([0-9][\w.]{0,12}) with |([\w.-]{1,80}) with (?=\{|[\w.]{0,40}(?:Args|Config)\())"
)
_ARGUMENTS = re.compile(r" with \w{0,40}ModelArgs\((.{10,2000})\)\s*$")
_ARGUMENT = re.compile(r"\b(\w{2,40})=([\w.+-]{1,40})(?=[,)]|$)")
_LLAMA = ("llama", "llama2", "llama3")
_RANK = re.compile(r"\[rank[0-9]{1,6}\]:")
_MOST_LINES = 200_000  # of a model's JSON: some 150 a layer
_PARTS = ("attention", "feed_forward", "attention_norm", "ffn_norm", "param_init")
_SHAPE: Mapping[str, object] = {**LLAMA, "untie_embeddings_and_output_weights": True}


def built(line: str) -> str | None:
    """``family flavour`` of the model that a line says is built."""
    match = _BUILDING.search(line)
    return f"{match[1]} {match[2] or match[3]}" if match else None


def architecture(line: str) -> Mapping[str, object]:
    """Megatron-LM's arguments of a printed Llama; empty for anything else.

    The feed-forward size follows torchtitan's models/llama3/model.py: two thirds of four times the width, times
    ``ffn_dim_multiplier``, rounded up to ``multiple_of``.
    """
    name, printed = _BUILDING.search(line), _ARGUMENTS.search(line)
    if name is None or printed is None or name[1] not in _LLAMA or "moe" in printed[1].lower():
        return {}
    found = {match[1]: match[2] for match in _ARGUMENT.finditer(printed[1])}
    sizes = {ours: whole(found.get(theirs, "")) for theirs, ours in WORDS["torchtitan-llama"].items()}
    multiple = whole(found.get("multiple_of", "256"))
    factor = found.get("ffn_dim_multiplier", "None")
    if not all(sizes.values()) or not multiple:
        return {}
    width = int(2 * (4 * (sizes["hidden_size"] or 0)) / 3)
    if factor != "None":
        try:
            width = int(float(factor) * width)
        except (ValueError, OverflowError):
            return {}
    groups = whole(found.get("n_kv_heads", "")) or sizes["num_attention_heads"]
    return {
        **sizes,
        "ffn_hidden_size": -(-width // multiple) * multiple,
        "group_query_attention": groups != sizes["num_attention_heads"],
        "num_query_groups": groups,
        **_SHAPE,
    }


class Printed:
    """What is printed as JSON over many lines, each behind the prefix of its rank. ``opens``: whether a line is the first;
    ``read``: what the JSON says."""

    def __init__(self, opens: Callable[[str], bool], read: Callable[[Any], Mapping[str, object]]) -> None:
        self._opens, self._read = opens, read
        self._lines: list[str] = []
        self._prefix = ""
        self._depth = 0

    def begin(self, line: str) -> bool:
        """Whether a line opens the JSON."""
        if not line.rstrip().endswith(" {") or not self._opens(line):
            return False
        rank = _RANK.match(line)
        self._lines, self._prefix, self._depth = ["{"], rank[0] if rank else "", 1
        return True

    def feed(self, line: str) -> bool:
        """Take a line; whether it was one of the JSON (others' lines may stand between)."""
        if not self._depth or not line.startswith(self._prefix) or len(self._lines) >= _MOST_LINES:
            self._depth = self._depth if len(self._lines) < _MOST_LINES else 0
            return False
        text = line[len(self._prefix) :].strip()
        if not text or text[0] not in '"{}[]':
            return False
        self._lines.append(text)
        self._depth += (text[-1] in "{[") - (text.rstrip(",") in ("}", "]"))
        return True

    def take(self) -> Mapping[str, object]:
        """What the JSON says, when it is whole; else empty."""
        if self._depth or not self._lines:
            return {}
        text, self._lines = "\n".join(self._lines), []
        try:
            return self._read(json.loads(text))
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError, IndexError, ZeroDivisionError):
            return {}


def a_llama(line: str) -> bool:
    """Whether a line says that a Llama is built."""
    name = _BUILDING.search(line)
    return name is not None and name[1] in _LLAMA


def llama(model: Any) -> Mapping[str, object]:
    """Megatron-LM's arguments of a printed model, where all its layers are a Llama's; else empty."""
    shapes = {_layer(layer) for layer in model["layers"]}
    if len(shapes) != 1 or None in shapes:
        return {}
    heads, groups, head, ffn = shapes.pop()  # type: ignore[misc]
    return {
        "num_layers": len(model["layers"]),
        "hidden_size": int(model["dim"]),
        "vocab_size": int(model["vocab_size"]),
        "num_attention_heads": heads,
        "num_query_groups": groups,
        "group_query_attention": groups != heads,
        "kv_channels": head,
        "ffn_hidden_size": ffn,
        **_SHAPE,
        "untie_embeddings_and_output_weights": not model.get("enable_weight_tying"),
    }


def _layer(layer: Any) -> tuple[int, int, int, int] | None:
    """(heads, key-value heads, size of a head, feed-forward size) of a dense layer without anything else."""
    attention, mlp = layer["attention"], layer["feed_forward"]
    if any(layer.get(name) for name in layer if name not in _PARTS) or attention.get("qk_norm"):
        return None
    if any(part["bias"] for part in (attention["wq"], attention["wo"], mlp["w1"])) or "w3" not in mlp:
        return None
    heads = int(attention["n_heads"])
    return (
        heads,
        int(attention["n_kv_heads"] or heads),
        attention["wq"]["out_features"] // heads,
        mlp["w1"]["out_features"],
    )
