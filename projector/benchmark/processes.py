"""Starts and joins the ranks that time together: those of a launcher, or processes started here, one a device."""

from __future__ import annotations

import atexit
import ctypes
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from projector.benchmark.device import Device
from projector.benchmark.launcher import launched, meeting
from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.io.packed import pack, unpack

BACKENDS: Mapping[str, str] = {"cuda": "nccl", "cpu": "gloo"}  # torch calls RCCL nccl, too
WAIT = timedelta(minutes=5)  # that ranks wait for one which never comes, before that is an error
_LINES = 12  # of what a failed rank wrote last
_LAST_WORDS = 0.5  # seconds that ranks get to say what they died of
_ERROR = re.compile(r"[A-Za-z_.]{1,80}(?:Error|Exception|Interrupt|Unsupported)\b")
_JOB, _PAYLOAD, _RESULT = "job", "payload", "result"
_MEETING, _PARENT = "PROJECTOR_MEETING", "PROJECTOR_PARENT"
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, prctl(2)
#: cudaErrorDevicesUnavailable (CUDA Runtime API, error handling): a GPU in exclusive-process mode that another has open.
_TAKEN = "busy or unavailable"
_SHARED = "GPUs that two processes may open (nvidia-smi --compute-mode=DEFAULT), or ranks of torchrun"
_SHARED += ": who starts ranks has looked at the device"
_MEETS_ELSEWHERE = ("MASTER_ADDR", "MASTER_PORT")  # of the shell: ranks that are started here are no torchrun's


@dataclass(frozen=True)
class JobFile:
    """What a rank reads when it starts: ``task`` (``module:function``, called with ``payload``, its device, and what
    keeps results) and how it runs; ``where``: whom an error is blamed on; ``limit``: seconds."""

    task: str
    payload: object
    device: str
    threads: int
    ranks: int
    limit: float
    where: str = "--device"


def available(device: Device) -> int:
    """Returns the devices that can time at once: GPUs, or cores that this process may use."""
    if device.type == "cuda":
        return int(device.torch.cuda.device_count())
    return cores()


def cores() -> int:
    """Returns the cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def threads_of(device: Device, ranks: int) -> int:
    """Returns the threads of each of ``ranks`` processes of a host: torch's own number, at most an even share of the
    cores."""
    return max(1, min(int(device.torch.get_num_threads()), cores() // ranks))


def joined(device: Device) -> None:
    """Joins the ranks of the launcher, once. Raises :class:`InputError` where they cannot reach each other."""
    dist, job = device.torch.distributed, launched()
    if job is None or dist.is_initialized():
        return
    address = "env://" if job.by == "torchrun" else meeting(job)
    try:
        dist.init_process_group(BACKENDS[device.type], address, rank=job.rank, world_size=job.size, timeout=WAIT)
    except (RuntimeError, ValueError) as error:
        raise InputError([Problem(job.by, address, said(error), "ranks that reach each other")]) from None
    if BACKENDS[device.type] == "gloo":  # its threads abort an interpreter that ends beside them after a rank was lost
        atexit.register(dist.destroy_process_group)


def launch(job: JobFile, kept: Callable[[Any], None] | None = None, told: Callable[[str], None] | None = None) -> Any:
    """Starts ``job.ranks`` processes, waits for them and returns the result of rank 0's task (JSON).

    Raises :class:`InputError` with the error of a rank that failed; the others are ended, and ``kept`` is called with
    what rank 0 had found until then. ``told`` is called with every line that rank 0 prints.
    """
    with tempfile.TemporaryDirectory(prefix="projector-") as folder:
        path = Path(folder)
        (path / _JOB).write_bytes(pack(replace(job, payload=None), JobFile))
        (path / _PAYLOAD).write_bytes(pack(job.payload, _task(job.task)[1]))
        ranks = _spawned(job, path)
        failed = watched(ranks, job.limit, _PrintedLines(path / "out0", told).tell if told else int)
        result = path / _RESULT
        if failed is not None:
            if kept is not None and result.exists():
                kept(json.loads(result.read_text(encoding="utf-8")))
            raise InputError([failure(job.where, path / f"log{failed}", failed, ranks[failed].returncode)])
        return json.loads(result.read_text(encoding="utf-8"))


def given(folder: Path) -> tuple[JobFile, Callable[..., Any]]:
    """Returns what :func:`launch` wrote into ``folder`` for its ranks, and the task: text, read by the type that the
    task takes."""
    job = unpack((folder / _JOB).read_bytes(), JobFile)
    task, takes = _task(job.task)
    return replace(job, payload=unpack((folder / _PAYLOAD).read_bytes(), takes)), task


def _task(text: str) -> tuple[Callable[..., Any], Any]:
    """Returns the function ``module:function``, and the type that it declares for its payload."""
    module, _, name = text.partition(":")
    task = getattr(importlib.import_module(module), name)
    declared = [kind for of, kind in typing.get_type_hints(task).items() if of != "return"]
    return task, declared[0] if declared else object


class _PrintedLines:
    """Passes on every line that rank 0 prints, once."""

    def __init__(self, path: Path, told: Callable[[str], None]) -> None:
        self._path, self._told, self._heard = path, told, 0

    def tell(self) -> None:
        lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        for line in lines[self._heard :]:
            self._told(line)
        self._heard = len(lines)


def _spawned(job: JobFile, folder: Path) -> list[subprocess.Popen[bytes]]:
    """Starts processes that join by :func:`meet`; rank r prints to ``out<r>`` of ``folder``, errors to ``log<r>``."""
    root = str(Path(__file__).resolve().parents[2])  # a checkout that was never installed
    paths = os.pathsep.join(part for part in (os.environ.get("PYTHONPATH"), root) if part)
    shared = {"WORLD_SIZE": str(job.ranks), "LOCAL_WORLD_SIZE": str(job.ranks), "OMP_NUM_THREADS": str(job.threads)}
    shared |= {"PYTHONPATH": paths, _MEETING: (folder.resolve() / "store").as_uri(), _PARENT: str(os.getpid())}
    outer = {name: value for name, value in os.environ.items() if name not in _MEETS_ELSEWHERE}
    started = []
    for rank in range(job.ranks):
        environment = {**outer, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        with (folder / f"out{rank}").open("wb") as out, (folder / f"log{rank}").open("wb") as log:
            command = [sys.executable, "-m", "projector.benchmark.worker", str(folder)]
            started.append(subprocess.Popen(command, env=environment, stdout=out, stderr=log))
    return started


def end_with_parent() -> None:
    """Makes a rank that :func:`launch` started end when its parent is killed: else it would hold its GPU for ever, in a
    collective that nobody joins. Only Linux tells a process of that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != int(os.environ[_PARENT]):  # while this one was starting
            sys.exit(1)


