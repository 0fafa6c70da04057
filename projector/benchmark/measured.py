"""Makes a training step out of layers, updates and collectives that are timed on the devices at hand: ``project``.

The configuration is shrunk to these devices (:mod:`projector.benchmark.shrink`), a shortened model is trained for some
steps by as many ranks at once as there are, and the times at its seams are put back into the whole run: the schedule,
data parallelism and what no device here can show are those of :mod:`projector.projection`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from projector import projection
from projector.benchmark import artifact as files
from projector.benchmark import launcher, processes
from projector.benchmark.conditions import refuse_busy
from projector.benchmark.device import Device
from projector.benchmark.launcher import place
from projector.benchmark.prices import layer_kinds, placed, stages_of, updates
from projector.benchmark.shrink import WIDE, Shrunk, shrink_to
from projector.benchmark.timed_run import eager, refuse
from projector.benchmark.timings import Asked, Timings
from projector.benchmark.whole_step import collectives_needed, restored
from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.frameworks import resolve
from projector.frameworks.types import Resolved
from projector.hardware import catalogue
from projector.hardware.types import Cluster
from projector.layers import lower
from projector.memory.plan import plan
from projector.projection import Projection
from projector.settle import launch
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

#: How the note begins that tells of layers which stand for those of the framework.
INSTEAD = "Not the framework's layers: "
_TASK = "projector.benchmark.task:run"
_START = 120.0  # seconds that processes may take to import torch and to find each other
_STEPS = 60.0  # times the budget that all measurements together may take


@dataclass(frozen=True)
class Measurement:
    """What was asked of the devices, their timings, and in what the shrunk run differs from the whole."""

    asked: Asked
    timings: Timings
    notes: tuple[str, ...]

    def eager(self, resolved: Resolved) -> str:
        """Returns a sentence where eager layers stand for fused ones, else an empty text."""
        names = ", ".join(eager(resolved, self.timings.source, self.asked))
        return f"eager layers stand for fused ones, the difference is priced: {names}" if names else ""


def project(
    workload: Workload, cluster: Cluster, device: Device, artifact: Path | None = None, **how: Any
) -> Projection:
    """Returns one training step of ``workload`` on ``cluster``, from times taken on ``device`` and its neighbours.

    ``artifact``: a file of timings; one that exists is used in place of the device, else it is written. ``how``: see
    :func:`planned`. Under torchrun, srun or mpirun every rank calls this and gets the same answer; otherwise further
    processes are started where the run has more than one rank.

    Raises what :func:`projector.projection.project` raises, and :class:`InputError` for a device with too little
    memory, layers that are not installed, or an artifact of something else.
    """
    if artifact is not None and artifact.exists():
        measurement = load(artifact, workload, cluster, device)
    else:
        measurement = measure(workload, cluster, device, artifact=artifact, **how)
    return restore(measurement, workload, cluster)


def measure(
    workload: Workload, cluster: Cluster, device: Device, *, artifact: Path | None = None, **how: Any
) -> Measurement:
    """Times everything that one step of ``workload`` needs into ``artifact``; ``how``: see :func:`planned`.

    Where a rank is lost, ``artifact`` has what was timed before, if that makes a step.
    """
    asked, notes = planned(workload, cluster, device, **how)

    def save(found: Mapping[str, Any]) -> Measurement:
        return keep(found, asked, notes, device, artifact)

    return save(_run(asked, device, save, artifact))


def keep(
    results: Mapping[str, Any], asked: Asked, notes: Sequence[str], device: Device, artifact: Path | None
) -> Measurement:
    """Returns the measurement of what ranks ``results``, kept in ``artifact``. ``asked``, ``notes``: see :func:`planned`."""
    timings = Timings.of(results, asked)
    remarks = (*_note_on_layers(asked, timings.source, device), *notes, *timings.missing(asked))
    if artifact is not None and launcher.first():
        files.save(artifact, timings, asked, remarks, device)
    return Measurement(asked, timings, remarks)


def _note_on_layers(asked: Asked, source: str, device: Device) -> tuple[str, ...]:
    """Returns a note where ``auto`` timed eager torch for a framework that has layers of its own."""
    from projector.benchmark import layers_megatron

    framework = asked.workload.framework
    if asked.layers != "auto" or source != "torch" or launch.family(framework) not in ("megatron", "primus"):
        return ()
    if not layers_megatron.installed():
        why = "Megatron-Core is not installed"
    elif device.type != "cuda":
        why = "auto takes Megatron-Core's on a GPU only (--layers megatron tries them here)"
    else:
        why = "Megatron-Core's do not run here (--layers megatron shows the error)"
    return (f"{INSTEAD}eager torch was timed in place of {framework}'s: {why}",)


def planned(
    workload: Workload, cluster: Cluster, device: Device, *,
    layers: str = "auto", budget: float = 2.0, most: int | None = None,
) -> tuple[Asked, tuple[str, ...]]:  # fmt: skip
    """Returns what :func:`measure` will time, and in what that differs from the whole run. Raises before anything runs,
    as :func:`measure` does.

    ``layers``: whose layers (:mod:`projector.benchmark.source`); ``budget``: seconds spent on each thing that is timed;
    ``most``: how many devices time at most.
    """
    named, others = cluster.gpu.name in catalogue.gpu_names(), device.known and cluster.gpu.name != device.gpu
    if cluster.gpu.vendor != device.vendor or (named and (others or " MIG " in device.title)):
        expected = f"a cluster of {device.title}: times taken there say nothing of {cluster.gpu.title}"
        raise InputError([Problem("--cluster", "gpu", cluster.gpu.name, expected)])
    resolved = projection.project(workload, cluster).resolved
    refuse(resolved)
    job = launcher.launched()
    if job and most not in (None, job.size):
        expected = f"{job.size}, or nothing: {job.by} started as many ranks"
        raise InputError([Problem("--benchmark-gpus", "", most, expected)])
    here = processes.available(device)
    if not job and most is not None and most > here:
        raise InputError([Problem("--benchmark-gpus", "", most, f"at most {here}: as many devices are at hand")])
    devices = job.size if job else most or here
    shrunk = shrink_to(resolved.workload, devices)
    if narrow(resolved.workload.recipe, shrunk.tp, layers, device):
        shrunk = shrink_to(resolved.workload, devices, narrow=True)
    if job and shrunk.ranks != job.size:
        expected = f"{shrunk.ranks}: what tp, ep and the {workload.gpus} ranks of the run divide"
        raise InputError([Problem(job.by, "ranks", job.size, expected)])
    asked = _plan_of(resolved, shrunk, cluster, layers, budget)
    if device.type != "cpu":  # the nominal host of the catalogue has one process
        asked = replace(asked, collectives=tuple(placed(each, job, shrunk.tp) for each in asked.collectives))
    elif shrunk.ranks == 1:  # cores share memory and caches: as many processes compute at once as the run keeps busy
        asked = replace(asked, beside=min(workload.gpus, cluster.gpus_per_node, here))
    check_memory(asked, device)
    refuse_busy(device, shrunk.ranks)
    return asked, shrunk.notes


def narrow(recipe: Recipe, tp: int, layers: str, device: Device) -> bool:
    """Returns whether 8-bit linears are timed as such: by Transformer Engine in Megatron-Core's layers, in others by
    torch, of ranks that share none of them and by scales that are written here. Raises :class:`Unsupported` for what
    ``device`` lacks."""
    if recipe.precision in WIDE:
        return False
    from projector.benchmark import layers_megatron, layers_narrow

    if layers == "megatron" or (layers == "auto" and device.type == "cuda" and layers_megatron.installed()):
        return layers_megatron.fused(device.place)
    if tp > 1 or not layers_narrow.written(recipe):
        return False
    layers_narrow.check(recipe, device)
    return True


def load(path: Path, workload: Workload, cluster: Cluster, device: Device | None = None) -> Measurement:
    """Returns the measurement of a file, which may be of a run with another pipeline, batch, or number of layers or ranks,
    if one rank's layers are the same. Raises :class:`InputError` for another device or version, or other layers."""
    document = files.read(path)
    resolved = projection.project(workload, cluster).resolved
    refuse(resolved)
    environment = document["environment"]
    try:
        ranks, layers = int(environment["ranks"]), str(environment["layers"])
        budget, precision = float(environment["budget_seconds"]), str(environment["dtype"])
    except (KeyError, TypeError, ValueError) as error:
        expected = "ranks, layers, dtype and budget_seconds as --save-benchmark writes them"
        raise InputError([Problem(str(path), "environment", str(error), expected)]) from None
    shrunk = shrink_to(resolved.workload, ranks, precision not in WIDE)
    asked = _plan_of(resolved, shrunk, cluster, layers, budget)
    files.refuse(path, document, asked, cluster.gpu.name, device)
    notes = dict.fromkeys((*shrunk.notes, *map(str, document.get("notes", ()))))
    return Measurement(asked, files.timings_of(path, document), tuple(notes))


