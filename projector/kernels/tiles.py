"""Macro-tiles that GEMM libraries carry, by architecture, as arrays for the tile model.

Sources: CDNA candidates of AMD Origami and of AITER/CK kernel names (ROCm/rocm-libraries shared/origami, ROCm/aiter
tuned tables); Hopper warp-group tiles 64…256 and Blackwell two-SM 256×256 tiles from the tile rules of DeepGEMM and
the CUTLASS documentation; Ampere 256×128 and smaller from cuBLAS kernel names. A tile is (rows, columns, compute
units it occupies).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from projector.kernels.protocol import FloatArray

__all__ = ["Catalogue", "k_tile_bytes", "tiles"]

_SMALL = ((128, 128, 1), (128, 64, 1), (64, 128, 1), (64, 64, 1), (32, 64, 1), (16, 64, 1))

_TILES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "volta": ((256, 128, 1), (128, 256, 1), *_SMALL[:4]),
    "ampere": ((256, 128, 1), (128, 256, 1), (256, 64, 1), (64, 256, 1), *_SMALL[:5]),
    "hopper": ((256, 128, 1), (128, 256, 1), (192, 128, 1), (128, 192, 1), (64, 256, 1), *_SMALL),
    "blackwell": ((256, 256, 2), (256, 192, 2), (256, 128, 2), (128, 256, 1), (64, 256, 1), *_SMALL),
    "cdna": (
        *((256, 256, 1), (256, 192, 1), (192, 256, 1), (256, 128, 1), (128, 256, 1)),
        *((256, 64, 1), (64, 256, 1), *_SMALL, (16, 128, 1)),
    ),
    # Composable-Kernel block-scaled FP8 has no tile above 128×128 worth choosing: 93 % of the tuned MI300X rows use
    # it.
    "cdna:blockwise": ((128, 128, 1), (64, 256, 1), (64, 128, 1), (64, 64, 1), (16, 64, 1), (16, 128, 1)),
}


@dataclass(frozen=True)
class Catalogue:
    """Tiles as columns, each of shape (tiles,): rows, columns, and compute units per tile."""

    rows: FloatArray
    columns: FloatArray
    units: FloatArray

    @property
    def area(self) -> FloatArray:
        """Output elements per compute unit."""
        return self.rows * self.columns / self.units


def _key(arch: str, scaling: str) -> str:
    word = arch.lower()
    if any(mark in word for mark in ("cdna", "gfx9")):
        return "cdna:blockwise" if scaling == "blockwise" else "cdna"
    return next((name for name in ("blackwell", "hopper", "ampere", "volta") if name in word), "ampere")


def k_tile_bytes(arch: str) -> float:
    """Bytes of K that one main-loop iteration consumes: 128 (64 elements of two bytes), 64 on Ampere and older."""
    return 64.0 if _key(arch, "") in ("ampere", "volta") else 128.0


@cache
def tiles(arch: str, scaling: str = "") -> Catalogue:
    """The catalogue of an architecture (``ampere``, ``hopper``, ``blackwell``, ``cdna3``, …) and scale scheme."""
    rows, columns, units = (
        np.array(column, dtype=np.float64) for column in zip(*_TILES[_key(arch, scaling)], strict=True)
    )
    return Catalogue(rows=rows, columns=columns, units=units)
