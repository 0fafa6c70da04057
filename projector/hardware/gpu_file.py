"""Reads one GPU from one YAML file (``gpus/*.yaml``, or a user's own): units converted to SI, every value checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from projector.errors import Problem, raise_all
from projector.hardware.types import Gpu
from projector.hardware.yaml_file import Reader, changed, keys_of, read_described
from projector.parameter import parameter

_EXTRA = ("aliases", "base", "notes", "sources", "efficiency")
_UNSOURCED = ("name", "title", "vendor", "arch")
PEAK_TOLERANCE = parameter(
    0.03,
    kind="assumed",
    source="the largest gap between a quoted peak and rate x units x clock that rounding of data sheets explains",
)


def read_gpu(path: Path, changes: Mapping[str, Any] = MappingProxyType({})) -> Gpu:
    """Reads and checks one GPU file, with ``changes`` of its keys for a what-if. Raises InputError with every mistake in
    it."""
    stated = read_described(path)
    read = Reader(changed(stated, changes) if changes else stated, str(path))
    known = keys_of(Gpu)
    read.known((*known, *_EXTRA))
    gpu = Gpu(
        **read.fields(Gpu),
        sources=read.sources([key for key in known if key not in _UNSOURCED]),
        base=str(stated.get("base", "")),
        efficiency_file=str(path.parent / read.text("efficiency")) if "efficiency" in read.mapping else "",
    )
    read.texts("aliases")
    read.problems.extend(_physics(gpu, str(path)))
    raise_all(read.problems)
    return gpu


def _physics(gpu: Gpu, where: str) -> list[Problem]:
    """Checks that peak = operations per clock and unit x units x clock, and that no more memory is usable than there is."""
    problems: list[Problem] = []
    for dtype, rate in gpu.flops_per_clock.items():
        product = rate * gpu.compute_units * gpu.peak_clock_mhz * 1e6
        quoted = gpu.peak.get(dtype)
        if quoted is None:
            problems.append(Problem(where, f"peak_tflops.{dtype}", None, "a peak for every type of flops_per_clock"))
        elif abs(quoted / product - 1) > PEAK_TOLERANCE:
            expected = f"{product / 1e12:.1f} = flops_per_clock x compute_units x peak_clock_mhz, within 3 %"
            problems.append(Problem(where, f"peak_tflops.{dtype}", quoted / 1e12, expected))
    if gpu.usable_memory_bytes > gpu.memory_bytes:
        problems.append(Problem(where, "usable_memory_gib", gpu.usable_memory_bytes / 2**30, "at most memory_gib"))
    return problems