def restore(measurement: Measurement, workload: Workload, cluster: Cluster) -> Projection:
    """Returns the step of ``workload`` from its measurement. Raises what :func:`projector.projection.project` raises."""
    return restored(measurement.asked, measurement.timings, projection.project(workload, cluster), cluster)


def _run(asked: Asked, device: Device, save: Callable[[Any], object], artifact: Path | None) -> Mapping[str, Any]:
    kept: list[Any] = []

    def keep_result(result: Any) -> None:
        save(result)
        kept.append(result)

    job = launcher.launched()
    try:
        processes_here = max(asked.ranks, asked.beside)
        if job is None and processes_here > 1:
            limit = _START + _STEPS * asked.budget * (1 + len(asked.stages) + len(asked.collectives))
            threads = processes.threads_of(device, processes_here)
            job_file = processes.JobFile(_TASK, asked, device.place, threads, processes_here, limit)
            started: Mapping[str, Any] = processes.launch(job_file, keep_result)
            return started
        from projector.benchmark.task import run

        processes.joined(device)
        return run(asked, device, keep_result)
    except RuntimeError as error:  # torch's out of memory, and errors of NCCL and gloo, are such
        problem = Problem(launcher.place(), device.place, processes.said(error), "a measurement that runs to its end")
        raise InputError([_with_kept_times(problem, kept, artifact)]) from None
    except InputError as error:
        raise InputError([_with_kept_times(problem, kept, artifact) for problem in error.problems]) from None


