"""What the words of a third-party kernel table mean here: library, operand type, scale scheme, tile and condition.

One place for these rules: the importer of ``measured/kernels`` and the reader of any table both use them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Raw = Mapping[str, str]

# The first mark that a library's name contains decides.
_FAMILIES = (
    ("transformerengine grouped", "multi_stream"),
    ("transformerengine", "cublaslt"),
    ("cublas", "cublaslt"),
    ("torch.matmul hipblaslt", "hipblaslt"),
    ("aiter torch", "hipblaslt"),
    ("hipblas", "hipblaslt"),
    ("rocblas", "hipblaslt"),
    ("best of backends", "tuned"),
    ("cutlass", "cutlass"),
    ("deepgemm", "deepgemm"),
    ("hipkittens", "hipkittens"),
    ("torch.m", "cublaslt"),
    ("flashattention-2", "fa2"),
    ("flashattention-3", "fa3"),
    ("flashattention-4", "fa4"),
    ("cudnn", "cudnn"),
    ("bwd_v3 asm a16", "aiter_a16"),
    ("bwd_v3 asm a32", "aiter"),
    ("fmha_v3", "aiter"),
    ("aiter asm", "asm"),
    ("opus", "opus"),
    ("flydsl", "flydsl"),
    ("cktile", "cktile"),
    ("triton", "triton"),
    ("skinny", "skinny"),
    ("(gmm)", "ck"),
    ("ck", "ck"),
)
# NVIDIA's library and the one that a framework calls in its place on AMD.
_ON_AMD = {"cublaslt": "hipblaslt", "cudnn": "ck", "fa2": "ck"}
_FUSED = ("deepgemm", "triton", "gmm", "cutlass", "turbo", "flydsl", "aiter", "fused", "persistent")
_DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "tfloat32": "tf32",
    "fp32_tf32": "tf32",
    "float4_e2m1": "fp4",
    "fp4_e2m1": "fp4",
}
_TILE = re.compile(r"(?<![x\d])(?:\d+x)?(\d+x\d+x\d+)(?![x\d])|(\d+x\d+)(?=E$|_pf|_split)")
_SPLIT = re.compile(r"split_?[kK]=?(\d+)")
_FOLDERS = re.compile(r"(aiter/configs/model_configs/|aiter/configs/|configs/system/)")
_UNUSABLE = {
    "best shape of a sweep": "the best of a shape sweep: a ceiling, not a shape's time",
    "power cap": "a power-capped machine",
    "power-limited": "a power-capped machine",
}


def family(library: str) -> str:
    """The family of a library's name; a name that no rule knows is a family of its own."""
    low = library.lower()
    return known_library(library) or re.sub(r"[^a-z0-9]+", "_", low).strip("_") or "unnamed"


def known_library(library: str) -> str | None:
    low = library.lower()
    return next((name for mark, name in _FAMILIES if mark in low), None)


def gemm_family(raw: Raw, vendor: str) -> str:
    """The family of a GEMM: weights shuffled beforehand into the order of the matrix unit are another kernel class."""
    return _on(family(raw["library"]), vendor) + ("_preshuffled" if "b_preshuffled" in raw["notes"] else "")


def attention_family(raw: Raw, vendor: str, arch: str) -> str:
    """The family of an attention kernel; TransformerEngine picks FlashAttention-2 on Ampere and cuDNN on its
    successors (its documentation, attention back ends), CK on AMD.
    """
    if "transformerengine" in raw["library"].lower():
        return "ck" if vendor == "amd" else "fa2" if arch == "ampere" else "cudnn"
    return _on(family(raw["library"]), vendor)


def _on(name: str, vendor: str) -> str:
    return _ON_AMD.get(name, name) if vendor == "amd" else name


def backend(library: str) -> str:
    """How the experts of a grouped GEMM are launched: ``fused`` in one kernel, one by one, or on several streams."""
    low = library.lower()
    if any(mark in low for mark in _FUSED):
        return "fused"
    return "loop" if "loop" in low or "sequential" in low else "multi_stream"


def tile_of(kernel: str) -> str:
    """Rows x columns (x depth) of the macro-tile in a kernel's name, empty where the name has none."""
    found = _TILE.search(re.sub(r"_1x128x128_|_0x0x8x4x[0-9x]*_", "_", kernel))
    return next((part for part in found.groups() if part), "") if found else ""


def split_of(kernel: str) -> str:
    return next(iter(_SPLIT.findall(kernel)), "")


def dtype_of(raw: Raw) -> str:
    word = raw["dtype"].strip().lower().removeprefix("torch.")
    if word.startswith(("fp8", "float8")):
        return "fp8"
    return _DTYPES.get(word, word)


def scaling_of(raw: Raw) -> str:
    """How 8- and 4-bit operands are scaled: notes say it; FP8 without a word is scaled by tensor."""
    notes, kind = raw["notes"].lower(), dtype_of(raw)
    if kind == "fp8":
        if "block" in notes or "block" in raw["library"].lower() or "1x128" in notes:
            return "blockwise"
        return "rowwise" if re.search(r"row-?wise|per[-_ ](row|token|channel)", notes) else "tensorwise"
    return kind if kind.startswith("mx") else ""


def provenance(raw: Raw) -> str:
    """The source, without the folders of a repository that every row of it shares."""
    return _FOLDERS.sub("", raw["source"])


def condition(raw: Raw) -> str:
    """How a time was taken, as far as source and notes tell."""
    notes, source = raw["notes"], raw["source"]
    if "SimuMax" in source:
        return "framework average"
    if "aiter@" in source:
        return "tuned winner, profiled"
    if "warm-up" in notes:
        return "sustained clocks"
    return "gpu inferred" if "GPU inferred" in notes else "published"


def unusable(raw: Raw) -> str | None:
    """Why a figure is no measurement of its shape, or None."""
    return next((reason for mark, reason in _UNUSABLE.items() if mark in raw["notes"]), None)
