"""The log of a training in the format of Megatron-LM (megatron/training/training.py, arguments.py): header, argument
dump, iteration lines, memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.measure.arguments import arguments
from harness.measure.disturbance import kept
from projector.frameworks.flops import tflops_per_gpu
from projector.io.files import write_whole

if TYPE_CHECKING:
    from harness.measure.spec import Job

_DOTS = 48  # characters of a name and its dots (arguments.py _print_args)
_MIB = 2.0**20


def head(job: Job, facts: Mapping[str, object]) -> Iterator[str]:
    """World size and arguments. ``facts``: what the process says of itself: device, software, threads."""
    workload = job.workload
    sizes = f"tensor-model-parallel size: {workload.recipe.tp}, pipeline-model-parallel size: {workload.recipe.pp}"
    yield f"using world size: {workload.gpus}, data-parallel size: {workload.dp}, {sizes}"
    stated = {
        **arguments(workload),
        **facts,
        "trainer_framework": workload.framework,
        "train_iters": job.steps,
        "seed": job.seed,
        "lr": job.learning_rate,
        "clip_grad": 1.0,
    }
    yield "------------------------ arguments ------------------------"
    for name in sorted(stated, key=str.lower):
        yield f"  {name} {'.' * (_DOTS - len(name))} {stated[name]}"
    yield "-------------------- end of arguments ---------------------"


@dataclass(frozen=True, slots=True)
class Step:
    """``number`` from 1; ``moment``: its end, seconds of the epoch; ``waited``: of ``seconds``, for a core that another
    process held (the rank that waited longest)."""

    number: int
    moment: float
    seconds: float
    waited: float
    loss: float
    grad_norm: float


def body(job: Job, steps: Sequence[Step], used: Mapping[str, float] | None = None) -> Iterator[str]:
    """A line a step, and ``used`` memory in bytes by kind.

    A step that other processes disturbed (:mod:`harness.measure.disturbance`) has its time in another form than an
    iteration line, so that who reads the log counts what the training takes where it is let alone.
    """
    good = kept([step.waited / step.seconds for step in steps])
    for step, counts in zip(steps, good, strict=True):
        yield iteration(job, step) if counts else _disturbed(job, step)
    counted = [step for step, counts in zip(steps, good, strict=True) if counts]
    if any(step.waited for step in counted):
        share = sum(step.waited for step in counted) / sum(step.seconds for step in counted)
        yield f"(after the last iteration) of the iterations without a core (%): {share * 100:.2f}"
    if used is not None:
        yield memory(used)


def iteration(job: Job, step: Step) -> str:
    """One step; Megatron-LM's fields in its order, the time with microseconds and the rate with six digits."""
    batch = job.workload.recipe.global_batch_size
    rate = tflops_per_gpu(job.workload, step.seconds)
    return (
        f"{_begin(job, step)} consumed samples: {step.number * batch:12d} |"
        f" elapsed time per iteration (ms): {step.seconds * 1e3:.3f} |"
        f" throughput per GPU (TFLOP/s/GPU): {rate:.6f} | learning rate: {job.learning_rate:.6E} |"
        f" global batch size: {batch:5d} | lm loss: {step.loss:.6E} | loss scale: 1.0 | grad norm: {step.grad_norm:.3f} |"
        " number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def _disturbed(job: Job, step: Step) -> str:
    return (
        f"{_begin(job, step)} disturbed: {step.waited * 1e3:.3f} of {step.seconds * 1e3:.3f} ms without a core |"
        f" lm loss: {step.loss:.6E} | grad norm: {step.grad_norm:.3f} |"
    )


def _begin(job: Job, step: Step) -> str:
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(step.moment))
    return f" [{moment}] iteration {step.number:8d}/{job.steps:8d} |"


def memory(used: Mapping[str, float]) -> str:
    """Bytes by kind, as Megatron-LM reports them (its MB are 2**20 bytes)."""
    parts = " | ".join(f"{name}: {value / _MIB:.2f}" for name, value in used.items())
    return f"[Rank 0] (after the last iteration) memory (MB) | {parts}"


def save(path: Path, lines: Sequence[str]) -> None:
    """Writes the file whole or not at all."""
    write_whole(path, "\n".join(lines) + "\n")
