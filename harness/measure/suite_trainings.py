"""The closed loop of a suite: runs its trainings, describes the machine, and chooses the predictors of the trained runs."""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.contracts.runs import MeasuredRun
from harness.measure import launch, shrink_test, train_plan
from harness.measure.shrink_test import ShrinkTest
from harness.measure.spec import Job, Plan
from harness.measure.train_plan import Trained
from harness.predictors.live import Here
from harness.score.gate import SHRINK
from projector.benchmark.timings import Asked
from projector.dataclass import dataclass
from projector.errors import InputError, NoMeasurement, Problem, Unsupported

if TYPE_CHECKING:
    from harness.evidence.suite import Suite

_LARGEST = {"cuda": 8192, "cpu": 1024}  # edge of the largest product; on a CPU a probe takes seconds
_SAMPLES, _MOST = 5, 0.2  # runs of one kernel, and seconds that they may take
_MESSAGE = 16 * 2**20  # bytes of the largest collective
NAME = "here"


def described(here: launch.Host, threads: int, folder: Path, told: Callable[[str], None]) -> Path:
    """Returns the cluster file of this machine in ``folder``, made by a probe with ``threads`` (CPU) unless it is there.
    Raises :class:`projector.errors.InputError` where the device cannot be timed."""
    path = folder / f"{NAME}.cluster.yaml"
    if path.is_file():
        return path
    from projector.benchmark import collectives, fabric
    from projector.benchmark.device import open_device
    from projector.benchmark.entry import entry
    from projector.benchmark.entry_files import write
    from projector.benchmark.probe import probe
    from projector.benchmark.stopwatch import Stopwatch

    device = open_device(here.device, threads if here.device == "cpu" else None)
    probed = probe(device, Stopwatch(device, samples=_SAMPLES, most=_MOST), _LARGEST[here.device])
    try:
        machine = entry(probed, NAME)
    except ValueError as error:
        raise InputError([Problem("measure", "", device.title, f"a device that torch can time ({error})")]) from None
    joined = None
    if here.places > 1:  # two processes show the link between them; more would need as many cores
        swept = collectives.timed(device, _MESSAGE, _MOST, ranks=2)
        joined = replace(fabric.fitted(swept, machine.gpu), ranks=here.places)
    write(machine, folder, device.software(), joined)
    if device.type == "cuda":
        device.torch.cuda.empty_cache()  # trainings want the memory that this process would keep
    told(f"probed the device, {threads} threads" + (", and what joins processes" if here.places > 1 else ""))
    return path


_TRIALS, _SECONDS = 3, 270.0  # most runs of a disturbed job; seconds from the start after which none runs again


