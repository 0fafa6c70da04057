"""Starts and watches the processes of a measurement on this machine, and reports their mistakes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.measure.spec import Job, Plan
from projector.benchmark.device import open_device
from projector.benchmark.launcher import launched
from projector.benchmark.processes import JobFile, cores, launch
from projector.benchmark.timings import Asked
from projector.dataclass import dataclass
from projector.errors import InputError, Problem, Unsupported, raise_all

_TASK = "harness.measure.worker:run"
_LIMIT = 3600.0  # seconds after which processes count as hung


@dataclass(frozen=True)
class Host:
    """The machine of trainings: ``device`` ``cpu`` or ``cuda``; ``places``: processes that fit, one a GPU or core."""

    device: str
    places: int

    def threads(self, processes: int) -> int:
        """Returns the threads of one of ``processes`` on a CPU."""
        return max(1, cores() // processes)


def host(plan: Plan, where: str) -> Host:
    """Returns where ``plan`` can run. Raises :class:`InputError` without torch, without the device, or with too few."""
    if importlib.util.find_spec("torch") is None:
        expected = "torch: the build for this device, or pip install 'projector-harness[benchmark]'"
        raise InputError([Problem(where, "measure", "no torch", expected)])
    import torch

    ranks = launched()
    if ranks is not None and ranks.size > 1:
        expected = "one process: trainings start their own, one a device of this machine"
        raise InputError([Problem(where, "measure", f"{ranks.size} ranks of {ranks.by}", expected)])
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if plan.device == "cuda" and not gpus:
        raise InputError(
            [Problem(where, "measure.device", "cuda", "cpu: torch sees no GPU here (no driver, or a CPU build)")]
        )
    kind = plan.device or ("cuda" if gpus else "cpu")
    machine = Host(kind, gpus if kind == "cuda" else cores())
    unit = "GPUs" if kind == "cuda" else "cores (a process takes one at least)"
    problems = [
        Problem(where, f"{job.id}: gpus", job.workload.gpus, f"at most {machine.places}: this machine's {unit}")
        for job in plan.jobs
        if job.workload.gpus > machine.places
    ]
    problems += [
        Problem(where, f"{job.id}: precision", "fp8", lacking) for job in plan.jobs if (lacking := _lacks(job, kind))
    ]
    raise_all(problems)
    return machine


def _lacks(job: Job, kind: str) -> str:
    """Returns what a device of ``kind`` lacks for the linears of ``job``; empty where nothing."""
    recipe = job.workload.recipe
    if recipe.precision != "fp8":
        return ""
    from projector.benchmark.layers_narrow import check

    try:
        check(recipe, open_device(kind))
    except Unsupported as error:
        return f"bf16: no {error}"
    return ""


def possible(plan: Plan, where: str) -> tuple[Plan, tuple[str, ...]]:
    """Returns the part of an optional plan that this machine can train, and why not the rest; any other plan as it is."""
    if not plan.optional:
        return plan, ()
    try:
        machine = host(replace(plan, jobs=()), where)
    except InputError as error:
        return replace(plan, jobs=()), tuple(f"skipped: {line}" for line in error.lines())
    places = machine.places
    why = {job.id: f"wants {job.workload.gpus} of {places} devices" for job in plan.jobs if job.workload.gpus > places}
    why |= {job.id: lacking for job in plan.jobs if job.id not in why and (lacking := _lacks(job, machine.device))}
    words = tuple(f"skipped: {where}: {id} {lacking}" for id, lacking in why.items())
    return replace(plan, jobs=tuple(job for job in plan.jobs if job.id not in why)), words


def run(
    turns: Sequence[Turn], plan: Plan, here: Host, folder: Path, told: Callable[[str], None]
) -> list[dict[str, Any] | None]:
    """Takes ``turns``, all of one number of processes (that of the first); logs end in ``folder``. Returns the result of
    :func:`harness.measure.launch.take` for each, None for timings that failed: other turns go on after them. ``told`` is
    called with the name of each that is done. Raises :class:`InputError` with the message of a training's failed
    process."""
    world = turns[0].job.workload.gpus
    threads = plan.threads or here.threads(world)
    done: list[dict[str, Any] | None] = []
    while len(done) < len(turns):
        rest, heard = turns[len(done) :], list[Any]()
        payload = (tuple(rest), str(folder.resolve()), plan.profile, plan.cooldown)
        try:
            done += launch(JobFile(_TASK, payload, here.device, threads, world, _LIMIT, "measure"), heard.extend, told)
        except InputError:
            done += heard
            if turns[len(done)].asked is None:
                raise
            done.append(None)
    return done


# Trainings and timings take turns: a repetition, the layers, a repetition, the pace of the machine between them. The two
# that are compared lie seconds apart, one on both sides of the other: a machine whose speed drifts moves both.
@dataclass(frozen=True, kw_only=True)
class Turn:
    """Repetition ``number`` of a job's training, or, with ``asked``, a timing of its layers; ``name`` describes it."""

    job: Job
    name: str
    number: int = 1
    asked: Asked | None = None


@dataclass(frozen=True, kw_only=True)
class TakenTurn:
    """A turn that was taken. ``pace``: seconds of the reference work before and after it, their mean; ``waited``: share
    of it in which a rank had no core; ``others``: cores that other programs used; ``found``: the timings."""

    turn: Turn
    pace: float
    waited: float
    others: float
    found: Mapping[str, Any] | None = None


def in_order(jobs: Sequence[Job], repeat: int, timed: Mapping[str, Sequence[Asked]] | None) -> Iterator[Turn]:
    """Yields turns: without timings, all jobs before any runs again, so that a machine that slows down slows them all;
    with ``timed`` (by id of the job), a job's turns in a row, its timings in the middle of its repetitions."""
    numbers = range(1, repeat + 1)

    def trained(job: Job, number: int) -> Turn:
        tail = f" ({number} of {repeat})" if repeat > 1 else ""
        return Turn(job=job, name=f"trained {job.id}{tail}", number=number)

    if timed is None:
        yield from (trained(job, number) for number in numbers for job in jobs)
        return
    for job in jobs:
        for number in numbers:
            yield trained(job, number)
            if number == (repeat + 1) // 2:
                for asked in timed.get(job.id, ()):
                    alone = ", each rank alone" if asked.ranks < job.workload.gpus else ""
                    yield Turn(job=job, name=f"timed layers of {job.id}{alone}", asked=asked)


def take(
    turns: Sequence[Turn],
    run: Callable[[Turn], dict[str, Any]],
    pace: Callable[[], float],
    kept: Callable[[list[dict[str, Any]]], None],
) -> list[dict[str, Any]]:
    """Returns ``run`` of every turn and the ``pace`` around it (words of :class:`TakenTurn`); ``kept`` gets all so far."""
    done: list[dict[str, Any]] = []
    before = pace()
    for turn in turns:
        words = run(turn)
        after = pace()
        done.append({**words, "pace": (before + after) / 2.0})
        kept(done)
        before = after
    return done
