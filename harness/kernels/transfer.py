"""How well a GPU is modelled that nobody measured: what its data sheet gives a user who has nothing else.

The GPU's own file is taken away. Where its architecture's file was fitted on it, that one is too, and with it all its
relatives: the constants are then those of the nearest other architecture, as for one that is not out yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harness.kernels.calibrate import REFERENCE
from harness.kernels.fit import Array
from harness.kernels.model import seconds
from harness.kernels.schema import Row
from projector.hardware.catalogue import gpu as catalogue_gpu
from projector.hardware.efficiency import of, relative
from projector.hardware.types import Efficiency


def transferred(rows: Sequence[Row]) -> Array:
    """Seconds of each row, (n,), by constants that no fit to its GPU entered."""
    out = np.full(len(rows), np.nan)
    alike: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        alike.setdefault(row.gpu, []).append(i)
    for name, members in alike.items():
        out[members] = seconds([rows[i] for i in members], without(name))
    return out


def donor(name: str) -> str:
    """The architecture whose file stands in for all that was measured on ``name``."""
    device = catalogue_gpu(name)
    return relative(device, device.arch) if name in REFERENCE else device.arch


def without(name: str) -> Efficiency:
    """The GPU's parameters as if it had no file, and, where it speaks for its architecture, that none."""
    return of(replace(catalogue_gpu(name), name="", arch=donor(name), efficiency_file=""))
