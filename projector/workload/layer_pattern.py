"""Reads strings of layers: a letter a layer, ``(GGG*)12`` for twelve times the letters in brackets.

There are two kinds of strings. ``hybrid_layer_pattern`` is Megatron-LM's: every letter is a layer of its own, a mixer or an
MLP (megatron/core/models/hybrid/hybrid_layer_allocation.py at d98e8a64dd). ``mixer_pattern`` names the mixers alone of
layers that have an MLP each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

_MIXERS: Mapping[str, tuple[str, str]] = {  # in words, and the field of a model that holds its sizes
    "*": ("attention", ""),
    "+": ("latent attention", "mla"),
    "B": ("attention to chosen blocks", "block_attention"),
    "M": ("Mamba-2", "mamba"),
    "S": ("Mamba-1 (selective scan)", "mamba1"),
    "P": ("attention beside Mamba-2", "mamba"),
    "Z": ("a shared block before Mamba-2", "shared_blocks"),
    "G": ("gated delta net", "gdn"),
    "K": ("Kimi Delta Attention", "kda"),
    "L": ("lightning attention", "lightning"),
    "C": ("short convolution", "short_convolution"),
}
MIXERS: Mapping[str, str] = MappingProxyType({letter: words for letter, (words, _) in _MIXERS.items()})
"""Letters of mixers, in words."""
MLPS: Mapping[str, str] = MappingProxyType({"-": "MLP", "E": "experts"})
"""Letters of layers that are an MLP alone."""
SIZES: Mapping[str, str] = MappingProxyType(
    {each: field for each, (_, field) in _MIXERS.items() if field} | {"E": "moe"}
)
"""Field of a model that holds the sizes of what a letter means."""

_REPEAT = re.compile(r"\(([^()]*)\)(\d{1,4})")


def expand(text: str, longest: int = 20_000) -> str:
    """Returns the letters of ``text`` with its repeats written out and without boundaries of stages. Text that it
    cannot read stays as it is."""
    letters = text.replace("|", "").replace(" ", "")
    while (repeat := _REPEAT.search(letters)) and len(repeat[1]) * int(repeat[2]) <= longest:
        letters = letters[: repeat.start()] + repeat[1] * int(repeat[2]) + letters[repeat.end() :]
    return letters


def misread(text: str, known: Mapping[str, str], layers: int) -> str:
    """Returns what ``text`` should have been: letters of ``known``, as many as ``layers``; empty where it is right."""
    letters = expand(text)
    unknown = sorted(set(letters) - set(known))
    if unknown:
        words = ", ".join(f"{letter} ({what})" for letter, what in known.items())
        near = [letter.swapcase() for letter in unknown if letter.swapcase() in known]
        hint = f"; nearest: {' '.join(near)}" if near else ""
        return f"letters of layers: {words}; not {' '.join(unknown)}{hint}"
    if not letters:
        return "a letter a layer"
    return "" if len(letters) == layers else f"one letter a layer: {layers} of them, not {len(letters)}"


def stages(text: str) -> tuple[int, ...]:
    """Returns the layers of every pipeline stage, where ``|`` bounds them; empty where nothing does."""
    return tuple(len(expand(part)) for part in text.split("|")) if "|" in text else ()
