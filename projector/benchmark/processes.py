"""Ranks that time together: those that torchrun started, or processes that are started here, one a device."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from projector.benchmark.device import Device
from projector.errors import InputError, Problem

__all__ = ["BACKENDS", "JobFile", "joined", "launch", "threads_of", "world"]

BACKENDS: Mapping[str, str] = {"cuda": "nccl", "cpu": "gloo"}  # torch calls RCCL nccl, too
_LINES = 12  # of what a failed rank wrote last


@dataclass(frozen=True)
class JobFile:
    """What a rank reads when it starts: ``task`` (``module:function``, called with ``payload``) and how it runs."""

    task: str
    payload: object
    device: str
    threads: int
    ranks: int
    limit: float


def world() -> tuple[int, int] | None:
    """(rank, size) under torchrun, None outside it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ and not ("RANK" in os.environ and "MASTER_ADDR" in os.environ):
        return None
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def available(device: Device) -> int:
    """Devices that can time at once: GPUs, or cores that this process may use."""
    if device.type == "cuda":
        return int(device.torch.cuda.device_count())
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def threads_of(device: Device, ranks: int) -> int:
    """Threads of each of ``ranks`` processes: torch's own number, at most an even share of the cores."""
    if device.type == "cuda":
        return int(device.torch.get_num_threads())
    return max(1, min(int(device.torch.get_num_threads()), available(device) // ranks))


def joined(device: Device) -> None:
    """Joins the ranks of torchrun, once. Raises :class:`InputError` where they cannot talk to each other."""
    dist = device.torch.distributed
    if dist.is_initialized():
        return
    try:
        dist.init_process_group(BACKENDS[device.type])
    except (RuntimeError, ValueError) as error:
        raise InputError([Problem("torchrun", "", str(error).splitlines()[0], "ranks that reach each other")]) from None


def launch(job: JobFile) -> Any:
    """Starts ``job.ranks`` processes and waits for them; what rank 0's task returned (JSON).

    Raises :class:`InputError` with the last lines of a rank that failed; the others are ended. ``job.limit``: seconds.
    """
    with tempfile.TemporaryDirectory(prefix="projector-") as folder:
        path = Path(folder)
        (path / "job").write_bytes(pickle.dumps(job))
        ranks = [_start(path, rank, job) for rank in range(job.ranks)]
        try:
            failed = _wait(ranks, job.limit)
        finally:
            for each in ranks:
                if each.poll() is None:
                    each.kill()
                    each.wait()
        if failed is not None:
            raise InputError([_failure(path, failed, ranks[failed].returncode)])
        return json.loads((path / "result").read_text(encoding="utf-8"))


def _start(path: Path, rank: int, job: JobFile) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(job.ranks), "LOCAL_RANK": str(rank)}
    environment |= {"OMP_NUM_THREADS": str(job.threads), "PROJECTOR_JOB": str(path)}
    root = str(Path(__file__).resolve().parents[2])  # a checkout that was never installed
    environment["PYTHONPATH"] = os.pathsep.join(part for part in (os.environ.get("PYTHONPATH"), root) if part)
    with (path / f"log{rank}").open("wb") as log:
        command = [sys.executable, "-m", "projector.benchmark.worker"]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=os.getcwd())


def _wait(ranks: list[subprocess.Popen[bytes]], limit: float) -> int | None:
    """The first rank that failed, None where all are done."""
    import time

    ends = time.monotonic() + limit
    while True:
        codes = [each.poll() for each in ranks]
        wrong = [rank for rank, code in enumerate(codes) if code]
        if wrong:
            return wrong[0]
        if all(code == 0 for code in codes):
            return None
        if time.monotonic() > ends:
            return next(rank for rank, code in enumerate(codes) if code is None)
        time.sleep(0.02)


def _failure(path: Path, rank: int, code: int | None) -> Problem:
    lines = (path / f"log{rank}").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    told = "ran past its time" if code is None or (code < 0 and not lines) else " | ".join(lines[-_LINES:])[-600:]
    return Problem("--device", f"rank {rank}", told or f"exit code {code}", "processes that can time layers here")
