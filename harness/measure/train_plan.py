"""Trains every job of a plan, joins its rounds in one log, and ingests the log as a measured run."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from harness.contracts.runs import MeasuredRun
from harness.evidence import run_text
from harness.evidence.ingest import command
from harness.measure import launch, log
from harness.measure.launch import TakenTurn, in_order
from harness.measure.spec import TRACE, Job, Plan
from projector.benchmark.timings import Asked
from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.io.files import write_whole
from projector.io.rows import grouped

_RUNS = "runs.yaml"
_LOSS = re.compile(r"lm loss: ([0-9.E+-]{1,20})")


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One job as its log has it. ``run``: the ingested run, under the job's group; ``rounds``: median step of each
    repetition, seconds; ``low``, ``high``: 90 % interval of the median over all; ``losses``: of every step; ``taken``:
    its turns."""

    job: Job
    run: MeasuredRun
    path: Path
    rounds: tuple[float, ...]
    low: float | None
    high: float | None
    losses: tuple[float, ...]
    taken: tuple[TakenTurn, ...] = ()

    @property
    def spread(self) -> float:
        """Returns the slowest over the fastest repetition, less one."""
        return max(self.rounds) / min(self.rounds) - 1.0


def train(
    plan: Plan,
    folder: Path,
    where: str,
    told: Callable[[str], None],
    timed: Mapping[str, Sequence[Asked]] | None = None,
) -> tuple[Trained, ...]:
    """Runs ``plan``; ``folder`` gets ``<id>.log`` for every job and, by ingesting these logs, ``runs.yaml``.

    ``timed``: the layers that are timed between the repetitions of a job, by its id
    (:func:`harness.measure.launch.in_order`). ``told`` is called with the name of every turn that is done. Raises
    :class:`InputError` where the machine does not suffice, or a training fails.
    """
    machine, taken = launch.host(plan, where), list[TakenTurn]()
    with tempfile.TemporaryDirectory(prefix="measure-") as scratch:
        rounds = [Path(scratch) / str(number + 1) for number in range(plan.repeat)]
        for round_folder in rounds:
            round_folder.mkdir()
        by_size = grouped((job.workload.gpus, job) for job in plan.jobs)
        for _, jobs in sorted(by_size.items()):  # jobs of one number of processes start these once for all of them
            turns = [*in_order(jobs, plan.repeat, timed)]
            results = launch.run(turns, plan, machine, Path(scratch), told)
            taken += [
                TakenTurn(turn=turn, **words) for turn, words in zip(turns, results, strict=True) if words is not None
            ]
        logs = [_joined(job, rounds, folder) for job in plan.jobs]
        for traced in rounds[-1].glob(TRACE.format(job="*", rank="*")):
            shutil.copyfile(traced, folder / traced.name)
    done = tuple(
        _trained(job, path, tuple(turn for turn in taken if turn.turn.job.id == job.id))
        for job, path in zip(plan.jobs, logs, strict=True)
    )
    write(done, folder)
    return done


def _joined(job: Job, rounds: Iterable[Path], folder: Path) -> Path:
    """Writes one log of all repetitions: each starts as a restarted training does, with its own header."""
    path = folder / f"{job.id}.log"
    texts = [(piece / path.name).read_text(encoding="utf-8") for piece in rounds]
    log.save(path, [text.rstrip("\n") for text in texts])
    return path


def _trained(job: Job, path: Path, taken: tuple[TakenTurn, ...]) -> Trained:
    (read,) = command.load(path).logs
    state = read.state
    if state is None:
        reason = "no step but was disturbed by other work"
        raise InputError([Problem(str(path), "steps", reason, "a quieter machine, or more --steps")])
    strategy = {"strategy": job.strategy} if job.strategy else {}
    steady, starts, values = state.reasons == 0, read.record.segment, read.record.value
    last_start = path.read_text(encoding="utf-8").rpartition("end of arguments")[2]  # its steps, disturbed or not
    return Trained(
        job=job,
        run=replace(read.run, group=job.group, switches={**read.run.switches, **strategy}),
        path=path,
        rounds=tuple(float(np.median(values[steady & (starts == start)])) for start in np.unique(starts[steady])),
        low=state.low,
        high=state.high,
        losses=tuple(map(float, _LOSS.findall(last_start))),
        taken=taken,
    )


def write(done: Iterable[Trained], folder: Path) -> None:
    """Writes the ``runs.yaml`` of the trainings."""

    text = run_text.to_yaml([trained.run for trained in done])
    head = "# Written by `harness measure`: what `harness ingest` reads in the logs beside it."
    write_whole(folder / _RUNS, f"{head}\n{text}".encode())
