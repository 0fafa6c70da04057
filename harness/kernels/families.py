"""Translates the words of a third-party kernel table: library, operand type, scale scheme, tile and condition. One place
for these rules, with ``words.yaml`` beside it: the importer of ``measured/kernels`` and the reader of any table both use
them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harness.evidence import shelf

Raw = Mapping[str, str]

WORDS: Mapping[str, Any] = shelf.data("kernels/words.yaml")
_TILE = re.compile(r"(?<![x\d])(?:\d+x)?(\d+x\d+x\d+)(?![x\d])|(\d+x\d+)(?=E$|_pf|_split)")
_SPLIT = re.compile(r"split_?[kK]=?(\d+)")
_FOLDERS = re.compile(r"(aiter/configs/model_configs/|aiter/configs/|configs/system/)")


def family(library: str) -> str:
    """Returns the family of a library's name; a name that no rule knows is a family of its own."""
    low = library.lower()
    return known_library(library) or re.sub(r"[^a-z0-9]+", "_", low).strip("_") or "unnamed"


def known_library(library: str) -> str | None:
    low = library.lower()
    return next((str(name) for mark, name in WORDS["families"] if mark in low), None)


def gemm_family(raw: Raw, vendor: str) -> str:
    """Returns the family of a GEMM: weights shuffled beforehand into the matrix unit's order are another class."""
    return _on_vendor(family(raw["library"]), vendor) + ("_preshuffled" if "b_preshuffled" in raw["notes"] else "")


def attention_family(raw: Raw, vendor: str, arch: str) -> str:
    """Returns the family of an attention kernel; TransformerEngine picks FlashAttention-2 on Ampere and cuDNN on its
    successors (its documentation, attention back ends), CK on AMD."""
    if "transformerengine" in raw["library"].lower():
        return "ck" if vendor == "amd" else "fa2" if arch == "ampere" else "cudnn"
    return _on_vendor(family(raw["library"]), vendor)


def _on_vendor(name: str, vendor: str) -> str:
    return str(WORDS["on_amd"].get(name, name)) if vendor == "amd" else name


def backend(library: str) -> str:
    """Returns how the experts of a grouped GEMM are launched: ``fused`` in one kernel, one by one, or on streams."""
    low = library.lower()
    if any(mark in low for mark in WORDS["fused"]):
        return "fused"
    return "loop" if "loop" in low or "sequential" in low else "multi_stream"


def tile_of(kernel: str) -> str:
    """Returns rows x columns (x depth) of the macro-tile in a kernel's name, empty where the name has none."""
    match = _TILE.search(re.sub(r"_1x128x128_|_0x0x8x4x[0-9x]*_", "_", kernel))
    return next((part for part in match.groups() if part), "") if match else ""


def split_of(kernel: str) -> str:
    return next(iter(_SPLIT.findall(kernel)), "")


def dtype_of(raw: Raw) -> str:
    word = raw["dtype"].strip().lower().removeprefix("torch.")
    if word.startswith(("fp8", "float8")):
        return "fp8"
    return str(WORDS["dtypes"].get(word, word))


def scaling_of(raw: Raw) -> str:
    """Returns how 8- and 4-bit operands are scaled, as the notes say; FP8 is scaled by tensor where they do not."""
    notes, kind = raw["notes"].lower(), dtype_of(raw)
    if kind == "fp8":
        if "block" in notes or "block" in raw["library"].lower() or "1x128" in notes:
            return "blockwise"
        return "rowwise" if re.search(r"row-?wise|per[-_ ](row|token|channel)", notes) else "tensorwise"
    return kind if kind.startswith("mx") else ""


def provenance(raw: Raw) -> str:
    """Returns the source without the folders that all rows of a repository share."""
    return _FOLDERS.sub("", raw["source"])


def condition(raw: Raw) -> str:
    """Returns how a time was taken, as far as source and notes tell."""
    notes, source = raw["notes"], raw["source"]
    if "SimuMax" in source:
        return "framework average"
    if "aiter@" in source:
        return "tuned winner, profiled"
    if "warm-up" in notes:
        return "sustained clocks"
    return "gpu inferred" if "GPU inferred" in notes else "published"


def unusable(raw: Raw) -> str | None:
    """Returns why a figure is no measurement of its shape, or None."""
    return next((str(reason) for mark, reason in WORDS["unusable"].items() if mark in raw["notes"]), None)
