"""Reads strings of layers: a letter a layer, ``(GGG*)12`` for twelve times the letters in brackets.

There are two kinds of strings. ``hybrid_layer_pattern`` is Megatron-LM's: every letter is a layer of its own, a mixer or an
MLP (megatron/core/models/hybrid/hybrid_layer_allocation.py at d98e8a64dd). ``mixer_pattern`` names the mixers alone of
layers that have an MLP each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

MIXERS: Mapping[str, str] = MappingProxyType(
    {
        "*": "attention",
        "+": "latent attention",
        "B": "attention to chosen blocks",
        "M": "Mamba-2",
        "S": "Mamba-1 (selective scan)",
        "P": "attention beside Mamba-2",
        "Z": "a shared block before Mamba-2",
        "G": "gated delta net",
        "K": "Kimi Delta Attention",
        "L": "lightning attention",
        "C": "short convolution",
    }
)
"""Letters of mixers, in words."""
SIZES: Mapping[str, str] = MappingProxyType(
    {
        "+": "mla",
        "E": "moe",
        "M": "mamba",
        "S": "mamba1",
        "P": "mamba",
        "G": "gdn",
        "K": "kda",
        "L": "lightning",
        "C": "short_convolution",
        "Z": "shared_blocks",
        "B": "block_attention",
    }
)
"""Field of a model that holds the sizes of what a letter means."""
MLPS: Mapping[str, str] = MappingProxyType({"-": "MLP", "E": "experts"})
"""Letters of layers that are an MLP alone."""

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
        return f"letters of layers: {words}; not {' '.join(unknown)}{_nearest_hint(unknown, known)}"
    if not letters:
        return "a letter a layer"
    return "" if len(letters) == layers else f"one letter a layer: {layers} of them, not {len(letters)}"


def _nearest_hint(unknown: list[str], known: Mapping[str, str]) -> str:
    near = [letter.swapcase() for letter in unknown if letter.swapcase() in known]
    return f"; nearest: {' '.join(near)}" if near else ""


def stages(text: str) -> tuple[int, ...]:
    """Returns the layers of every pipeline stage, where ``|`` bounds them; empty where nothing does."""
    return tuple(len(expand(part)) for part in text.split("|")) if "|" in text else ()
