"""Measures what a device really does: rates of products, streams and attention, launches, memory, exponentials."""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from projector.benchmark import attention, gemm
from projector.benchmark.device import Device, clocks_mhz, cpu_cache_bytes
from projector.benchmark.job import Job, Ready, Skip, filled, unheard
from projector.benchmark.passes import PASSES, Pass
from projector.benchmark.processes import said
from projector.benchmark.stopwatch import Stopwatch
from projector.benchmark.timings import Seconds
from projector.dataclass import dataclass
from projector.hardware import catalogue
from projector.kernels.protocol import ComputeOp
from projector.operators.types import Attention, Gemm, Stream
from projector.parameter import Parameter

_TYPES = {"cuda": ("fp32", "bf16", "fp16", "fp8"), "cpu": ("fp32", "bf16", "fp16")}
_LARGEST = {"cuda": 8192, "cpu": 2048}  # edge of the largest product: long enough to leave all fixed cost behind
_LEAST_STREAM, _MOST_STREAM = 2**26, 2**30
_CACHES = 4  # a stream that is so many caches long comes from memory
_LAUNCHES = 200
#: (batch x heads, sequence, head dimension) of the attention that is timed, lengths as shares of the largest product.
_ATTENTION = ((8, 0.25, 64), (8, 0.5, 64), (8, 0.5, 128))


@dataclass(frozen=True, slots=True)
class TimedKernel:
    """A kernel with the time that it took."""

    op: ComputeOp
    timing: Seconds
    name: str = ""

    @property
    def flop_rate(self) -> float:
        return self.op.flops / self.timing.median


@dataclass(frozen=True)
class Probed:
    """The result of one probe. Rates per second, bytes, seconds; ``facts``: measured here, read from the
    driver, or assumed; ``skipped``: kernels that are not there."""

    device: Device
    gemms: tuple[TimedKernel, ...]
    streams: tuple[TimedKernel, ...]
    attentions: tuple[TimedKernel, ...]
    launch: Seconds
    host_launch: float
    exponentials: float
    facts: dict[str, Parameter]
    skipped: tuple[str, ...]
    seconds: float


def probe(
    device: Device, watch: Stopwatch, largest: int | None = None, told: Callable[[str], None] = unheard
) -> Probed:
    """Times products up to ``largest`` (edge; default by device), streams, attention and launches on ``device``."""
    start = time.monotonic()
    edge = largest or _LARGEST[device.type]
    # before anything is allocated: free memory is one of them
    facts = _gpu_facts(device) if device.type == "cuda" else _cpu_facts(device)
    skipped: list[str] = []
    timed = _KernelTimer(device, watch, skipped, told)
    gemms = [kernel for dtype in _TYPES[device.type] for kernel in timed.jobs(_gemms(device, dtype, edge))]
    attentions = list(timed.jobs(_attentions(device, edge)))
    streams = list(timed.streams(edge))
    told("launch")
    tiny = filled(device, (16, 16), device.torch.float32)
    return Probed(
        device=device,
        gemms=tuple(gemms),
        streams=tuple(streams),
        attentions=tuple(attentions),
        launch=Stopwatch(device, 51, flush=False).time(lambda: device.torch.add(tiny, tiny, out=tiny)),
        host_launch=_host_launch(device, tiny),
        exponentials=max(_exponentials(device, edge), _known_exponentials(device, facts)),
        facts=facts,
        skipped=tuple(dict.fromkeys(skipped)),
        seconds=time.monotonic() - start,
    )


@dataclass(frozen=True)
class _KernelTimer:
    device: Device
    watch: Stopwatch
    skipped: list[str]
    told: Callable[[str], None]

    def jobs(self, jobs: Iterator[Job]) -> Iterator[TimedKernel]:
        for job in jobs:
            yield from self.one(f"{job.kind} {getattr(job.op, 'dtype', '')}".strip(), job.op, job.build, job.family)

    def streams(self, edge: int) -> Iterator[TimedKernel]:
        """Yields every pass, timed on so many bytes that they come from memory (fewer for a small probe)."""
        nbytes = min(max(_CACHES * self.device.cache_bytes(), _LEAST_STREAM), _MOST_STREAM, 16 * edge * edge)
        for each in PASSES:
            rows = max(1, int(nbytes / (each.read + each.write) / each.width))
            elements = float(rows * each.width)
            op = Stream("", each.kind, each.read * elements, each.write * elements, launches=each.launches)

            def build(each: Pass = each, rows: int = rows) -> Ready:
                return Ready(each.setup(self.device, rows, each.width))

            yield from self.one(f"stream {each.kind}", op, build, each.name)

    def one(self, what: str, op: ComputeOp, build: Callable[[], Ready], name: str) -> Iterator[TimedKernel]:
        """Yields the kernel with its time; nothing where it does not run here, which is noted."""
        self.told(what)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                timing = self.watch.time(build().call)
        except (Skip, RuntimeError, TypeError, ValueError) as error:
            self.skipped.append(f"{what}: {said(error)[:90]}")
        else:
            yield TimedKernel(op, timing, name)