def _with_kept_times(problem: Problem, results: Sequence[object], artifact: Path | None) -> Problem:
    """Returns ``problem``, with a word on the file that has what was timed before."""
    rest = f"; {artifact} has what was timed before, --load-benchmark prices the rest" if results and artifact else ""
    return replace(problem, expected=problem.expected + rest)


def _plan_of(resolved: Resolved, shrunk: Shrunk, cluster: Cluster, layers: str, budget: float) -> Asked:
    work = resolved.workload
    recipe, stages = work.recipe, stages_of(resolved)
    tensors = resolved.execution.tensor_parallel.sharded_tensors and recipe.tp > 1 and not recipe.sequence_parallel
    sharded = recipe.data_parallel_sharding == "optim_grads_params" and shrunk.ranks > 1 and shrunk.ranks == work.dp
    return Asked(
        workload=shrunk.workload,
        execution=resolved.execution,
        parts=layer_kinds(resolved, stages),
        stages=tuple(dict.fromkeys(updates(resolved, stages, sharded))),
        collectives=collectives_needed(resolved, stages, cluster, shrunk.ranks, sharded),
        sharded=sharded,
        ranks=shrunk.ranks,
        layers=layers,
        budget=budget,
        wrapped=tensors and shrunk.tp == 1 and shrunk.workload.recipe.precision in WIDE,
    )


# Memory: whether the devices at hand have what a measurement takes, else which smaller one would fit.
_ROOM = 0.9  # share of the free memory that a measurement may need
_GIB = 2.0**30
#: Bytes of a weight in an update that is timed by itself: itself, its gradient and Adam's moments in fp32; of 16 bits with
#: an fp32 copy itself, its gradient, the copy and its gradient, and the moments. Then what norm and clip take beside.
_STATE, _STATE_16, _BESIDE = 16.0, 20.0, 1.015


