"""How well a GPU is modelled by constants that were fitted on other GPUs only.

The GPU keeps its data sheet and what was written by hand; every constant fitted on its own tables is taken out, and the
fit of its nearest measured relatives stands in, constant by constant: of its architecture, else the nearest generation.
BF16 GEMMs are not shared (each board's power decides), as they are not in the shipped files: there the priors stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from harness.kernels.calibrate import REFERENCE, is_shared, measured_gpus, stored, unfitted
from harness.kernels.fit import Array
from harness.kernels.model import seconds
from harness.kernels.schema import Row
from projector.hardware.catalogue import gpu as catalogue_gpu
from projector.hardware.types import Efficiency
from projector.parameter import Parameter

__all__ = ["donors", "transferred", "without"]

# Architectures of each vendor in the order in which they came out (data sheets).
_GENERATIONS = (("volta", "ampere", "hopper", "blackwell", "blackwell_ultra"), ("gfx90a", "gfx942", "gfx950"))


def transferred(rows: Sequence[Row]) -> Array:
    """Seconds of each row, (n,), by constants that no figure of its GPU entered; NaN where no relative was measured."""
    out = np.full(len(rows), np.nan)
    alike: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        alike.setdefault(row.gpu, []).append(i)
    for name, members in alike.items():
        if donors(name):
            out[members] = seconds([rows[i] for i in members], without(name))
    return out


def donors(name: str, kind: str = "") -> tuple[str, ...]:
    """GPUs whose fits ``name`` borrows, of ``kind`` alone (``gemm``, ``attention``, …) where one is named."""
    stem = "gemm" if kind == "gemm_step" else kind
    return tuple(sorted({o for key, owners in _owners(name).items() if key.startswith(stem) for o in owners}))


@cache
def _owners(name: str) -> Mapping[str, tuple[str, ...]]:
    """For each fitted constant of the vendor the GPUs to take it from: those of the nearest architecture that have it."""
    device = catalogue_gpu(name)
    near: dict[str, dict[int, list[str]]] = {}
    for other in measured_gpus():
        if other != name and catalogue_gpu(other).vendor == device.vendor:
            for key in filter(is_shared, _own(other)):
                apart = _apart(catalogue_gpu(other).arch, device.arch)
                near.setdefault(key, {}).setdefault(apart, []).append(other)
    return {key: tuple(found[min(found)]) for key, found in near.items()}


def _apart(one: str, other: str) -> int:
    """Generations between two architectures of one vendor; far where a name is not known."""
    for line in _GENERATIONS:
        if one in line and other in line:
            return abs(line.index(one) - line.index(other))
    return 0 if one == other else len(max(_GENERATIONS, key=len))


def without(name: str) -> Efficiency:
    """The GPU's parameters without anything fitted on it, completed by the geometric mean of its donors' fits."""
    known = {k: p for k, p in unfitted(name).parameters.items() if p.kind != "fitted"}
    learned = {key: _mean(key, [_own(other)[key] for other in found]) for key, found in _owners(name).items()}
    return Efficiency(gpu=name, parameters={**known, **learned})


def _mean(key: str, values: Sequence[Parameter]) -> Parameter:
    mean = float(np.exp(np.mean([np.log(max(p.value, 1e-6)) for p in values])))
    return Parameter(mean, "fitted", f"{key} of {len(values)} other GPUs")


@cache
def _own(name: str) -> dict[str, Parameter]:
    """What was fitted on this GPU's tables alone."""
    stems = (REFERENCE.get(name, name), name)
    return {k: p for stem in stems for k, p in stored(stem).items() if p.kind == "fitted"}
