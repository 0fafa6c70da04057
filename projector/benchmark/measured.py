"""``project``: a training step out of layers, updates and collectives that are timed on the devices at hand.

The configuration is shrunk to these devices (:mod:`projector.benchmark.shrink`), a shortened model is trained for some
steps by as many ranks at once as there are, and the times at its seams are put back into the whole run: the schedule,
data parallelism and what no device here can show are those of :mod:`projector.projection`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from projector import projection
from projector.benchmark import artifact as files
from projector.benchmark import collectives, processes, room
from projector.benchmark.device import Device
from projector.benchmark.named import layer_kinds, stages_of, updates
from projector.benchmark.restored import collectives_needed, restored
from projector.benchmark.shrink import Shrunk, shrink_to
from projector.benchmark.timings import Asked, Timings
from projector.errors import InputError, Problem, Unsupported
from projector.frameworks.types import Resolved
from projector.hardware.types import Cluster
from projector.projection import Projection
from projector.workload.workload import Workload

__all__ = ["Measurement", "load", "measure", "project", "restore"]

_TASK = "projector.benchmark.task:run"
_START = 120.0  # seconds that processes may take to import torch and to find each other
_STEPS = 60.0  # times the budget that all measurements together may take


@dataclass(frozen=True)
class Measurement:
    """What was asked of the devices, what they answered, and in what the shrunk run differs from the whole."""

    asked: Asked
    timings: Timings
    notes: tuple[str, ...]


def project(
    workload: Workload,
    cluster: Cluster,
    device: Device,
    artifact: Path | None = None,
    *,
    layers: str = "auto",
    budget: float = 2.0,
) -> Projection:
    """One training step of ``workload`` on ``cluster``, from times taken on ``device`` and its neighbours.

    ``artifact``: a file of timings; one that exists is used in place of the device, else it is written. ``layers``: whose
    (:mod:`projector.benchmark.source`). ``budget``: seconds spent on each thing that is timed. Under torchrun every rank
    calls this and gets the same answer; otherwise further processes are started where the run has more than one rank.

    Raises what :func:`projector.projection.project` raises, and :class:`InputError` for a device with too little memory,
    layers that are not installed, or an artifact of something else.
    """
    if artifact is not None and artifact.exists():
        found = load(artifact, workload, cluster, device)
    else:
        found = measure(workload, cluster, device, layers=layers, budget=budget)
        if artifact is not None and collectives.first():
            files.save(artifact, found.timings, found.asked, found.notes, workload, device)
    return restore(found, workload, cluster)


def measure(
    workload: Workload,
    cluster: Cluster,
    device: Device,
    *,
    layers: str = "auto",
    budget: float = 2.0,
    most: int | None = None,
) -> Measurement:
    """Times everything that one step of ``workload`` needs, on ``most`` devices; see :func:`project`."""
    if cluster.gpu.vendor != device.vendor:
        expected = f"a cluster of {device.title}: times taken there say nothing of {cluster.gpu.title}"
        raise InputError([Problem("--cluster", "gpu", cluster.gpu.name, expected)])
    resolved = projection.project(workload, cluster).resolved
    if resolved.workload.model.mtp_num_layers:
        raise Unsupported("live layers of multi-token prediction")
    joined = processes.world()
    shrunk = shrink_to(resolved.workload, joined[1] if joined else _devices(device, most))
    if joined and shrunk.ranks != joined[1]:
        expected = f"{shrunk.ranks}: what tp, ep and the {workload.gpus} ranks of the run divide"
        raise InputError([Problem("torchrun", "--nproc-per-node", joined[1], expected)])
    asked = _asked(resolved, shrunk, cluster, layers, budget)
    room.check(asked, device)
    return Measurement(asked, Timings.of(_run(asked, device), asked), shrunk.notes)


def _devices(device: Device, most: int | None) -> int:
    here = processes.available(device)
    if most is not None and most > here:
        raise InputError([Problem("--benchmark-gpus", "", most, f"at most {here}: as many devices are at hand")])
    return most or here


def load(path: Path, workload: Workload, cluster: Cluster, device: Device | None = None) -> Measurement:
    """The measurement of a file. Raises :class:`InputError` for one of another workload, device or version."""
    document = files.read(path)
    files.refuse(path, document, workload, cluster.gpu.name, device)
    resolved = projection.project(workload, cluster).resolved
    environment = document["environment"]
    try:
        ranks, layers, budget = (
            int(environment["ranks"]),
            str(environment["layers"]),
            float(environment["budget_seconds"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        expected = "ranks, layers and budget_seconds as --save-benchmark writes them"
        raise InputError([Problem(str(path), "environment", str(error), expected)]) from None
    asked = _asked(resolved, shrink_to(resolved.workload, ranks), cluster, layers, budget)
    return Measurement(asked, files.timings_of(path, document), tuple(map(str, document.get("notes", ()))))


def restore(found: Measurement, workload: Workload, cluster: Cluster) -> Projection:
    """The step of ``workload`` from timings of it. Raises what :func:`projector.projection.project` raises."""
    return restored(found.asked, found.timings, projection.project(workload, cluster), cluster)


def _run(asked: Asked, device: Device) -> dict[str, object]:
    if processes.world() is not None:
        processes.joined(device)
    elif asked.ranks > 1:
        limit = _START + _STEPS * asked.budget * (1 + len(asked.stages) + len(asked.collectives))
        threads = processes.threads_of(device, asked.ranks)
        found = processes.launch(processes.JobFile(_TASK, asked, device.place, threads, asked.ranks, limit))
        return dict(found)
    from projector.benchmark.task import run

    return run(asked, device)


def _asked(resolved: Resolved, shrunk: Shrunk, cluster: Cluster, layers: str, budget: float) -> Asked:
    work = resolved.workload
    recipe, stages = work.recipe, stages_of(resolved)
    sharded = recipe.data_parallel_sharding == "optim_grads_params" and shrunk.ranks > 1 and shrunk.ranks == work.dp
    return Asked(
        workload=shrunk.workload,
        execution=resolved.execution,
        parts=layer_kinds(resolved, stages),
        stages=tuple(dict.fromkeys(updates(resolved, stages, sharded))),
        collectives=collectives_needed(resolved, stages, cluster, shrunk.ranks, sharded),
        microbatches=work.num_microbatches,
        sharded=sharded,
        ranks=shrunk.ranks,
        layers=layers,
        budget=budget,
    )