def meet(kind: str, rank: int, ranks: int) -> None:
    """Joins the ranks that :func:`launch` started on devices of ``kind``."""
    import torch.distributed as dist

    dist.init_process_group(BACKENDS[kind], os.environ[_MEETING], rank=rank, world_size=ranks, timeout=WAIT)


def watched(ranks: Sequence[subprocess.Popen[bytes]], limit: float, look: Callable[[], object] = int) -> int | None:
    """Waits for all ranks; returns the one that failed first, or did not end in ``limit`` seconds, and ends the others.

    Returns None where none failed. ``look`` is called while they run.
    """
    ends = time.monotonic() + limit
    try:
        while True:
            codes = [each.poll() for each in ranks]
            look()
            if any(codes):
                if not any(code is not None and code < 0 for code in codes):
                    time.sleep(_LAST_WORDS)
                    codes = [each.poll() for each in ranks]
                # of several the one that was killed: the others die of having lost it
                return min((rank for rank, code in enumerate(codes) if code), key=lambda rank: codes[rank] or 0)
            if all(code == 0 for code in codes):
                return None
            if time.monotonic() > ends:
                return next(rank for rank, code in enumerate(codes) if code is None)
            time.sleep(0.02)
    finally:
        for each in ranks:
            if each.poll() is None:
                each.kill()
                each.wait()


def failure(where: str, log: Path, rank: int, code: int | None) -> Problem:
    """Returns a problem that says what rank ``rank`` died of, by what it wrote into ``log`` and its exit ``code``."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    plain = [re.sub(r"^\[rank[0-9]+\]:\s?", "", line) for line in lines]
    last = next((line for line in reversed(plain) if _ERROR.match(line)), "") or " | ".join(plain[-_LINES:])[-600:]
    if code is None or (code == -signal.SIGKILL and not last):
        last = "ran past its time, or was killed (out of memory of the host?)"
    elif code < 0:
        last = f"ended by signal {-code} ({signal.strsignal(-code)}){': ' if last else ''}{last}"
    elif "out of memory" in " ".join(plain[-_LINES:]).lower():
        last = f"out of memory: {last}"
    expected = _SHARED if _TAKEN in last else "ranks that run to their end"
    return Problem(where, f"rank {rank}", last or f"exit code {code}", expected)


def said(error: BaseException) -> str:
    """Returns the first line of an error that torch raised."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
