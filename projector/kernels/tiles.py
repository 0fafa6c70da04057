"""Which macro-tiles a GEMM may be computed with: the catalogue of its kernel family as arrays for the tile model."""

from __future__ import annotations

from functools import cache

import numpy as np

from projector.dataclass import dataclass
from projector.kernels.protocol import FloatArray

# Macro-tiles that GEMM libraries carry, by architecture, library, operand type and scale scheme: data only.
#
# A tile is ``rows x columns x depth``: output rows and columns of one work-group and the elements of K that one main-loop
# iteration takes; ``/2`` marks a tile that a pair of compute units shares. Keys go from the specific to the general:
# ``arch.family.dtype.scaling``, ``arch.family.dtype``, ``arch.dtype``, ``arch``.
#
# Sources. gfx942 and gfx950 libraries: kernel names of the tuned tables of ROCm/aiter@e4048607 (every tile that wins at
# least one per cent of its table's shapes, or three). gfx9 in general: the candidates of AMD Origami
# (ROCm/rocm-libraries shared/origami) and hipBLASLt's hand-scheduled 256x256x64 loops. Hopper: warp-group tiles 64 to 256
# wide and Blackwell: two-SM 256-row tiles, from the tile rules of DeepGEMM and the CUTLASS documentation. Ampere: cuBLAS
# kernel names (256x128x32 and smaller). Library defaults are symmetric: a library computes the transposed product where
# that suits it.
_SMALL = "128x128x{0} 128x64x{0} 64x128x{0} 64x64x{0} 32x64x{0} 64x32x{0} 16x64x{0} 64x16x{0}"
_CDNA = (
    "256x256x{0} 256x192x{0} 192x256x{0} 256x128x{0} 128x256x{0} 256x64x{0} 64x256x{0} "
    + _SMALL
    + " 16x128x{0} 128x16x{0}"
)
_HOPPER = "256x128x{0} 128x256x{0} 192x128x{0} 128x192x{0} 256x64x{0} 64x256x{0} " + _SMALL
_BLACKWELL = (
    "256x256x{0}/2 256x192x{0}/2 192x256x{0}/2 256x128x{0}/2 128x256x{0}/2 256x128x{0} 128x256x{0} 256x64x{0} "
    "64x256x{0} " + _SMALL
)
_AMPERE = (
    "256x128x{0} 128x256x{0} 256x64x{0} 64x256x{0} 128x128x{0} 128x64x{0} 64x128x{0} 64x64x{0} 32x64x{0} 64x32x{0}"
)
_ASM_MX = (
    "256x256x256 192x256x256 160x256x256 128x512x256 128x384x256 160x384x256 128x256x256 96x256x256 192x128x256 "
    "160x128x256 128x128x256 96x128x256 64x128x256 32x128x256"
)

