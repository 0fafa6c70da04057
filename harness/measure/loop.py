"""The closed loop of a suite: its trainings run, the machine described, and who predicts the runs that come of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.contracts.runs import MeasuredRun
from harness.measure import closed, launch, machine, shrunk
from harness.measure.closed import Trained
from harness.measure.disturbance import QUIET, waited
from harness.measure.shrunk import Shrunk
from harness.measure.spec import Job, Plan
from harness.predictors.live import Here, Live
from harness.predictors.protocol import Predictor
from harness.score.gate import SHRINK
from projector.errors import InputError, NoMeasurement, Unsupported

if TYPE_CHECKING:
    from harness.evidence.suite import Suite

__all__ = ["Closed", "close"]

_TRIALS = 3


@dataclass(frozen=True)
class Closed:
    """``runs``: what was trained, by the name of its suite; ``here``: where, by run id; ``files``: logs and the probe.
    ``shrunk``: by suite, those on several processes from times of one, where its gate asks for that."""

    done: tuple[Trained, ...] = ()
    runs: Mapping[str, tuple[MeasuredRun, ...]] = field(default_factory=dict)
    here: Mapping[str, Here] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    shrunk: Mapping[str, tuple[Shrunk, ...]] = field(default_factory=dict)

    def predictors(self, tools: Sequence[Predictor]) -> tuple[Predictor, ...]:
        """``tools``, of which ``benchmark`` times the layers of runs that were trained here."""
        return tuple(Live(tool, self.here) if tool.name == "benchmark" and self.here else tool for tool in tools)


def close(suites: Sequence[Suite], folder: Path, told: Callable[[str], None], *, live: bool) -> Closed:
    """Trains what the suites ask for; logs, runs and the machine's description go to ``folder``.

    ``live``: layers are timed, too, in the middle of the trainings, so that both see the same machine. Raises
    :class:`projector.errors.InputError` where this machine does not suffice, before anything is trained.
    """
    asked = [each for each in suites if each.plan.jobs]
    hosts = {each.name: launch.host(each.plan, str(each.path)) for each in asked}
    done: list[Trained] = []
    runs: dict[str, tuple[MeasuredRun, ...]] = {}
    here: dict[str, Here] = {}
    files: list[Path] = []
    found: dict[str, tuple[Shrunk, ...]] = {}
    for each in asked:
        own = folder / each.name
        _forget(own)
        limit = each.gate.get("benchmark", {}).get(SHRINK) if live else None
        places = {job.id: _place(job, each.plan, hosts[each.name], own, told) for job in each.plan.jobs}
        alone = {} if limit is None else _alone(each.plan, places)
        between = _timing((places, alone), told) if live else None
        trained = closed.train(each.plan, own, str(each.path), told, between)
        found[each.name] = tuple(shrunk.judged(one, alone[one.job.id]) for one in trained if one.job.id in alone)
        done += trained
        here |= places
        files += [one.path for one in trained] + [Path(place.cluster) for place in places.values()]
        runs[each.name] = tuple(replace(one.run, cluster=places[one.job.id].cluster) for one in trained)
    return Closed(tuple(done), runs, here, tuple(dict.fromkeys(files)), found)


def _place(job: Job, plan: Plan, host: launch.Host, folder: Path, told: Callable[[str], None]) -> Here:
    threads = plan.threads or host.threads(job.workload.gpus)
    cluster = machine.described(host, threads, folder / f"machine-{host.device}-{threads}", told)
    artifact = folder / "timings" / f"{job.id}.json"
    return Here(cluster=str(cluster), device=host.device, threads=threads, artifact=artifact)


def _least_disturbed(place: Here, job: Job) -> None:
    """Times layers again where other processes held the core, and keeps what was timed with the least of that.

    Of several processes the times are taken as they are: these start anew for every trial, which costs more than it
    mends.
    """
    found: dict[Path, float] = {}
    for number in range(_TRIALS):
        trial = place.artifact.with_suffix(f".{number}")
        before, began = waited(), time.perf_counter()
        replace(place, artifact=trial).project(job.workload)
        found[trial] = (waited() - before) / (time.perf_counter() - began)
        if place.device != "cpu" or (job.workload.gpus > 1 and place.most != 1) or found[trial] < QUIET:
            break
    best = min(found, key=lambda trial: found[trial])
    best.replace(place.artifact)
    for trial in found:
        trial.unlink(missing_ok=True)


def _forget(folder: Path) -> None:
    """What an earlier run of the suite found says nothing of the machine now."""
    for pattern in (f"machine-*/{machine.NAME}.cluster.yaml", "timings/*"):
        for path in folder.glob(pattern):
            path.unlink()


def _alone(plan: Plan, places: Mapping[str, Here]) -> dict[str, Here]:
    """Where one process times the layers of trainings on several."""
    several = [job.id for job in plan.jobs if job.workload.gpus > 1]
    return {id: replace(places[id], artifact=places[id].artifact.with_suffix(".alone.json"), most=1) for id in several}


def _timing(every: Sequence[Mapping[str, Here]], told: Callable[[str], None]) -> Callable[[Sequence[Job]], None]:
    """Times the layers of jobs; what fails is left to the prediction, which says why."""

    def time_all(jobs: Sequence[Job]) -> None:
        for job in jobs:
            for places in every:
                if job.id in places:
                    with contextlib.suppress(InputError, Unsupported, NoMeasurement, RuntimeError):
                        _least_disturbed(places[job.id], job)
            told(f"timed layers of {job.id}")

    return time_all
