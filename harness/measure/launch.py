"""Processes of a training on this machine: started, watched, and their mistakes told."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.measure import spec
from harness.measure.spec import Plan
from projector.errors import InputError, Problem

__all__ = ["Host", "host", "run", "start_and_watch"]

_POLL = 0.05  # seconds
_LIMIT = 3600.0  # seconds that processes may take before they count as hung
_TOLD = 12  # last lines of a failed process that are searched
_ERROR = re.compile(r"[A-Za-z_.]{1,80}(?:Error|Exception|Interrupt)\b")


@dataclass(frozen=True)
class Host:
    """What trainings run on here: ``device`` ``cpu`` or ``cuda``; ``places``: processes that fit, one a GPU or core."""

    device: str
    places: int

    def threads(self, processes: int) -> int:
        """Threads of one of ``processes`` on a CPU."""
        return max(1, (os.cpu_count() or 1) // processes)


def host(plan: Plan, where: str) -> Host:
    """Where ``plan`` can run. Raises :class:`InputError` without torch, without the device, or with too few of it."""
    if importlib.util.find_spec("torch") is None:
        expected = "torch: the build for this device, or pip install 'projector-harness[benchmark]'"
        raise InputError([Problem(where, "measure", "no torch", expected)])
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if plan.device == "cuda" and not gpus:
        raise InputError(
            [Problem(where, "measure.device", "cuda", "cpu: torch sees no GPU here (no driver, or a CPU build)")]
        )
    kind = plan.device or ("cuda" if gpus else "cpu")
    found = Host(kind, gpus if kind == "cuda" else os.cpu_count() or 1)
    unit = "GPUs" if kind == "cuda" else "cores (a process takes one at least)"
    problems = [
        Problem(where, f"{job.id}: gpus", job.workload.gpus, f"at most {found.places}: this machine's {unit}")
        for job in plan.jobs
        if job.workload.gpus > found.places
    ]
    if problems:
        raise InputError(problems)
    return found


def run(plan: Plan, here: Host, folder: Path, told: Callable[[str], None]) -> None:
    """Trains every job of ``plan`` once, all of one number of processes (that of the first); logs end in ``folder``.

    ``told`` hears the id of each job that is done. Raises :class:`InputError` with what a failed process said.
    """
    world = plan.jobs[0].workload.gpus
    threads = plan.threads or here.threads(world)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="measure-") as scratch:
        path = Path(scratch) / "plan.yaml"
        _save(path, replace(plan, device=here.device))
        command = ["-m", "harness.measure.worker", str(path), "--out", str(folder.resolve()), "--threads", str(threads)]
        command += ["--profile"] if plan.profile else []
        start_and_watch(command, world, threads, Path(scratch), told)


def start_and_watch(
    arguments: Sequence[str], world: int, threads: int, scratch: Path, told: Callable[[str], None]
) -> None:
    """Runs Python with ``arguments`` in ``world`` processes that torch.distributed can join, each with ``threads``.

    ``told`` hears every line that rank 0 prints. Raises :class:`InputError` with the error of a process that failed; the
    others are ended.
    """
    processes = _start([sys.executable, *arguments], world, threads, scratch)
    try:
        _watch(processes, scratch, told)
    finally:
        _stop(processes)


def _save(path: Path, plan: Plan) -> None:
    import yaml

    path.write_text(yaml.safe_dump(spec.to_mapping(plan), sort_keys=False), encoding="utf-8")


def _start(command: Sequence[str], world: int, threads: int, scratch: Path) -> list[subprocess.Popen[bytes]]:
    port = _free_port()
    root = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    shared = {
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": paths,
    }
    made = []
    for rank in range(world):
        own = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        with (scratch / f"{rank}.out").open("wb") as out, (scratch / f"{rank}.err").open("wb") as err:
            made.append(subprocess.Popen(command, env=own, stdout=out, stderr=err, start_new_session=True))
    return made


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def _watch(processes: Sequence[subprocess.Popen[bytes]], scratch: Path, told: Callable[[str], None]) -> None:
    began, heard = time.monotonic(), 0
    while True:
        codes = [process.poll() for process in processes]
        done = (scratch / "0.out").read_text(encoding="utf-8", errors="replace").splitlines()
        for name in done[heard:]:
            told(name)
        heard = len(done)
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed:
            time.sleep(10 * _POLL)  # its last words
            raise InputError([_failure(failed[0], codes[failed[0]], scratch)])
        if all(code == 0 for code in codes):
            return
        if time.monotonic() - began > _LIMIT:
            raise InputError([Problem("measure", "", f"no end after {_LIMIT:.0f} s", "trainings that end")])
        time.sleep(_POLL)


def _failure(rank: int, code: int | None, scratch: Path) -> Problem:
    said = (scratch / f"{rank}.err").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    plain = [re.sub(r"^\[rank[0-9]+\]:\s?", "", line) for line in said]
    last = next((line for line in reversed(plain) if _ERROR.match(line)), f"exit code {code}")
    if "out of memory" in " ".join(said[-_TOLD:]):
        last = f"out of memory: {last}"
    return Problem("measure", f"process {rank}", last, "a training that runs to its end")


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
    for process in processes:
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
