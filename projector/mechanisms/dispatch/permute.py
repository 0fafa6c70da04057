"""Tokens are sorted by expert and sent as many as there are (Megatron-LM core/transformer/moe/token_dispatcher.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from projector.mechanisms.dispatch.base import Dispatch

__all__ = ["Permute"]


@dataclass(frozen=True, kw_only=True)
class Permute(Dispatch):
    """Permutation, exchange by the recipe's dispatcher, sorting by local expert."""

    name: ClassVar[str] = "permute"
