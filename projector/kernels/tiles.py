"""The macro-tiles that may compute a GEMM: the catalogue of its kernel family as arrays for the tile model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from projector.dataclass import dataclass
from projector.io.files import read_yaml
from projector.kernels.protocol import FloatArray


def _read(path: Path) -> Mapping[str, str]:
    table = read_yaml(path)
    general = {key: table["general"][like].replace("@", str(depth)) for key, (like, depth) in table["depths"].items()}
    return {**general, **table["tiles"]}


#: Tiles by key, from the specific ``arch.family.dtype.scaling`` to the general ``arch``.
TILES = _read(Path(__file__).with_suffix(".yaml"))
_REFERENCE = 256.0  # side of the square tile that areas and perimeters are stated against
_ALIKE = {"fp16": "bf16"}


@dataclass(frozen=True)
class Catalogue:
    """Tiles as columns, each of shape (tiles, 1): rows, columns, K elements per iteration, compute units per tile.

    ``area`` and ``perimeter`` of the part one compute unit owns are stated against a 256×256 tile: products grow with
    the area, operand reads with the perimeter.
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
    """Returns the catalogue of tiles written ``rows x columns x depth[/units]`` without blanks, separated by blanks.

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
    """Returns the catalogue of an architecture (``ampere``, ``hopper``, ``blackwell``, ``gfx950``, …), library, operand
    type and scale scheme: the most specific one there is."""
    kind = _ALIKE.get(dtype, dtype)
    for place in _places(arch.lower()):
        for key in (
            *(f"{place}.{family}.{kind}.{scaling}", f"{place}.{family}.{kind}"),
            *(f"{place}.{kind}.{scaling}", f"{place}.{kind}", place),
        ):
            if key in TILES:
                return parse(TILES[key])
    return parse(TILES["ampere"])


def _places(arch: str) -> tuple[str, ...]:
    """Returns the names under which tiles of an architecture may be filed, the closest first."""
    if arch.startswith("gfx9") or "cdna" in arch:
        return (arch, "gfx9")
    return tuple(name for name in ("blackwell", "hopper", "ampere", "volta") if name in arch)
