"""Finds the vocabulary of a tokenizer: hardly any training script states its size, all of them name their tokenizer.

Sizes are those before padding (Megatron-LM pads them to ``make_vocab_size_divisible_by`` · tp afterwards); facts and their
sources stand in ``tokenizers.yaml``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from projector.dataclass import dataclass
from projector.parameter import parameter

#: The size where nothing names a tokenizer.
DEFAULT_SIZE = parameter(
    128256, kind="assumed", source="that of Llama 3, between the 32k and 256k that are in use", low=32_000, high=262_144
)
#: The words on the default, after what is missing.
STANDS_IN = "the size of Llama 3's stands in; --vocab-size states it"
UNNAMED = f"no tokenizer is named: {STANDS_IN}"
_NULL = ("NullTokenizer", "NullMultimodalTokenizer")
_GPT2_FILES = ("vocab_file", "merge_file")
_CHECKPOINTS = ("load", "pretrained_checkpoint")
_FILES = ("tokenizer_model", "tokenizer_name_or_path", "tokenizer_file")
_ANY_FILE = frozenset(("vocab.json", "encoder.json"))  # names of GPT-2's own vocabulary
#: A size in a tokenizer's name, in thousands or whole, that is no date.
_COUNTED = re.compile(
    r"(?<![a-z\d])(?:(\d{2,3})k|(?!\d\d(?:0[1-9]|1[0-2])(?:[0-2]\d|3[01])(?!\d))(\d{5,6}))(?![a-z\d])"
)
#: Words for a tokenizer with more tokens than its family's.
_MORE = re.compile(r"(?:merged|extended|expanded)[-_.]?(?:tokeni[sz]er|vocab)", re.IGNORECASE)
#: A version behind a name (``3.5``, ``-v2``), which is neither a size (``-6.7b``, ``8x7b``) nor a date (``-0324``).
_VERSION = re.compile(r"[-_. ]?v?\d{1,2}(?:[._]\d{1,2})*(?![a-z\d]|[._]\d)")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A vocabulary of ``size`` tokens, unpadded, ``added`` of them after the tokenizer was trained; ``why``: what named it;
    ``sure``: False for the default size, and where a name leaves the version open."""

    size: int
    why: str
    sure: bool = True
    added: int = 0

    def __str__(self) -> str:
        """Returns an item for a list of assumptions: ``vocab_size=32000 (Llama2Tokenizer)``."""
        return f"vocab_size={self.size} ({self.why})"


def vocabulary(
    tokenizer_type: str | None = None,
    tokenizer_model: str | None = None,
    *,
    vocab_file: str | None = None,
    vocab_size: int | None = None,
    names: tuple[str, ...] = (),
) -> Vocabulary | None:
    """Returns the vocabulary of a tokenizer of Megatron's type, its file, folder or model name, or None where none of them
    names one.

    ``vocab_size``: what the arguments state, to which the null tokenizers add their end of document. ``names``: other texts
    that may name the model (the script, its checkpoints), the first that means a family counts.
    """
    kind = (tokenizer_type or "").strip()
    if vocab_size is not None:
        extra = 1 if kind in _NULL else 0
        return Vocabulary(vocab_size + extra, f"{kind}: vocab_size and one" if extra else "as stated")
    files = [text for text in (tokenizer_model, vocab_file) if text]
    for text in files:
        family = _family(text)
        if family and not _settled_by_type(kind, text):
            return Vocabulary(family["size"], f"tokenizer {_short(text)}", added=family.get("added", 0))
    for text in files:
        folder, name = posixpath.split(text.rstrip("/"))  # the folder, where the name of the file says nothing
        counted = _COUNTED.search((posixpath.basename(folder) if name.lower() in _ANY_FILE else name).lower())
        if counted and (text == vocab_file or not _settled_by_type(kind, text)):
            size = int(counted[1]) * 1000 if counted[1] else int(counted[2])
            return Vocabulary(size, f"tokenizer {_short(text)}, by its name")
    facts = _facts()["types"]
    file = vocab_file if kind == "GPT2BPETokenizer" and vocab_file and not _may_be_gpt2(vocab_file) else tokenizer_model
    if kind in facts and file and (file == vocab_file or _MORE.search(file)):
        why = f"{kind}; {_short(file)} may hold another number, which --vocab-size states"
        return Vocabulary(facts[kind]["size"], why, sure=False)
    if kind in facts:
        return Vocabulary(facts[kind]["size"], kind)
    found = [(text, family) for text in names if (family := _family(text))]
    for text, family in sorted(found, key=lambda each: "open" in each[1]):
        sure = "open" not in family
        why = f"of {_short(text)}" + ("" if sure else ", which leaves the version open: --vocab-size states it")
        return Vocabulary(family["size"], why, sure, family.get("added", 0))
    if vocab_file and "gpt2" in vocab_file.lower():
        return Vocabulary(facts["GPT2BPETokenizer"]["size"], "GPT-2's vocabulary file")
    return None


