"""How a kernel class finds its constants: the most specific efficiency parameter that exists wins.

Keys are ``stem[.family][.dtype][.scaling]``, for example ``gemm.loop.hipblaslt.fp8.rowwise``,
``gemm.loop.fp8.blockwise``, ``gemm.loop.bf16`` and ``gemm.loop``. A parameter file of a GPU overrides its
architecture's and vendor's files key by key, so a family-specific key belongs in the file of a GPU (or of an
architecture when no GPU of it has one of its own).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from projector.hardware.types import Efficiency
from projector.kernels.protocol import FloatArray

#: Bytes of one operand element, block scales included (arithmetic: MX formats carry one byte per 32, NVFP4 one per
#: 16).
BYTES: dict[str, float] = {
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "mxfp8": 1.0 + 1 / 32,
    "mxfp6": 0.75 + 1 / 32,
    "mxfp4": 0.5 + 1 / 32,
    "fp4": 0.5 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
}


class Columns:
    """The constants of many shapes as arrays (n,), by the names of their dataclass. ``index`` (n,) says which of
    ``classes`` a shape belongs to; one entry may stand for all shapes."""

    def __init__(self, classes: Sequence[Any], index: npt.NDArray[np.int64]) -> None:
        names = [field.name for field in fields(classes[0])]
        table = np.array([[getattr(one, name) for name in names] for one in classes], dtype=np.float64)
        vars(self).update(zip(names, table[index].T, strict=True))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> FloatArray: ...

    def at(self, chosen: Any) -> Columns:
        """Returns the constants of the ``chosen`` shapes: a slice, or a mask (n,)."""
        part = object.__new__(Columns)
        vars(part).update({name: each if len(each) == 1 else each[chosen] for name, each in vars(self).items()})
        return part


def distinct(each: Sequence[Any]) -> tuple[list[Any], npt.NDArray[np.int64]]:
    """Returns the different objects of a sequence, and which of them each is, (n,)."""
    known = {id(one): one for one in each}
    place = {key: i for i, key in enumerate(known)}
    return list(known.values()), np.array([place[id(one)] for one in each], dtype=np.int64)


def element_bytes(dtype: str) -> float:
    """Returns the bytes of one operand element; two for a type this table does not know."""
    return BYTES.get(dtype, 2.0)


def pick(
    efficiency: Efficiency, stem: str, family: str, dtype: str, scaling: str, neutral: float | None = None
) -> float:
    """Returns the parameter ``stem`` of a kernel class, from its most specific key to the bare stem, else ``neutral``,
    else the prior of every GPU."""
    found = efficiency.parameters
    for key in keys(stem, family, dtype, scaling):
        if key in found:
            return found[key].value
    return efficiency[stem] if neutral is None else neutral


def keys(stem: str, family: str, dtype: str, scaling: str) -> Iterator[str]:
    """Yields the keys of a kernel class, the most specific first."""
    kinds = [dtype, "bf16"] if dtype == "fp16" else [dtype]
    for tail in [f"{d}.{scaling}" for d in kinds if scaling] + kinds:
        yield f"{stem}.{family}.{tail}"
        yield f"{stem}.{tail}"
    yield f"{stem}.{family}"
    yield stem
