"""What one process of a training does: every job of a plan, one after the other; rank 0 writes ``<id>.log`` for each."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from harness.measure import log
from harness.measure.disturbance import waited
from harness.measure.log import Step
from harness.measure.spec import TRACE, Job, Plan
from harness.measure.trainer import Trainer
from projector.benchmark.device import Device

__all__ = ["run"]


def run(payload: tuple[Plan, Path], device: Device, kept: Callable[[Any], None]) -> None:  # noqa: ARG001
    """Trains the jobs of a plan with the ranks that are joined, logs and traces into a folder; rank 0 prints each id."""
    plan, folder = payload
    rank = dist.get_rank()
    for job in plan.jobs:
        traced = folder / TRACE.format(job=job.id, rank=rank) if plan.profile else None
        _train(job, device, folder / f"{job.id}.log" if rank == 0 else None, traced)
        if rank == 0:
            print(job.id, flush=True)


def _train(job: Job, device: Device, path: Path | None, traced: Path | None) -> None:
    """The whole training; ``path``: where its log goes, None on ranks that write none; ``traced``: where a trace goes."""
    steps = [*_steps(job, device, traced)]
    if path is not None:
        used = None if device.type == "cpu" else _memory()
        log.save(path, [*log.head(job, _facts(device)), *log.body(job, steps, used)])


def _steps(job: Job, device: Device, traced: Path | None) -> Iterator[Step]:
    """Trains; on a CPU with the longest time that a rank waited for a core while a step lasted."""
    on_cpu = device.type == "cpu"

    def most(seconds: float) -> float:
        word = torch.tensor(seconds)
        if job.workload.gpus > 1 and on_cpu:
            dist.all_reduce(word, dist.ReduceOp.MAX)
        return float(word)

    if not on_cpu:
        torch.cuda.reset_peak_memory_stats()  # of the training before this one in the same process
    trainer = Trainer(job, device)
    gc.collect()
    gc.disable()  # Megatron-LM --manual-gc: no collection in the middle of a step
    try:
        for step in range(1, job.steps + 1):
            tokens, labels = trainer.batch(step)
            if job.workload.gpus > 1:
                dist.barrier()
            before = waited() if on_cpu else 0.0
            began = time.perf_counter()
            result = trainer.step(tokens, labels)  # its last act reads a number back: the device is done by then
            seconds = time.perf_counter() - began
            lost = most(waited() - before) if on_cpu else 0.0
            yield Step(step, time.time(), seconds, lost, result.loss, result.grad_norm)
        if traced is not None:
            _profile(trainer, job.steps, traced)
    finally:
        gc.enable()


def _profile(trainer: Trainer, done: int, path: Path) -> None:
    """Steps behind the timed ones, which a profiler would have slowed: one to warm it up, two that are kept."""
    from torch import profiler

    plan = profiler.schedule(wait=0, warmup=1, active=2, repeat=1)
    with profiler.profile(
        schedule=plan, record_shapes=True, on_trace_ready=lambda made: made.export_chrome_trace(str(path))
    ) as made:
        for step in range(done + 1, done + 4):
            trainer.step(*trainer.batch(step))
            made.step()


def _facts(device: Device) -> dict[str, object]:
    title = "cpu" if device.type == "cpu" else device.title
    threads = torch.get_num_threads()
    return {"trainer_device": title, "trainer_version": f"torch {torch.__version__}", "threads_per_process": threads}


def _memory() -> dict[str, float]:
    cuda: Any = torch.cuda
    return {
        "allocated": cuda.memory_allocated(),
        "max allocated": cuda.max_memory_allocated(),
        "reserved": cuda.memory_reserved(),
        "max reserved": cuda.max_memory_reserved(),
    }
