"""The closed loop of a suite: its trainings run, the machine described, and who predicts the runs that come of it."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.contracts.runs import MeasuredRun
from harness.measure import closed, launch, shrunk
from harness.measure.closed import Trained
from harness.measure.shrunk import Shrunk
from harness.measure.spec import Job, Plan
from harness.predictors.live import Here, Live
from harness.predictors.protocol import Predictor
from harness.score.gate import SHRINK
from projector.benchmark.timings import Asked
from projector.dataclass import dataclass
from projector.errors import InputError, NoMeasurement, Unsupported

if TYPE_CHECKING:
    from harness.evidence.suite import Suite
from harness.measure.launch import Host

_LARGEST = {"cuda": 8192, "cpu": 1024}  # edge of the largest product; on a CPU a probe shall take seconds
_SAMPLES, _MOST = 5, 0.2  # runs of one kernel, and seconds that they may take
_MESSAGE = 16 * 2**20  # bytes of the largest collective
NAME = "here"


def described(here: Host, threads: int, folder: Path, told: Callable[[str], None]) -> Path:
    """The cluster file of this machine in ``folder``, made by a probe with ``threads`` (CPU) unless it is there.

    Raises :class:`projector.errors.InputError` where the device cannot be timed.
    """
    path = folder / f"{NAME}.cluster.yaml"
    if not path.is_file():
        _probe(here, threads, folder)
        told(f"probed the device, {threads} threads" + (", and what joins processes" if here.places > 1 else ""))
    return path


def _probe(here: Host, threads: int, folder: Path) -> None:
    from projector.benchmark import collectives, fabric
    from projector.benchmark.device import open_device
    from projector.benchmark.entry import entry
    from projector.benchmark.entry_files import write
    from projector.benchmark.probe import probe
    from projector.benchmark.stopwatch import Stopwatch
    from projector.errors import InputError, Problem

    device = open_device(here.device, threads if here.device == "cpu" else None)
    found = probe(device, Stopwatch(device, samples=_SAMPLES, most=_MOST), _LARGEST[here.device])
    try:
        made = entry(found, NAME)
    except ValueError as error:
        raise InputError([Problem("measure", "", device.title, f"a device that torch can time ({error})")]) from None
    joined = None
    if here.places > 1:  # two say what joins them; more would want as many cores
        swept = collectives.timed(device, _MESSAGE, _MOST, ranks=2)
        joined = replace(fabric.fitted(swept, made.gpu), ranks=here.places)
    write(made, folder, device.software(), joined)
    if device.type == "cuda":
        device.torch.cuda.empty_cache()  # trainings want the memory that this process would keep


_TRIALS, _SECONDS = 3, 270.0  # of a job that was disturbed; from the start, after which none starts again


@dataclass(frozen=True)
class Closed:
    """``runs``: what was trained, by the name of its suite; ``here``: where, by run id; ``files``: logs and the probe.
    By suite, where its gate asks for that, ``shrunk``: those on several processes from times of one; ``unclear``: those that
    were disturbed by more than it allows."""

    done: tuple[Trained, ...] = ()
    runs: Mapping[str, tuple[MeasuredRun, ...]] = field(default_factory=dict)
    here: Mapping[str, Here] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    shrunk: Mapping[str, tuple[Shrunk, ...]] = field(default_factory=dict)
    unclear: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def with_suite(
        self,
        name: str,
        here: Mapping[str, Here],
        trained: Sequence[Trained],
        found: tuple[Shrunk, ...],
        unclear: frozenset[str],
    ) -> Closed:
        """And what a further suite trained."""
        files = [one.path for one in trained] + [Path(place.cluster) for place in here.values()]
        return Closed(
            done=(*self.done, *trained),
            runs={**self.runs, name: tuple(replace(one.run, cluster=here[one.job.id].cluster) for one in trained)},
            here={**self.here, **here},
            files=tuple(dict.fromkeys((*self.files, *files))),
            shrunk={**self.shrunk, name: found},
            unclear={**self.unclear, name: unclear},
        )

    def predictors(self, tools: Sequence[Predictor]) -> tuple[Predictor, ...]:
        """``tools``, of which ``benchmark`` times the layers of runs that were trained here."""
        return tuple(Live(tool, self.here) if tool.name == "benchmark" and self.here else tool for tool in tools)


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A job, where its layers are timed by its own ranks, and (for the shrink test) where by each rank alone; ``planned``:
    what of that its ranks can time between its repetitions. The rest is left to the prediction, which says why."""

    job: Job
    place: Here
    alone: Here | None
    planned: Mapping[Here, tuple[Asked, tuple[str, ...]]]

    @property
    def asked(self) -> tuple[Asked, ...]:
        return tuple(asked for asked, _ in self.planned.values())

    def keep(self, done: Trained) -> None:
        """Timings into the files of their places."""
        for place, planned in self.planned.items():
            for each in done.taken:
                if each.turn.asked is planned[0] and each.found:
                    place.keep(planned, each.found)

    def judged(self, done: Trained, alone: Here) -> Shrunk:
        asked = self.planned.get(alone)
        return shrunk.judged(done, alone, asked and asked[0])