@dataclass(frozen=True)
class Closed:
    """The trainings of one suite. ``here``: where they ran, by id. Where its gate asks for that, ``shrunk``: trainings on
    several processes projected from times of one; ``unclear``: trainings that were disturbed by more than it allows."""

    done: tuple[Trained, ...]
    here: Mapping[str, Here]
    shrunk: tuple[ShrinkTest, ...] = ()
    unclear: frozenset[str] = frozenset()

    @property
    def runs(self) -> tuple[MeasuredRun, ...]:
        return tuple(replace(run.run, cluster=self.here[run.job.id].cluster) for run in self.done)

    @property
    def files(self) -> tuple[Path, ...]:
        """Returns the logs and the probes."""
        return (*(run.path for run in self.done), *(Path(place.cluster) for place in self.here.values()))


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A job, where its layers are timed by its own ranks, and (for the shrink test) where by each rank alone;
    ``planned``: the timings that its ranks can make between its repetitions. The rest is left to the prediction, which
    says why."""

    job: Job
    place: Here
    alone: Here | None
    planned: Mapping[Here, tuple[Asked, tuple[str, ...]]]

    @property
    def asked(self) -> tuple[Asked, ...]:
        return tuple(asked for asked, _ in self.planned.values())

    def keep(self, done: Trained) -> None:
        """Writes timings into the files of their places."""
        for place, planned in self.planned.items():
            for turn in done.taken:
                if turn.turn.asked is planned[0] and turn.found:
                    place.keep(planned, turn.found)

    def judged(self, done: Trained) -> ShrinkTest:
        """Returns the shrink test of a training by the times of each rank alone."""
        assert self.alone is not None
        asked = self.planned.get(self.alone)
        return shrink_test.judged(done, self.alone, asked and asked[0])


def close(suites: Sequence[Suite], folder: Path, told: Callable[[str], None], *, live: bool) -> dict[str, Closed]:
    """Trains what the suites ask for, by their names; logs, runs and the machine's description go to ``folder``.

    ``live``: layers are timed, too, between the repetitions of their training, so that both see the same machine. Jobs
    that were disturbed by more than the gate's ``shrink`` allows run again while there is time. Raises
    :class:`projector.errors.InputError` where this machine does not suffice, before anything is trained.
    """
    asked = [s for s in suites if s.plan.jobs]
    hosts = {s.name: launch.host(s.plan, str(s.path)) for s in asked}
    ends = time.monotonic() + _SECONDS
    return {s.name: _train_suite(s, hosts[s.name], folder / s.name, told, live, ends) for s in asked}


def _train_suite(
    suite: Suite, host: launch.Host, folder: Path, told: Callable[[str], None], live: bool, ends: float
) -> Closed:
    # Timings of an earlier run of the suite say nothing of the machine now
    for pattern in (f"machine-*/{NAME}.cluster.yaml", "timings/*"):
        for path in folder.glob(pattern):
            path.unlink()
    plan, limit = suite.plan, suite.gate.get("benchmark", {}).get(SHRINK, math.inf)
    places = {job.id: _place(job, plan, host, folder, told) for job in plan.jobs}
    if not live:
        return Closed(train_plan.train(plan, folder, str(suite.path), told), places)
    rows = {job.id: _row(job, places[job.id], alone=limit < math.inf) for job in plan.jobs}
    timed = {id: row.asked for id, row in rows.items()}
    trained = train_plan.train(plan, folder, str(suite.path), told, timed)
    with tempfile.TemporaryDirectory(prefix="again-", dir=folder) as scratch:

        def again(job: Job) -> Trained:
            (new,) = train_plan.train(replace(plan, jobs=(job,)), Path(scratch), str(suite.path), told, timed)
            return new

        trained = _least_disturbed(trained, limit, again, ends)
        train_plan.write(trained, folder)
        for done in trained:
            rows[done.job.id].keep(done)
        tests = tuple(_judged(rows[done.job.id], done, limit, again) for done in trained if rows[done.job.id].alone)
    unclear = [done.job.id for done in trained if _disturbance(done) > limit]
    unclear += [test.id for test in tests if test.by.again > limit]
    return Closed(trained, places, tests, frozenset(unclear))


def _judged(row: _Row, done: Trained, limit: float, again: Callable[[Job], Trained]) -> ShrinkTest:
    """Returns the shrink test of a job; a test that fails is measured twice, and the first time kept."""

    def once_more() -> ShrinkTest:
        new = again(row.job)
        row.keep(new)
        return row.judged(new)

    result = shrink_test.confirmed(row.judged(done), limit, once_more)
    row.keep(done)
    return result


def _disturbance(done: Trained) -> float:
    return shrink_test.disturbed(done, None).most


def _least_disturbed(
    trained: Sequence[Trained], limit: float, again: Callable[[Job], Trained], ends: float
) -> tuple[Trained, ...]:
    """Runs jobs that were disturbed by more than ``limit`` again until ``ends``; returns the least disturbed run of each."""
    best, tries, longest = {done.job.id: done for done in trained}, Counter(done.job.id for done in trained), 0.0
    while True:
        rest = [done for done in best.values() if _disturbance(done) > limit and tries[done.job.id] < _TRIALS]
        began = time.monotonic()
        if not rest or began + longest > ends:
            return tuple(best.values())
        old = min(rest, key=lambda done: tries[done.job.id])
        tries[old.job.id] += 1
        new = again(old.job)
        longest = max(longest, time.monotonic() - began)
        if _disturbance(new) < _disturbance(old):
            best[old.job.id] = replace(new, path=new.path.replace(old.path))


def _place(job: Job, plan: Plan, host: launch.Host, folder: Path, told: Callable[[str], None]) -> Here:
    threads = plan.threads or host.threads(job.workload.gpus)
    cluster = described(host, threads, folder / f"machine-{host.device}-{threads}", told)
    artifact = folder / "timings" / f"{job.id}.json"
    return Here(cluster=str(cluster), device=host.device, threads=threads, artifact=artifact)


def _row(job: Job, place: Here, *, alone: bool) -> _Row:
    several = job.workload.gpus > 1 and alone
    single = replace(place, artifact=place.artifact.with_suffix(".alone.json"), most=1) if several else None
    planned = {}
    for timed in (place, single):
        if timed is not None:
            with contextlib.suppress(InputError, Unsupported, NoMeasurement, RuntimeError):
                asked, notes = timed.planned(job.workload)
                if asked.ranks in (1, job.workload.gpus):
                    planned[timed] = asked, notes
    return _Row(job=job, place=place, alone=single, planned=planned)
