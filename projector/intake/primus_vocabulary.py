"""The vocabulary of a Primus experiment whose presets name a tokenizer, not a size."""

from __future__ import annotations

from collections.abc import Mapping

from projector.workload import tokenizers

#: What Primus trains mock data with since 2026-04 (AMD-AGI/Primus@fd1eeabb
#: primus/backends/megatron/patches/args/mock_data_patches.py): a null tokenizer of this size, whatever the model.
_NULL_TOKENIZER = 131072


def completed(args: Mapping[str, object], name: str) -> tuple[dict[str, object], tuple[str, ...]]:
    """``args`` with a ``vocab_size``, and what that assumes. ``name``: of the model preset."""
    given = dict(args)
    if given.get("vocab_size") is not None or given.get("padded_vocab_size") is not None:
        return given, ()
    if given.get("mock_data"):
        size = _NULL_TOKENIZER
        return {**given, "vocab_size": size}, (f"vocab_size={size} (the null tokenizer that Primus gives mock data)",)
    found = tokenizers.completed(given, (name,))
    return ({**given, "vocab_size": found.size}, (str(found),)) if found else (given, ())
