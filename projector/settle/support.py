"""Says what a framework can run of a model on a GPU, from the tables that projections rest on."""

from __future__ import annotations

from collections.abc import Iterator

from projector.dataclass import dataclass
from projector.errors import InputError, Unsupported
from projector.frameworks import Resolved, load
from projector.hardware.architectures import ATTENTION, PRECISIONS, TRANSPORTS, known, precisions
from projector.hardware.types import Cluster, Gpu
from projector.layers.lower import layer
from projector.mechanisms.attention_kernels import UNFUSED, choose, first_matching
from projector.operators.types import Attention
from projector.pipeline import generator
from projector.settle import launch
from projector.settle.workload import settle
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

_PLAIN = ("alltoall", "allgather")  # plain collectives, which every GPU has
_SEQUENCE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Whether one thing runs: ``topic`` (``precision``, ``attention``, ``dispatcher``, ``schedule``) and ``name`` of
    the thing; ``runs``: None where no table knows; ``how``: in words; ``since``: month of the first build that has it,
    empty where no table tells; ``source``: who says so."""

    topic: str
    name: str
    runs: bool | None
    how: str = ""
    since: str = ""
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Support:
    """All answers. ``refused``: why no layout of the model is projected, empty where one is; ``open``: what is
    projected as something near, or assumed."""

    answers: tuple[Answer, ...]
    refused: tuple[str, ...]
    open: tuple[str, ...]


def supported(model: Model, cluster: Cluster, framework: str, date: str = "") -> Support:
    """Returns what ``framework`` runs of ``model``, for one sample on one GPU of ``cluster``, whether it fits in memory
    or not. Raises :class:`InputError` for a framework without a file."""
    load(framework)
    recipe = Recipe(micro_batch_size=1, global_batch_size=1, seq_length=_SEQUENCE)
    workload = Workload(model=model, recipe=recipe, gpus=1, framework=framework, framework_date=date)
    gpu, resolved, refused = cluster.gpu, None, tuple(model.unsupported)
    try:
        resolved = settle(workload, cluster)
    except InputError as error:
        refused = tuple(error.lines())
    except Unsupported as error:
        refused = refused or (str(error),)
    answers = [*_precisions(gpu)]
    answers += _attention(resolved, gpu) if resolved else ()
    answers += _dispatchers(framework, gpu) if model.moe else ()
    answers += _schedules(framework)
    unsure = (*model.unmodelled, *(resolved.assumed if resolved else ()))
    return Support(answers=tuple(answers), refused=refused, open=unsure)


def _precisions(gpu: Gpu) -> Iterator[Answer]:
    able, source = precisions(gpu), "; ".join(gpu.sources[:1])
    for name in PRECISIONS:
        how = f"{gpu.peak[name] / 1e12:,.0f} TFLOP/s dense" if name in gpu.peak else "no dense rate of it is stated"
        yield Answer(topic="precision", name=name, runs=name in able, how=how, source=source)


def _attention(resolved: Resolved, gpu: Gpu) -> Iterator[Answer]:
    """Yields the kernels that the stack runs on this model, then those that a recipe may ask for."""
    kernels = resolved.execution.kernels
    blocks = [layer(kind, resolved) for kind in dict.fromkeys(resolved.workload.model.layer_kinds)]
    ops = (op for block in blocks for op in (*block.forward, *block.backward_input) if isinstance(op, Attention))
    seen: dict[tuple[str, str], Answer] = {}
    for op in ops:
        family = choose(kernels.attention, kernels.built, gpu.arch, op)[0] if op.flash else UNFUSED
        kernel = first_matching(kernels.attention, kernels.built, gpu.arch, op) if op.flash else None
        phase = "backward" if op.backward else "forward"
        answer = Answer(
            topic="attention",
            name=f"{phase} of this model",
            runs=family != UNFUSED,
            how=f"{family}, heads of {op.head_dim_qk}/{op.head_dim_v} in {op.dtype}",
            since=kernel.since if kernel else "",
            source=kernel.source if kernel else "",
        )
        seen.setdefault((phase, answer.how), answer)
    yield from seen.values()
    runnable = known(gpu.arch, ATTENTION)
    for name in ("fa2", "fa3", "fa4", "fused"):
        runs, how = None if runnable is None else name in runnable, "kernels for this GPU"
        how = how if runs else f"no {how}" if runnable is not None else f"nothing is known of {gpu.arch}"
        yield Answer(topic="attention", name=name, runs=runs, how=how, source=(runnable or {}).get(name, ""))


def _dispatchers(framework: str, gpu: Gpu) -> Iterator[Answer]:
    """Yields the dispatchers of all frameworks, with whether this framework has each and the GPU can run it."""
    listed, transports = launch.dispatchers_of(framework), known(gpu.arch, TRANSPORTS)
    for name in launch.DISPATCHERS:
        on_gpu = name in _PLAIN or (None if transports is None else name in transports)
        runs = on_gpu if listed and name in listed else False if listed or on_gpu is False else None
        how = "" if runs else f"not in {framework}" if listed and name not in listed else "no kernels for this GPU"
        how = how if runs is not None else f"nothing is known of {gpu.arch if listed else framework}"
        source = "" if name in _PLAIN else (transports or {}).get(name, "")
        yield Answer(topic="dispatcher", name=name, runs=runs, how=how, source=source)


def _schedules(framework: str) -> Iterator[Answer]:
    listed = set(launch.own_schedules(framework))
    for name in launch.schedules_of(framework):
        schedule = generator(name)
        how = "" if listed else f"as in Megatron-LM: nothing is known of {framework}"
        yield Answer(topic="schedule", name=name, runs=True if listed else None, how=how, source=schedule.source)