def completed(args: Mapping[str, object], names: tuple[str, ...] = ()) -> Vocabulary | None:
    """Returns the vocabulary that Megatron-LM arguments mean without stating it; None where they state it as it is.

    ``names``: as in :func:`vocabulary`, behind the checkpoints that the arguments load. Where nothing names a known
    tokenizer it is :data:`DEFAULT_SIZE`, not ``sure``.
    """
    kind = _text(args.get("tokenizer_type"))
    stated = args.get("vocab_size")
    if args.get("padded_vocab_size"):
        return None
    if stated and not (kind in _NULL and type(stated) is int):
        return None
    model = next((text for name in _FILES if (text := _text(args.get(name)))), None)
    merges = all(_text(args.get(name)) for name in _GPT2_FILES)
    patched, loads = _text(args.get("patch_tokenizer_type")), (_text(args.get(name)) for name in _CHECKPOINTS)
    known = vocabulary(
        kind or ("GPT2BPETokenizer" if merges else None),
        model,
        vocab_file=_text(args.get("vocab_file")),
        vocab_size=stated if type(stated) is int else None,
        names=(*filter(None, loads), *names),
    )
    if patched and patched in _facts()["patched"]:
        known = Vocabulary(_facts()["patched"][patched], patched)
    extra = args.get("extra_vocab_size")
    if known and type(extra) is int and extra > 0 and not stated:  # Pai-Megatron-Patch counts from what was trained
        known = Vocabulary(known.size - known.added + extra, f"{known.why}, extra_vocab_size {extra}", known.sure)
    tokenizer = model or _text(args.get("vocab_file")) or kind
    missing = f"tokenizer {_short(tokenizer)} is not known: {STANDS_IN}" if tokenizer else UNNAMED
    return known or Vocabulary(int(DEFAULT_SIZE), missing, sure=False)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _short(text: str) -> str:
    return text if len(text) <= 60 else "…" + text[-59:]


def _settled_by_type(kind: str, text: str) -> bool:
    """Returns whether the type alone settles the size: GPT-2's files lie in folders of any name."""
    return kind in ("GPT2BPETokenizer", "TikTokenizer", *_NULL) and "gpt2" not in text.lower()


def _may_be_gpt2(file: str) -> bool:
    """Returns whether the name of a vocabulary file says, or leaves open, that it is GPT-2's own."""
    name = posixpath.basename(file).lower()
    return "gpt2" in file.lower() or "gpt-2" in name or name in _ANY_FILE or not re.search(r"[a-z]", name)


def _family(text: str) -> Mapping[str, Any] | None:
    """Returns the family that a name or a path means; its last parts count before its folders. A version that
    no family has ends the search: Qwen/Qwen3.5 is no Qwen."""
    for family in _facts()["families"]:
        if any("/" in word and text.lower().rstrip("/").endswith(word) for word in family["words"]):
            return dict(family)
    parts = [part for part in re.split(r"[/\\]", text) if part and not _MORE.search(text)]
    for part in reversed(parts):
        words, before_version = _word_runs(part)
        for family in _facts()["families"]:
            if any(word in words for word in family["words"]):
                return dict(family)
        if any(word in before_version for family in _facts()["families"] for word in family["words"]):
            return None
    return None


def _word_runs(part: str) -> tuple[set[str], set[str]]:
    """Returns every run of neighbouring pieces of a name, joined, and those that a version follows: ``Llama-2-7b`` has
    llama2, llama27b, 2, … and llama."""
    lower = part.lower()
    runs, before_version = {lower}, set[str]()
    for shape in (r"[a-z]+|\d+[a-z]*", r"[^-_.\s]+"):
        items = list(re.finditer(shape, lower))
        for start in range(min(len(items), 24)):
            for stop in range(start, min(len(items), start + 6)):
                followed = _VERSION.match(lower, items[stop].end())
                (before_version if followed else runs).add("".join(item[0] for item in items[start : stop + 1]))
    return runs, before_version


@cache
def _facts() -> Mapping[str, Any]:
    import yaml

    text = Path(__file__).with_name("tokenizers.yaml").read_text(encoding="utf-8")
    facts: Mapping[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return facts
