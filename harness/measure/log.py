"""Writes the log of a training in the format of Megatron-LM (megatron/training/training.py, arguments.py): header,
argument dump, iteration lines, memory."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.evidence import shelf
from projector.dataclass import dataclass
from projector.frameworks.flops import tflops_per_gpu
from projector.io.files import write_whole
from projector.io.table import values
from projector.workload.workload import Workload

if TYPE_CHECKING:
    from harness.measure.spec import Job

QUIET = 0.05  # share of a step in which its process may have waited for a core
_LEAST = 1 / 3  # share of the steps that is kept, however disturbed


@dataclass(frozen=True, kw_only=True)
class Disturbed:
    """How far a comparison of measurements was disturbed, by other programs or by a machine whose pace changed, each as
    a share of a step.

    ``spread``: slowest over fastest repetition, less one, or the 90 % interval of the timed step's median, whichever is
    wider; ``waited``: without a core that others held; ``pace``: slowest over fastest pace of the machine around the
    compared measurements, less one; ``again``: the change of the compared figure when it was measured again.
    """

    spread: float = 0.0
    waited: float = 0.0
    pace: float = 0.0
    again: float = 0.0

    @property
    def most(self) -> float:
        return max(self.spread, self.waited, self.pace, self.again)

    def __str__(self) -> str:
        tail = f", again {self.again:.0%} apart" if self.again else ""
        return f"spread {self.spread:.0%}, no core {self.waited:.0%}, pace {self.pace:.0%}{tail}"


def kept(shares: Sequence[float]) -> list[bool]:
    """Returns which steps count, by the share of each that was waiting: those below a twentieth, and in any case the
    least disturbed third of those after the first (for a machine that is never quiet; the first warms up)."""
    if not shares:
        return []
    after = sorted(shares[1:] or shares)
    enough = after[math.ceil(len(after) * _LEAST) - 1]
    limit = max(QUIET, enough)
    return [share <= limit for share in shares]


_TOLD: Mapping[str, str] = shelf.data("measure/arguments.yaml")


def arguments(workload: Workload) -> dict[str, object]:
    """Returns Megatron-LM's arguments by name; None is printed as ``None``, as Megatron-LM does."""
    model, recipe = workload.model, workload.recipe
    moe, fp8 = model.moe, recipe.precision == "fp8"
    stated = values(workload, _TOLD["always"])
    stated |= {
        "group_query_attention": model.num_query_groups != model.num_attention_heads,
        "multi_latent_attention": model.mla is not None,
        "virtual_pipeline_model_parallel_size": recipe.vpp if recipe.vpp > 1 else None,
        "bf16": recipe.precision in ("bf16", "fp8"),
        "fp8": "hybrid" if fp8 else None,
        "fp8_recipe": recipe.fp8_recipe if fp8 else None,
        "fp16": recipe.precision == "fp16",
        "cross_entropy_loss_fusion": False,
        "recompute_granularity": None,
        "recompute_activations": False,
        **dict.fromkeys(("bias_swiglu_fusion", "bias_gelu_fusion"), bool(recipe.bias_activation_fusion)),
    }
    if model.mla is not None:
        stated |= values(workload, _TOLD["mla"])
    if moe is not None:
        stated |= values(workload, _TOLD["moe"])
        stated["moe_layer_freq"] = list(moe.moe_layer_freq)
        stated["moe_shared_expert_intermediate_size"] = moe.moe_shared_expert_intermediate_size or None
    return stated


_DOTS = 48  # characters of a name and its dots (arguments.py _print_args)
_MIB = 2.0**20


def head(job: Job, facts: Mapping[str, object]) -> Iterator[str]:
    """Yields world size and arguments. ``facts``: what the process reports: device, software, threads."""
    workload = job.workload
    sizes = f"tensor-model-parallel size: {workload.recipe.tp}, pipeline-model-parallel size: {workload.recipe.pp}"
    yield f"using world size: {workload.gpus}, data-parallel size: {workload.dp}, {sizes}"
    stated = {
        **arguments(workload),
        **facts,
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
class TrainedStep:
    """One step. ``number`` from 1; ``moment``: its end, seconds of the epoch; ``waited``: the part of ``seconds`` in
    which another process held the core (the rank that waited longest)."""

    number: int
    moment: float
    seconds: float
    waited: float
    loss: float
    grad_norm: float


def body(job: Job, steps: Sequence[TrainedStep], used: Mapping[str, float] | None = None) -> Iterator[str]:
    """Yields a line a step, and ``used`` memory in bytes by kind. A step that other processes disturbed
    (:mod:`harness.measure.log`) has its time in another form than an iteration line, so that a reader of the log counts
    only undisturbed steps."""
    good = kept([step.waited / step.seconds for step in steps])
    for step, counts in zip(steps, good, strict=True):
        yield iteration(job, step) if counts else _disturbed_line(job, step)
    counted = [step for step, counts in zip(steps, good, strict=True) if counts]
    if any(step.waited for step in counted):
        share = sum(step.waited for step in counted) / sum(step.seconds for step in counted)
        yield f"(after the last iteration) of the iterations without a core (%): {share * 100:.2f}"
    if used is not None:
        yield memory(used)


def iteration(job: Job, step: TrainedStep) -> str:
    """Returns one step; Megatron-LM's fields in its order, the time with microseconds and the rate with six digits."""
    batch = job.workload.recipe.global_batch_size
    rate = tflops_per_gpu(job.workload, step.seconds)
    return (
        f"{_line_start(job, step)} consumed samples: {step.number * batch:12d} |"
        f" elapsed time per iteration (ms): {step.seconds * 1e3:.3f} |"
        f" throughput per GPU (TFLOP/s/GPU): {rate:.6f} | learning rate: {job.learning_rate:.6E} |"
        f" global batch size: {batch:5d} | lm loss: {step.loss:.6E} | loss scale: 1.0 | grad norm: {step.grad_norm:.3f} |"
        " number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def _disturbed_line(job: Job, step: TrainedStep) -> str:
    return (
        f"{_line_start(job, step)} disturbed: {step.waited * 1e3:.3f} of {step.seconds * 1e3:.3f} ms without a core |"
        f" lm loss: {step.loss:.6E} | grad norm: {step.grad_norm:.3f} |"
    )


def _line_start(job: Job, step: TrainedStep) -> str:
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(step.moment))
    return f" [{moment}] iteration {step.number:8d}/{job.steps:8d} |"


def memory(used: Mapping[str, float]) -> str:
    """Returns bytes by kind, as Megatron-LM reports them (its MB are 2**20 bytes)."""
    parts = " | ".join(f"{name}: {value / _MIB:.2f}" for name, value in used.items())
    return f"[Rank 0] (after the last iteration) memory (MB) | {parts}"


def save(path: Path, lines: Sequence[str]) -> None:
    """Writes the file whole or not at all."""
    write_whole(path, "\n".join(lines) + "\n")