def needed(asked: Asked, workload: Workload | None = None) -> float:
    """Returns the bytes of one rank: the greater of the shortened model in training (one layer of each kind), and a
    whole stage's update."""
    work = workload or asked.workload
    kinds, model = [part.kind for part in asked.parts], work.model
    moe = model.moe and replace(model.moe, moe_layer_freq=tuple(int(kind.moe) for kind in kinds))
    short = resolve(replace(work, model=replace(model, num_layers=len(kinds), moe=moe)))
    training = plan(short, catalogue.gpu("cpu")).allocated
    weights = sum(lower.layer(part.kind, short).owned.total * part.count for part in asked.parts)
    share = max((stage.share for stage in asked.stages), default=1.0)
    state = _BESIDE * (_STATE if work.recipe.precision == "fp32" else _STATE_16)
    ends = 2.0 * work.padded_vocab_size * model.hidden_size / work.recipe.tp
    return max(training, state * share * (weights + ends))


def check_memory(asked: Asked, device: Device) -> None:
    """Raises :class:`InputError` where :func:`needed` is more than is free, with a change after which it would fit."""
    ranks = max(asked.ranks, asked.beside) if device.type == "cpu" else 1  # processes share the memory of a host
    free = device.free_bytes() * _ROOM / ranks
    wanted = needed(asked)
    if wanted <= free:
        return
    smaller = ((text, asked, work) for text, work in _smaller(asked.workload))
    fits = next((text for text, less, work in (*smaller, *_with_more_stages(asked)) if needed(less, work) <= free), "")
    expected = f"at most {free / _GIB:.2f} GiB of {device.title}: " + (
        f"with {fits} it would fit" if fits else "no smaller batch, sequence or share of the model fits either"
    )
    raise InputError([Problem(place(), "memory", f"{wanted / _GIB:.2f} GiB for a rank", expected)])


def _smaller(work: Workload) -> Iterator[tuple[str, Workload]]:
    """Yields smaller measurements and what makes each smaller, the mildest first."""
    recipe, model = work.recipe, work.model
    one = replace(recipe, micro_batch_size=1, global_batch_size=max(1, work.dp))
    if recipe.micro_batch_size > 1:
        yield "micro_batch_size 1", replace(work, recipe=one)
    for length in (recipe.seq_length // 2, recipe.seq_length // 4, recipe.seq_length // 8):
        if length:
            yield f"micro_batch_size 1 and seq_length {length}", replace(work, recipe=replace(one, seq_length=length))
    for ranks in (2, 4, 8, 16, 32, 64):
        if model.moe is not None and model.moe.num_experts % ranks == 0 and model.moe.num_experts > ranks:
            experts = model.moe.num_experts // ranks
            moe = replace(model.moe, num_experts=experts, moe_router_topk=min(model.moe.moe_router_topk, experts))
            yield f"{ranks} times the ep", replace(work, model=replace(model, moe=moe), recipe=one)
    for ranks in (2, 4, 8, 16, 32, 64):
        if model.num_query_groups % ranks == 0:
            yield f"{ranks} times the tp", replace(work, model=_narrower(model, ranks), recipe=one)


def _with_more_stages(asked: Asked) -> Iterator[tuple[str, Asked, Workload]]:
    """Yields fewer layers of each kind on a rank, alone and with other shares: a stage's update is timed as a whole."""
    for text, work in (("", asked.workload), *_smaller(asked.workload)):
        for stages in (2, 4, 8, 16, 32, 64):
            parts = tuple(replace(part, count=-(-part.count // stages)) for part in asked.parts)
            yield f"{text}{' and ' if text else ''}{stages} times the pp", replace(asked, parts=parts), work


def _narrower(model: Model, ranks: int) -> Model:
    moe = model.moe and replace(model.moe, moe_ffn_hidden_size=max(1, model.moe.moe_ffn_hidden_size // ranks))
    split = ("num_attention_heads", "num_query_groups", "ffn_hidden_size", "vocab_size")
    sizes: dict[str, Any] = {name: max(1, getattr(model, name) // ranks) for name in split}
    return replace(model, **sizes, moe=moe)
