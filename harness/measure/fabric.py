"""What joins two processes of this machine: latency and bandwidth out of all-reduces of a small and a large buffer."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.measure.launch import Host, start_and_watch

__all__ = ["Fabric", "timed"]

_SMALL, _LARGE = 1024, 16 * 2**20  # bytes
_RUNS = 21
_MODULE = "harness.measure.fabric"


@dataclass(frozen=True)
class Fabric:
    """``latency``: seconds of one message; ``bandwidth``: bytes per second and direction."""

    latency: float
    bandwidth: float
    how: str


def timed(here: Host, threads: int) -> Fabric:
    """Times all-reduces between two processes.

    Two ranks in a ring: 2 messages one after the other, and each rank sends the size of the buffer once
    (Patarasuk and Yuan 2009): t = 2·latency + bytes / bandwidth.
    """
    with TemporaryDirectory(prefix="measure-") as scratch:
        lines: list[str] = []
        start_and_watch(["-m", _MODULE, here.device], 2, threads, Path(scratch), lines.append)
    small, large = (float(word) for word in lines[-1].split())
    latency = small / 2
    bandwidth = (_LARGE - _SMALL) / max(large - small, 1e-9)
    return Fabric(latency, bandwidth, f"all-reduces of {_SMALL} and {_LARGE} bytes between two processes here")


def main(device: str, environment: Mapping[str, str]) -> None:
    """One of the two processes; rank 0 prints the median seconds of both sizes."""
    import torch
    import torch.distributed as dist

    rank = int(environment["RANK"])
    place = f"cuda:{rank}" if device == "cuda" else "cpu"
    if device == "cuda":
        torch.cuda.set_device(rank)
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    found = [_median(torch, dist, size, place) for size in (_SMALL, _LARGE)]
    if rank == 0:
        print(*found, flush=True)
    dist.destroy_process_group()


def _median(torch: Any, dist: Any, nbytes: int, place: str) -> float:
    data = torch.zeros(nbytes // 4, device=place)
    times = []
    for _ in range(_RUNS + 3):
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(data)
        if place != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[3:])


if __name__ == "__main__":
    import os
    import sys

    main(sys.argv[1], os.environ)