def close(suites: Sequence[Suite], folder: Path, told: Callable[[str], None], *, live: bool) -> Closed:
    """Trains what the suites ask for; logs, runs and the machine's description go to ``folder``.

    ``live``: layers are timed, too, between the repetitions of their training, so that both see the same machine. Jobs that
    were disturbed by more than the gate's ``shrink`` allows run again while there is time. Raises
    :class:`projector.errors.InputError` where this machine does not suffice, before anything is trained.
    """
    asked = [each for each in suites if each.plan.jobs]
    hosts = {each.name: launch.host(each.plan, str(each.path)) for each in asked}
    found, ends = Closed(), time.monotonic() + _SECONDS
    for each in asked:
        found = found.with_suite(each.name, *_closed(each, hosts[each.name], folder / each.name, told, live, ends))
    return found


def _closed(
    suite: Suite, host: launch.Host, folder: Path, told: Callable[[str], None], live: bool, ends: float
) -> tuple[Mapping[str, Here], tuple[Trained, ...], tuple[Shrunk, ...], frozenset[str]]:
    """Where jobs ran, what was trained, the shrink test, and which jobs were disturbed by more than it allows."""
    # What an earlier run of the suite found says nothing of the machine now
    for pattern in (f"machine-*/{NAME}.cluster.yaml", "timings/*"):
        for path in folder.glob(pattern):
            path.unlink()
    plan, limit = suite.plan, suite.gate.get("benchmark", {}).get(SHRINK) if live else None
    places = {job.id: _place(job, plan, host, folder, told) for job in plan.jobs}
    if not live:
        return places, closed.train(plan, folder, str(suite.path), told), (), frozenset()
    rows = {job.id: _row(job, places[job.id], alone=limit is not None) for job in plan.jobs}

    def train(some: Plan, into: Path) -> tuple[Trained, ...]:
        return closed.train(some, into, str(suite.path), told, {id: row.asked for id, row in rows.items()})

    trained = train(plan, folder)
    if limit is not None:
        trained = _again(trained, partial(_disturbed, limit=limit), plan, folder, train, ends)
    for each in trained:
        rows[each.job.id].keep(each)
    judged = ((rows[each.job.id], each) for each in trained)
    found = tuple(_judged(row, row.alone, each, limit or 0.0, train, plan, folder) for row, each in judged if row.alone)
    unclear = frozenset(each.job.id for each in trained if limit is not None and _disturbed(each, limit))
    unclear |= {each.id for each in found if limit is not None and each.by.again > limit}
    return places, trained, found, unclear


def _judged(
    row: _Row,
    alone: Here,
    done: Trained,
    limit: float,
    train: Callable[[Plan, Path], tuple[Trained, ...]],
    plan: Plan,
    folder: Path,
) -> Shrunk:
    """The shrink test of a job; what fails it is measured twice, and the first time kept."""

    def again() -> Shrunk:
        with tempfile.TemporaryDirectory(prefix="again-", dir=folder) as scratch:
            (new,) = train(replace(plan, jobs=(row.job,)), Path(scratch))
        row.keep(new)
        return row.judged(new, alone)

    found = shrunk.confirmed(row.judged(done, alone), limit, again)
    row.keep(done)
    return found


def _disturbed(done: Trained, limit: float) -> bool:
    return shrunk.disturbed(done, None).most > limit


def _again(
    trained: tuple[Trained, ...],
    unclear: Callable[[Trained], bool],
    plan: Plan,
    folder: Path,
    train: Callable[[Plan, Path], tuple[Trained, ...]],
    ends: float,
) -> tuple[Trained, ...]:
    """``trained`` with jobs that are ``unclear`` run again, of which the least disturbed run is kept, until ``ends``."""
    found, tries, longest = {each.job.id: each for each in trained}, dict.fromkeys((e.job.id for e in trained), 1), 0.0
    with tempfile.TemporaryDirectory(prefix="again-", dir=folder) as scratch:
        while True:
            left = [each for each in found.values() if unclear(each) and tries[each.job.id] < _TRIALS]
            began = time.monotonic()
            if not left or began + longest > ends:
                break
            old = min(left, key=lambda each: tries[each.job.id])
            tries[old.job.id] += 1
            (new,) = train(replace(plan, jobs=(old.job,)), Path(scratch))
            longest = max(longest, time.monotonic() - began)
            if shrunk.disturbed(new, None).most < shrunk.disturbed(old, None).most:
                found[old.job.id] = replace(new, path=new.path.replace(old.path))
    closed.write(found.values(), folder)
    return tuple(found.values())


def _place(job: Job, plan: Plan, host: launch.Host, folder: Path, told: Callable[[str], None]) -> Here:
    threads = plan.threads or host.threads(job.workload.gpus)
    cluster = described(host, threads, folder / f"machine-{host.device}-{threads}", told)
    artifact = folder / "timings" / f"{job.id}.json"
    return Here(cluster=str(cluster), device=host.device, threads=threads, artifact=artifact)


def _row(job: Job, place: Here, *, alone: bool) -> _Row:
    several = job.workload.gpus > 1 and alone
    single = replace(place, artifact=place.artifact.with_suffix(".alone.json"), most=1) if several else None
    planned = {}
    for each in (place, single):
        if each is not None:
            with contextlib.suppress(InputError, Unsupported, NoMeasurement, RuntimeError):
                asked, notes = each.planned(job.workload)
                if asked.ranks in (1, job.workload.gpus):
                    planned[each] = asked, notes
    return _Row(job=job, place=place, alone=single, planned=planned)
