"""One GPU from one YAML file (``gpus/*.yaml``, or a user's own): units converted to SI, every value checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.hardware.types import Gpu
from projector.hardware.yaml_file import Reader, changed, described
from projector.parameter import parameter

DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "mxfp8", "mxfp4", "nvfp4", "fp4", "int8")
VENDORS = ("nvidia", "amd", "cpu")
_MEASURED = (
    "compute_units",
    "boost_clock_mhz",
    "peak_clock_mhz",
    "flops_per_clock",
    "peak_tflops",
    "vector_tflops",
    "exp_per_clock_per_cu",
    "memory_gib",
    "usable_memory_gib",
    "memory_bandwidth_tbs",
    "l2_mib",
    "llc_mib",
    "shared_memory_kib_per_cu",
    "dies",
    "tdp_watts",
)
_KEYS = ("name", "title", "vendor", "arch", "aliases", "notes", "sources", "efficiency", *_MEASURED)
PEAK_TOLERANCE = parameter(
    0.03,
    kind="assumed",
    source="the largest gap between a quoted peak and rate x units x clock that rounding of data sheets explains",
)


@dataclass(frozen=True)
class GpuFile:
    """A GPU and the other names under which it is found."""

    gpu: Gpu
    aliases: tuple[str, ...]


def read_gpu(path: Path, changes: Mapping[str, Any] = MappingProxyType({})) -> GpuFile:
    """Reads and checks one GPU file, with ``changes`` of its keys for a what-if. Raises InputError with every mistake in
    it."""
    found = described(path)
    read = Reader(changed(found, changes) if changes else found, str(path))
    read.known(_KEYS)
    gpu = _gpu(read, path.parent)
    aliases = read.texts("aliases")
    read.problems.extend(_physics(gpu, str(path)))
    if read.problems:
        raise InputError(read.problems)
    return GpuFile(gpu, aliases)


def _gpu(read: Reader, folder: Path) -> Gpu:
    memory = read.number("memory_gib", 1, 4096) * 2**30
    return Gpu(
        name=read.text("name"),
        title=read.text("title"),
        vendor=read.choice("vendor", VENDORS),
        arch=read.text("arch"),
        compute_units=read.integer("compute_units", 1, 4096),
        boost_clock_mhz=read.number("boost_clock_mhz", 100, 10_000),
        peak_clock_mhz=read.number("peak_clock_mhz", 100, 10_000),
        peak={k: v * 1e12 for k, v in read.rates("peak_tflops", DTYPES, 1e-3, 1e6).items()},
        vector_flops=read.number("vector_tflops", 1e-3, 1e5) * 1e12,
        exp_per_clock_per_cu=read.number("exp_per_clock_per_cu", 0.1, 1024),
        memory_bytes=memory,
        usable_memory_bytes=read.number("usable_memory_gib", 0.5, 4096) * 2**30,
        memory_bandwidth=read.number("memory_bandwidth_tbs", 1e-3, 1000) * 1e12,
        l2_bytes=read.number("l2_mib", 0, 4096) * 2**20,
        llc_bytes=read.number("llc_mib", 0, 16_384) * 2**20,
        shared_memory_per_cu=read.number("shared_memory_kib_per_cu", 0, 4096) * 2**10,
        dies=read.integer("dies", 1, 64),
        tdp_watts=read.number("tdp_watts", 1, 20_000),
        flops_per_clock=read.rates("flops_per_clock", DTYPES, 1, 1e7),
        sources=read.sources(_MEASURED),
        efficiency_file=str(folder / read.text("efficiency")) if "efficiency" in read.mapping else "",
    )


def _physics(gpu: Gpu, where: str) -> list[Problem]:
    """Peak = operations per clock and unit x units x clock, and no more usable memory than there is."""
    found: list[Problem] = []
    for dtype, rate in gpu.flops_per_clock.items():
        product = rate * gpu.compute_units * gpu.peak_clock_mhz * 1e6
        quoted = gpu.peak.get(dtype)
        if quoted is None:
            found.append(Problem(where, f"peak_tflops.{dtype}", None, "a peak for every type of flops_per_clock"))
        elif abs(quoted / product - 1) > PEAK_TOLERANCE:
            found.append(
                Problem(
                    where,
                    f"peak_tflops.{dtype}",
                    quoted / 1e12,
                    f"{product / 1e12:.1f} = flops_per_clock x compute_units x peak_clock_mhz, within 3 %",
                )
            )
    if gpu.usable_memory_bytes > gpu.memory_bytes:
        found.append(Problem(where, "usable_memory_gib", gpu.usable_memory_bytes / 2**30, "at most memory_gib"))
    return found