def _gemms(device: Device, dtype: str, edge: int) -> Iterator[Job]:
    """Yields square and oblong products from the edge down to an eighth of it, in the layout of a forward pass."""
    for size in (edge, edge // 2, edge // 4, edge // 8):
        for m, n, k in ((size, size, size), (size, 2 * size, size // 2), (2 * size, size // 2, size)):
            narrow = dtype == "fp8"
            scaling, out = "tensorwise" if narrow else "", 4.0 if dtype == "fp32" else 2.0
            op = Gemm("", m, n, k, dtype=dtype, scaling=scaling, out_bytes=out)
            yield from gemm.jobs(op, device)


def _attentions(device: Device, edge: int) -> Iterator[Job]:
    for heads, share, depth in _ATTENTION:
        length = max(16, int(edge * share))
        for backward in (False, True):
            sizes: dict[str, Any] = dict.fromkeys(("heads", "kv_heads"), heads) | dict.fromkeys(
                ("seq_q", "seq_k"), length
            )
            sizes |= dict.fromkeys(("head_dim_qk", "head_dim_v"), depth)
            yield attention.jobs(Attention(name="", batch=1, **sizes, backward=backward), device)[0]


def _host_launch(device: Device, tiny: Any) -> float:
    """Returns the host seconds to issue one small kernel through torch, the device being far behind."""
    add = device.torch.add
    times = []
    for _ in range(5):
        device.synchronize()
        start = time.perf_counter()
        for _ in range(_LAUNCHES):
            add(tiny, tiny, out=tiny)
        times.append((time.perf_counter() - start) / _LAUNCHES)
        device.synchronize()
    return statistics.median(times)


def _exponentials(device: Device, edge: int) -> float:
    """Returns the exponentials per second of data that sit in the cache: an upper limit of the rate of softmax."""
    count = max(1024, min(device.cache_bytes() // 32, edge * edge))
    x, torch = filled(device, (count,), device.torch.float32), device.torch
    out = torch.empty_like(x)
    warm = Stopwatch(device, 11, flush=False)
    return count / warm.time(lambda: torch.exp(x, out=out)).median


def _known_exponentials(device: Device, facts: dict[str, Parameter]) -> float:
    """Returns, for a GPU, the rate of the catalogue's devices of its architecture: what torch runs alone waits for its
    launch and for the cache, and would make attention several times too slow."""
    if device.type == "cpu":
        return 0.0
    rates = [gpu.exp_per_clock_per_cu for gpu in map(catalogue.gpu, catalogue.gpu_names()) if gpu.arch == device.arch]
    return max(rates, default=0.0) * facts["compute_units"] * facts["clock_mhz"] * 1e6


def _gpu_facts(device: Device) -> dict[str, Parameter]:
    stated = device.properties
    free, total = device.torch.cuda.mem_get_info(device.index)
    clock = getattr(stated, "clock_rate", 0) / 1e3
    shared = getattr(stated, "shared_memory_per_multiprocessor", 0) or 64 * 2**10
    cache = getattr(stated, "L2_cache_size", 0)
    return {
        "compute_units": Parameter(stated.multi_processor_count, "measured", "multiprocessors that the driver states"),
        "clock_mhz": _or_assumed(clock, 1500.0, "clock that the driver states", "nothing stated"),
        "memory_bytes": Parameter(float(total), "measured", "memory that the driver states"),
        "usable_bytes": Parameter(float(free), "measured", "memory that was free"),
        "l2_bytes": _or_assumed(float(cache), 4.0 * 2**20, "L2 that the driver states", "nothing stated"),
        "shared_bytes": Parameter(float(shared), "measured", "shared memory that the driver states"),
        "tdp_watts": Parameter(500.0, "assumed", "not asked of the driver; matters for power caps alone"),
    }


def _cpu_facts(device: Device) -> dict[str, Parameter]:
    page, clock = os.sysconf("SC_PAGE_SIZE"), max(clocks_mhz(), default=0.0)
    total = float(os.sysconf("SC_PHYS_PAGES") * page)
    return {
        "compute_units": Parameter(device.torch.get_num_threads(), "measured", "threads that torch runs"),
        "clock_mhz": _or_assumed(clock, 2500.0, "clock in /proc/cpuinfo", "the system states none"),
        "memory_bytes": Parameter(total, "measured", "memory of the system"),
        "usable_bytes": Parameter(min(device.free_bytes(), total), "measured", "memory that was available"),
        "l2_bytes": _or_assumed(float(device.cache_bytes()), 32.0 * 2**20, "last cache", "the system states none"),
        "shared_bytes": _or_assumed(float(cpu_cache_bytes(1)), 32.0 * 2**10, "first data cache", "nothing stated"),
        "tdp_watts": Parameter(150.0, "assumed", "a usual socket; matters for power caps alone"),
    }


def _or_assumed(value: float, usual: float, how: str, why: str) -> Parameter:
    return Parameter(value, "measured", how) if value > 0 else Parameter(usual, "assumed", why)
