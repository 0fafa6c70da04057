"""The vocabulary that a tokenizer has: hardly any training script states one, all of them name their tokenizer.

Sizes are those before padding (Megatron-LM pads them to ``make_vocab_size_divisible_by`` · tp afterwards); facts and
their sources stand in ``tokenizers.yaml``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from projector.parameter import parameter

#: Where nothing names a tokenizer.
DEFAULT_SIZE = parameter(
    128256, kind="assumed", source="that of Llama 3, between the 32k and 256k that are in use", low=32_000, high=262_144
)
#: How a default that stands for silence is told.
UNNAMED = "no tokenizer is named: the size of Llama 3's stands in"
_NULL = ("NullTokenizer", "NullMultimodalTokenizer")
_GPT2_FILES = ("vocab_file", "merge_file")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """``size`` in tokens, unpadded; ``why``: what named it; ``sure``: False for the default that stands for silence."""

    size: int
    why: str
    sure: bool = True

    def __str__(self) -> str:
        """For a list of what was assumed: ``vocab_size=32000 (Llama2Tokenizer)``."""
        return f"vocab_size={self.size} ({self.why})"


def vocabulary(
    tokenizer_type: str | None = None,
    tokenizer_model: str | None = None,
    *,
    vocab_file: str | None = None,
    vocab_size: int | None = None,
    names: tuple[str, ...] = (),
) -> Vocabulary | None:
    """The vocabulary of a tokenizer of Megatron's type, its file, folder or model name; None where none of them says.

    ``vocab_size``: what the arguments state, to which the null tokenizers add their end of document. ``names``: other
    texts that may name the model (the script, its checkpoints), the first that means a family counts.
    """
    kind = (tokenizer_type or "").strip()
    if vocab_size is not None:
        extra = 1 if kind in _NULL else 0
        return Vocabulary(vocab_size + extra, f"{kind}: vocab_size and one" if extra else "as stated")
    for text in (tokenizer_model, vocab_file):
        size = _family(text) if text else None
        if size is not None and not _fixed_against(kind, text or ""):
            return Vocabulary(size, f"tokenizer {_short(text or '')}")
    counted = re.search(r"(?<![a-z\d])(\d{2,3})k(?![a-z\d])", posixpath.basename((tokenizer_model or "").lower()))
    if counted and not _fixed_against(kind, tokenizer_model or ""):
        return Vocabulary(int(counted[1]) * 1000, f"tokenizer {_short(tokenizer_model or '')}, by its name")
    facts = _facts()["types"]
    if kind in facts:
        return Vocabulary(facts[kind]["size"], kind)
    for text in names:
        size = _family(text)
        if size is not None:
            return Vocabulary(size, f"of {_short(text)}")
    if vocab_file and "gpt2" in vocab_file.lower():
        return Vocabulary(facts["GPT2BPETokenizer"]["size"], "GPT-2's vocabulary file")
    return None


def completed(args: Mapping[str, object], names: tuple[str, ...] = ()) -> Vocabulary | None:
    """The vocabulary that Megatron-LM arguments mean without stating it; None where they state it as it is.

    ``names``: as in :func:`vocabulary`. Where nothing says, :data:`DEFAULT_SIZE`, which is then not ``sure``.
    """
    kind = _text(args.get("tokenizer_type"))
    stated = args.get("vocab_size")
    if args.get("padded_vocab_size"):
        return None
    if stated and not (kind in _NULL and type(stated) is int):
        return None
    model = _text(args.get("tokenizer_model")) or _text(args.get("tokenizer_name_or_path"))
    merges = all(_text(args.get(name)) for name in _GPT2_FILES)
    found = vocabulary(
        kind or ("GPT2BPETokenizer" if merges else None),
        model,
        vocab_file=_text(args.get("vocab_file")),
        vocab_size=stated if type(stated) is int else None,
        names=names,
    )
    extra = args.get("extra_vocab_size")
    if found and type(extra) is int and extra > 0 and not stated:
        found = Vocabulary(found.size + extra, f"{found.why}, extra_vocab_size {extra}", found.sure)
    return found or Vocabulary(int(DEFAULT_SIZE), UNNAMED, sure=False)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _short(text: str) -> str:
    return text if len(text) <= 60 else "…" + text[-59:]


def _fixed_against(kind: str, text: str) -> bool:
    """Whether the type alone settles the size: GPT-2's files lie in folders of any name."""
    return kind in ("GPT2BPETokenizer", "TikTokenizer", *_NULL) and "gpt2" not in text.lower()


def _family(text: str) -> int | None:
    """The size for the family that a name or a path means; its last parts count before its folders."""
    for family in _facts()["families"]:
        if any("/" in word and text.lower().rstrip("/").endswith(word) for word in family["words"]):
            return int(family["size"])
    parts = [part for part in re.split(r"[/\\]", text) if part]
    for part in reversed(parts):
        words = _words(part)
        for family in _facts()["families"]:
            if any(word in words for word in family["words"]):
                return int(family["size"])
    return None


def _words(part: str) -> set[str]:
    """Every run of neighbouring pieces of a name, joined: ``Llama-2-7b`` has llama, llama2, llama27b, 2, …"""
    pieces = re.findall(r"[a-z]+|\d+[a-z]*", part.lower())
    plain = re.split(r"[-_.\s]+", part.lower())
    runs = {part.lower()}
    for items in (pieces, plain):
        for start in range(min(len(items), 24)):
            for stop in range(start + 1, min(len(items), start + 6) + 1):
                runs.add("".join(items[start:stop]))
    return runs


@cache
def _facts() -> Mapping[str, Any]:
    import yaml

    text = resources.files(__package__).joinpath("tokenizers.yaml").read_text(encoding="utf-8")
    found: Mapping[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return found