TILES: dict[str, str] = {
    "volta": _AMPERE.format(32),
    "ampere": _AMPERE.format(32),
    "ampere.int8": _AMPERE.format(64),
    "ampere.tf32": _AMPERE.format(16),
    "ampere.fp32": _AMPERE.format(16),
    "hopper": _HOPPER.format(64),
    "hopper.fp8": _HOPPER.format(128),
    "hopper.int8": _HOPPER.format(128),
    "hopper.tf32": _HOPPER.format(32),
    "hopper.fp32": _HOPPER.format(32),
    "blackwell": _BLACKWELL.format(64),
    "blackwell.fp8": _BLACKWELL.format(128),
    "blackwell.int8": _BLACKWELL.format(128),
    "blackwell.mxfp8": _BLACKWELL.format(128),
    "blackwell.fp4": _BLACKWELL.format(256),
    "blackwell.mxfp4": _BLACKWELL.format(256),
    "blackwell.nvfp4": _BLACKWELL.format(256),
    "blackwell.tf32": _BLACKWELL.format(32),
    "blackwell.fp32": _BLACKWELL.format(32),
    "gfx9": _CDNA.format(64),
    "gfx9.fp8": _CDNA.format(128),
    "gfx9.int8": _CDNA.format(128),
    "gfx9.mxfp8": _CDNA.format(128),
    "gfx9.mxfp4": _CDNA.format(256),
    "gfx9.fp4": _CDNA.format(256),
    "gfx9.tf32": _CDNA.format(32),
    "gfx9.fp32": _CDNA.format(32),
    # Composable-Kernel block-scaled FP8 has no tile above 128x128 worth choosing: 93 % of the tuned MI300X rows use it.
    "gfx9.fp8.blockwise": "128x128x128 64x256x128 64x128x128 64x64x128 64x64x256 32x64x256 16x64x256",
    "gfx942.ck.fp8.blockwise": "128x128x128 64x128x128 64x64x128 64x64x256 32x64x256 16x64x256",
    "gfx942.ck_preshuffled.fp8.blockwise": (
        "64x256x128 64x128x128 64x64x128 64x64x256 32x256x128 32x64x128 32x64x256 16x128x256 16x64x256"
    ),
    "gfx942.ck_preshuffled.fp8.rowwise": (
        "96x256x128 128x192x128 128x128x128 128x128x64 64x256x64 64x192x128 64x128x256 64x128x128 64x64x256 48x128x256 "
        "48x64x256 32x128x256 32x128x128 32x64x256 32x64x128 16x128x512 16x64x512 16x64x256 16x32x512 16x32x128"
    ),
    "gfx942.cktile_preshuffled.fp8.rowwise": "128x256x128 64x256x128 64x128x256 32x64x512 16x64x512",
    "gfx942.asm_preshuffled.fp8.blockwise": "128x128x128 96x128x128 80x128x128 64x128x128 48x128x128 32x128x128",
    "gfx942.opus.bf16": ("256x256x32 128x128x64 128x96x128 64x64x64 64x64x128 32x16x64 16x32x32 16x16x64"),
    "gfx942.opus_preshuffled.fp8.blockwise": "128x128x128",
    "gfx950.asm.bf16": "256x256x64 96x64x64 80x64x64 64x64x64 48x64x64 32x64x64",
    "gfx950.asm.mxfp4": _ASM_MX,
    "gfx950.mxfp4": _ASM_MX,
    "gfx950.ck.mxfp4": ("256x256x128 128x384x128 128x256x128 128x128x128 96x128x128 64x512x128 64x128x128 32x128x128"),
    "gfx950.asm_preshuffled.fp8.blockwise": "128x128x128 96x128x128 80x128x128 64x128x128 48x128x128 32x128x128",
    "gfx950.ck.fp8.blockwise": "128x128x128 64x256x128 64x128x128 64x64x256 32x64x256 16x64x256",
    "gfx950.ck.fp8.rowwise": (
        "256x256x128 256x224x128 224x256x128 256x160x128 128x128x128 128x64x256 64x64x512 32x64x512 16x64x512 16x32x128"
    ),
    "gfx950.ck_preshuffled.fp8.blockwise": (
        "64x256x128 64x128x256 64x128x128 64x64x256 64x64x128 32x128x256 32x128x128 32x64x256 32x64x128 16x128x256 "
        "16x64x256"
    ),
    "gfx950.ck_preshuffled.fp8.rowwise": (
        "256x256x128 128x256x256 112x256x256 128x192x256 192x128x128 128x128x256 48x128x256 128x64x256 64x64x256 "
        "32x16x512 16x64x512 16x32x512 16x32x128"
    ),
    "gfx950.cktile.fp8.blockwise": "192x256x128 128x128x128 32x128x128 16x128x256",
    "gfx950.cktile_preshuffled.fp8.blockwise": "192x256x128 32x128x128 16x128x256",
    "gfx950.cktile_preshuffled.fp8.rowwise": (
        "256x256x128 256x192x128 160x192x128 128x128x256 96x128x256 80x128x256 80x64x256 64x64x256 48x64x256 32x64x512 "
        "32x64x128 16x64x512"
    ),
    "gfx950.flydsl.bf16": (
        "256x128x64 128x128x64 128x64x128 128x64x64 96x128x64 96x64x128 96x64x64 64x128x128 64x64x128 64x64x64 "
        "48x64x64 32x64x256 32x64x128 32x64x64 16x128x128 16x64x256 16x64x128 16x64x64"
    ),
    "gfx950.flydsl_preshuffled.fp8.rowwise": (
        "256x128x128 128x256x128 128x192x256 128x128x256 128x128x128 64x192x256 64x128x256 64x64x256 80x64x256 "
        "48x64x256 32x64x512 32x64x256 16x64x512 16x64x256"
    ),
    "gfx950.opus.bf16": "256x256x64 192x256x64 128x256x64 128x128x64 96x64x64 64x96x64 64x64x64",
    "gfx950.opus.fp8.blockwise": ("256x256x128 128x128x128 128x64x256 64x32x256 32x32x256 16x64x256 16x32x512"),
}


_REFERENCE = 256.0  # side of the square tile that areas and perimeters are stated against
_ALIKE = {"fp16": "bf16"}


@dataclass(frozen=True)
class Catalogue:
    """Tiles as columns, each of shape (tiles, 1): rows, columns, K elements per iteration, compute units per tile.

    ``area`` and ``perimeter`` of the part one compute unit owns are stated against a 256×256 tile: products grow with
    the one, operand reads with the other.
    """

    rows: FloatArray
    columns: FloatArray
    depth: FloatArray
    units: FloatArray

    @property
    def area(self) -> FloatArray:
        return self.rows * self.columns / self.units / _REFERENCE**2

    @property
    def perimeter(self) -> FloatArray:
        return (self.rows + self.columns) / self.units / (2.0 * _REFERENCE)


def parse(text: str) -> Catalogue:
    """The catalogue of tiles written ``rows x columns x depth[/units]`` with blanks between them, no blanks inside.

    Raises ``ValueError`` for anything else.
    """
    cells = []
    for word in text.split():
        sizes, _, units = word.partition("/")
        rows, columns, depth = (float(size) for size in sizes.split("x"))
        cells.append((rows, columns, depth, float(units or 1)))
    return Catalogue(*(np.array(column)[:, None] for column in zip(*cells, strict=True)))


@cache
def tiles(arch: str, family: str = "", dtype: str = "bf16", scaling: str = "") -> Catalogue:
    """The catalogue of an architecture (``ampere``, ``hopper``, ``blackwell``, ``gfx950``, …), library, operand type
    and scale scheme: the most specific one there is.
    """
    kind = _ALIKE.get(dtype, dtype)
    for place in _places(arch.lower()):
        for key in (f"{place}.{family}.{kind}.{scaling}", f"{place}.{family}.{kind}", f"{place}.{kind}.{scaling}"):
            if key in TILES:
                return parse(TILES[key])
        for key in (f"{place}.{kind}", place):
            if key in TILES:
                return parse(TILES[key])
    return parse(TILES["ampere"])


def _places(arch: str) -> tuple[str, ...]:
    """Names under which tiles of an architecture may be filed, the closest first."""
    if arch.startswith("gfx9") or "cdna" in arch:
        return (arch, "gfx9")
    return tuple(name for name in ("blackwell", "hopper", "ampere", "volta") if name in arch)
