"""Trainings → logs → measured runs: every job of a plan trained, its rounds joined in one log, the log ingested."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from harness.contracts.runs import MeasuredRun
from harness.evidence.ingest import command
from harness.evidence.ingest.report import LogRun
from harness.measure import launch, log
from harness.measure.spec import TRACE, Job, Plan
from projector.errors import InputError, Problem
from projector.io.files import write_whole

__all__ = ["Trained", "train", "waited"]

_RUNS = "runs.yaml"
_WAITED = re.compile(re.escape(log.WAITED) + r"([0-9.]{1,20})")
_LOSS = re.compile(r"lm loss: ([0-9.E+-]{1,20})")


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One job as its log has it. ``run``: what ingesting gives, under the job's group; ``rounds``: median step of each
    repetition, seconds; ``low``, ``high``: 90 % interval of the median over all; ``losses``: of every step; ``waited``:
    share of the counted steps in which a rank waited for a core, of the repetition that waited least."""

    job: Job
    run: MeasuredRun
    path: Path
    rounds: tuple[float, ...]
    low: float | None
    high: float | None
    losses: tuple[float, ...]
    waited: float

    @property
    def spread(self) -> float:
        """Slowest over fastest repetition, less one."""
        return max(self.rounds) / min(self.rounds) - 1.0


def train(
    plan: Plan,
    folder: Path,
    where: str,
    told: Callable[[str], None],
    between: Callable[[Sequence[Job]], None] | None = None,
) -> tuple[Trained, ...]:
    """Runs ``plan``; ``folder`` gets ``<id>.log`` for every job and ``runs.yaml``, both by ingesting these logs.

    All jobs of as many processes run once before any of them runs again, so that a machine that slows down slows them
    all; in the middle of their rounds ``between`` is called with them. ``told`` hears of every training that is done.
    Raises :class:`InputError` where the machine does not suffice, or a training fails.
    """
    here = launch.host(plan, where)
    with tempfile.TemporaryDirectory(prefix="measure-") as scratch:
        rounds = [Path(scratch) / str(number) for number in range(plan.repeat)]
        for jobs in _by_processes(plan.jobs):
            for number, pieces in enumerate(rounds, 1):
                tail = f" ({number} of {plan.repeat})" if plan.repeat > 1 else ""
                launch.run(replace(plan, jobs=jobs), here, pieces, partial(_tell, told, tail))
                if between is not None and number == (plan.repeat + 1) // 2:
                    between(jobs)
        logs = [_joined(job, rounds, folder) for job in plan.jobs]
        for traced in rounds[-1].glob(TRACE.format(job="*", rank="*")):
            shutil.copyfile(traced, folder / traced.name)
    done = tuple(_trained(job, path) for job, path in zip(plan.jobs, logs, strict=True))
    _write((each.run for each in done), folder / _RUNS)
    return done


def _tell(told: Callable[[str], None], tail: str, name: str) -> None:
    told(f"trained {name}{tail}")


def _by_processes(jobs: Iterable[Job]) -> list[tuple[Job, ...]]:
    """Jobs of one number of processes together: these start once for all of them."""
    found: dict[int, list[Job]] = {}
    for job in jobs:
        found.setdefault(job.workload.gpus, []).append(job)
    return [tuple(found[size]) for size in sorted(found)]


def _joined(job: Job, rounds: Iterable[Path], folder: Path) -> Path:
    """One log of all repetitions: each starts as a restarted training does, with its own header."""
    path = folder / f"{job.id}.log"
    texts = [(piece / path.name).read_text(encoding="utf-8") for piece in rounds]
    log.save(path, [text.rstrip("\n") for text in texts])
    return path


def _trained(job: Job, path: Path) -> Trained:
    (read,) = command.load(path).logs
    state = read.state
    if state is None:
        found = "no step but was disturbed by other work"
        raise InputError([Problem(str(path), "steps", found, "a quieter machine, or more --steps")])
    return Trained(
        job=job,
        run=replace(read.run, group=job.group),
        path=path,
        rounds=_rounds(read),
        low=state.low,
        high=state.high,
        losses=_losses(path),
        waited=waited(path.read_text(encoding="utf-8")),
    )


def waited(text: str) -> float:
    """Of the start in ``text`` that waited least."""
    found = [_WAITED.search(start) for start in text.split("end of arguments")[1:]]
    return min((float(each[1]) / 100.0 if each else 0.0 for each in found), default=0.0)


def _losses(path: Path) -> tuple[float, ...]:
    """Of every step of the last start, disturbed or not."""
    last = path.read_text(encoding="utf-8").rpartition("end of arguments")[2]
    return tuple(float(word) for word in _LOSS.findall(last))


def _rounds(read: LogRun) -> tuple[float, ...]:
    """Median of the kept steps of each start."""
    assert read.state is not None
    kept, starts = read.state.reasons == 0, read.record.segment
    return tuple(float(np.median(read.record.value[kept & (starts == start)])) for start in np.unique(starts[kept]))


def _write(runs: Iterable[MeasuredRun], path: Path) -> None:
    from harness.evidence import dataset

    text = dataset.to_yaml(list(runs))
    write_whole(
        path, f"# Written by `harness measure`: what `harness ingest` reads in the logs beside it.\n{text}".encode()
    )
