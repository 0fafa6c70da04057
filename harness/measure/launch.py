"""Processes of a training on this machine: started, watched, and their mistakes told."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from harness.measure import spec
from harness.measure.spec import Plan
from projector.benchmark.processes import cores, failure, spawned, watched
from projector.errors import InputError, Problem

__all__ = ["Host", "host", "possible", "run"]

_LIMIT = 3600.0  # seconds that processes may take before they count as hung


@dataclass(frozen=True)
class Host:
    """What trainings run on here: ``device`` ``cpu`` or ``cuda``; ``places``: processes that fit, one a GPU or core."""

    device: str
    places: int

    def threads(self, processes: int) -> int:
        """Threads of one of ``processes`` on a CPU."""
        return max(1, cores() // processes)


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
    found = Host(kind, gpus if kind == "cuda" else cores())
    unit = "GPUs" if kind == "cuda" else "cores (a process takes one at least)"
    problems = [
        Problem(where, f"{job.id}: gpus", job.workload.gpus, f"at most {found.places}: this machine's {unit}")
        for job in plan.jobs
        if job.workload.gpus > found.places
    ]
    if problems:
        raise InputError(problems)
    return found


def possible(plan: Plan, where: str) -> tuple[Plan, tuple[str, ...]]:
    """What of an optional plan this machine can train, and why not the rest; any other plan as it is."""
    if not plan.optional:
        return plan, ()
    try:
        places = host(replace(plan, jobs=()), where).places
    except InputError as error:
        return replace(plan, jobs=()), tuple(f"skipped: {line}" for line in error.lines())
    wide = [job for job in plan.jobs if job.workload.gpus > places]
    words = tuple(f"skipped: {where}: {job.id} wants {job.workload.gpus} of {places} devices" for job in wide)
    return replace(plan, jobs=tuple(job for job in plan.jobs if job not in wide)), words


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
        command = ["harness.measure.worker", str(path), "--out", str(folder.resolve()), "--threads", str(threads)]
        command += ["--profile"] if plan.profile else []
        processes = spawned(command, world, threads, Path(scratch))
        failed = watched(processes, _LIMIT, _Heard(Path(scratch) / "out0", told).tell)
        if failed is not None:
            log = Path(scratch) / f"log{failed}"
            raise InputError([failure("measure", log, failed, processes[failed].returncode)])


class _Heard:
    """Passes on every line that rank 0 prints, once."""

    def __init__(self, path: Path, told: Callable[[str], None]) -> None:
        self._path, self._told, self._heard = path, told, 0

    def tell(self) -> None:
        lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        for line in lines[self._heard :]:
            self._told(line)
        self._heard = len(lines)


def _save(path: Path, plan: Plan) -> None:
    import yaml

    path.write_text(yaml.safe_dump(spec.to_mapping(plan), sort_keys=False), encoding="utf-8")
