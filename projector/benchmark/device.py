"""Describes the device at hand: CUDA, ROCm (torch calls both ``cuda``) or the CPU. Imports torch only when asked."""

from __future__ import annotations

import importlib
import os
import platform
import re
from pathlib import Path
from typing import Any

from projector.benchmark.launcher import launched
from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.hardware import catalogue

#: Architecture names of the catalogue by CUDA compute capability (NVIDIA, CUDA C++ programming guide).
_CAPABILITIES = {(7, 0): "volta", (8, 0): "ampere", (9, 0): "hopper", (10, 0): "blackwell", (10, 3): "blackwell_ultra"}
_TYPES = ("cuda", "cpu")
_SLACK = 0.5  # load of processes that come and go
_ROCM = ("rocm", "hip")


@dataclass(frozen=True)
class Device:
    """One device of this machine. ``type``: ``cuda`` (NVIDIA and AMD) or ``cpu``; ``title``: as its driver names it.

    ``gpu``: its name in the catalogue, else one made of its title; ``known``: whether the catalogue has it.
    """

    torch: Any
    type: str
    index: int
    title: str
    gpu: str
    known: bool
    vendor: str
    arch: str

    @property
    def place(self) -> str:
        """Returns torch's name for the device."""
        return "cpu" if self.type == "cpu" else f"cuda:{self.index}"

    @property
    def properties(self) -> Any:
        """Returns the properties of a GPU as torch states them."""
        return self.torch.cuda.get_device_properties(self.index)

    def synchronize(self) -> None:
        """Waits until everything that was issued is done."""
        if self.type == "cuda":
            self.torch.cuda.synchronize(self.index)

    def free_bytes(self) -> float:
        """Returns the memory that a process can still get, bytes."""
        if self.type == "cuda":
            cuda, index = self.torch.cuda, self.index
            return float(cuda.mem_get_info(index)[0] + cuda.memory_reserved(index) - cuda.memory_allocated(index))
        available = _stated("/proc/meminfo", "MemAvailable:")  # kB
        if available:
            return float(available[0].split()[0]) * 1024
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) / 2

    def cache_bytes(self) -> int:
        """Returns the bytes that a flush must exceed: those of the last cache before device memory."""
        if self.type == "cuda":
            chip = catalogue.gpu(self.gpu) if self.known else None
            stated = max(chip.l2_bytes, chip.llc_bytes) if chip else 0.0
            return int(max(stated, getattr(self.properties, "L2_cache_size", 0), 32 * 2**20))
        return cpu_cache_bytes(3) or 32 * 2**20

    def crowd(self) -> str:
        """Returns a warning where other processes want the CPUs that torch runs on, else an empty text."""
        try:
            load = os.getloadavg()[0]
        except (OSError, AttributeError):
            return ""
        others, cores = load - (1.0 if self.type == "cpu" else 0.0), os.cpu_count() or 1
        if self.type != "cpu" or others + self.torch.get_num_threads() <= cores + _SLACK:
            return ""
        why = "threads that wait for each other are delayed by other processes; fewer --threads scatter less"
        return f"load {load:.1f} on {cores} cores: {why}"

    def software(self) -> str:
        """Returns the versions and the environment, as the source of a measurement."""
        torch = self.torch
        words = [f"torch {torch.__version__}"]
        if self.type == "cuda":
            words.append(f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}")
        else:
            words.append(f"{torch.get_num_threads()} threads")
        return f"{', '.join(words)}; {self.title}; Python {platform.python_version()}"


def open_device(text: str | None = None, threads: int | None = None) -> Device:
    """Returns the device of ``cuda``, ``cuda:1``, ``rocm`` or ``cpu``; by default a GPU where there is one, else the
    CPU.

    Without a number it is the GPU of this rank's place on its node, or the only one that a launcher lets it see.
    ``threads``: those that torch runs on a CPU from now on (default: as it chooses, one a core).
    Raises :class:`InputError` without torch, for an unknown name, and for a device that is not there.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        expected = "the build of torch for this device, or: pip install 'projector-harness[benchmark]'"
        raise InputError([Problem("torch", "", "not installed", expected)]) from None
    kind, index = _parse(text, torch)
    if threads is not None:
        torch.set_num_threads(threads)
    if kind == "cpu":
        title = next(iter(_stated("/proc/cpuinfo", "model name")), "") or platform.processor() or platform.machine()
        return Device(torch, "cpu", 0, title, "cpu", True, "cpu", platform.machine() or "cpu")
    if not torch.cuda.is_available():
        raise InputError([Problem("--device", "", text, "cpu: torch sees no GPU here (no driver, or a CPU build)")])
    count = torch.cuda.device_count()
    index = _local_gpu(count) if index is None else index
    if index >= count:
        raise InputError([Problem("--device", "", text, f"cuda:0 to cuda:{count - 1}")])
    torch.cuda.set_device(index)
    title = torch.cuda.get_device_name(index)
    name = catalogue.find_gpu(title)
    amd = bool(torch.version.hip)
    if amd:
        arch = str(torch.cuda.get_device_properties(index).gcnArchName).split(":")[0]
    else:
        capability = torch.cuda.get_device_capability(index)
        arch = _CAPABILITIES.get(capability, "sm_{}{}".format(*capability))
    return Device(torch, "cuda", index, title, name or slug(title), name is not None, "amd" if amd else "nvidia", arch)


def _local_gpu(count: int) -> int:
    """Returns the GPU of this rank among ``count`` visible ones. Raises :class:`InputError` where its node has more
    ranks than GPUs, or every rank was told the same one by number."""
    job = launched()
    if job is None or count == 1 < job.local_size:  # a launcher shows every rank its own (srun --gpus-per-task)
        return 0
    if job.local_size > count:
        expected = f"at most {count} ranks on a node: as many GPUs are seen there"
        raise InputError([Problem(f"rank {job.rank}", job.by, f"{job.local_size} ranks", expected)])
    return job.local


def slug(title: str) -> str:
    """Returns a name in the manner of the catalogue: lower case, underscores."""
    return re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_") or "device"


def cpu_cache_bytes(level: int) -> int:
    """Returns the bytes of the data cache of ``level`` that the first core sees; 0 where the system does not say."""
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, at = (folder / "type").read_text().strip(), int((folder / "level").read_text())
            text = (folder / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if at == level and kind != "Instruction":
            scale = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
            return int(text.rstrip("KMG")) * scale
    return 0


def clocks_mhz() -> list[float]:
    """Returns the clock of every core now, as Linux states it; empty where it does not."""
    try:
        return [float(clock) for clock in _stated("/proc/cpuinfo", "cpu MHz")]
    except ValueError:
        return []


def _stated(file: str, name: str) -> list[str]:
    """Returns what stands behind ``name:`` in a file of Linux; empty where there is no such file."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [line.partition(":")[2].strip() for line in lines if line.startswith(name)]


def _parse(text: str | None, torch: Any) -> tuple[str, int | None]:
    if text is None:
        return ("cuda" if torch.cuda.is_available() else "cpu"), None
    name, _, number = text.strip().lower().partition(":")
    kind = "cuda" if name in _ROCM else name
    if kind not in _TYPES or (number and not number.isdecimal()) or (kind == "cpu" and number not in ("", "0")):
        raise InputError([Problem("--device", "", text, "cuda, cuda:N, rocm or cpu")])
    job = launched()
    if number and kind == "cuda" and job is not None and job.local_size > 1:
        expected = f"{name}: {job.by} gives each of the {job.local_size} ranks of a node its own"
        raise InputError([Problem("--device", "", text, expected)])
    return kind, int(number) if number else None
