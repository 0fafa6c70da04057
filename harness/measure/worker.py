"""One process of a training: ``RANK``, ``WORLD_SIZE`` and the rest come from the environment, as torchrun sets them.

``torchrun --nproc-per-node 2 -m harness.measure.worker SPEC --out FOLDER`` trains every job of SPEC that asks for as
many processes as there are, one after the other; rank 0 writes ``FOLDER/<id>.log`` for each.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.measure import log, spec
from harness.measure.disturbance import waited
from harness.measure.log import Step
from projector.benchmark.processes import cores, meet

if TYPE_CHECKING:
    from harness.measure.spec import Job
    from harness.measure.trainer import Trainer

__all__ = ["TRACE", "main"]


def main(argv: list[str] | None = None) -> int:
    """Exit code 0, or that of an exception on the way."""
    parser = argparse.ArgumentParser(prog="python -m harness.measure.worker", description=__doc__)
    parser.add_argument("spec", type=Path, help="trainings: a file with the key measure")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where rank 0 writes the logs")
    parser.add_argument("--profile", action="store_true", help="trace two more steps of each training, on every rank")
    parser.add_argument("--threads", type=int, default=0, help="threads of each process; default: cores over processes")
    options = parser.parse_args(argv)
    plan = spec.read(options.spec)
    rank, world, local = (int(os.environ.get(name, default)) for name, default in _VARIABLES)
    import torch
    import torch.distributed as dist

    on_gpu = plan.device == "cuda" or (not plan.device and torch.cuda.is_available())
    threads = options.threads or max(1, cores() // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", world))))
    torch.set_num_threads(threads)
    device = f"cuda:{local}" if on_gpu else "cpu"
    if on_gpu:
        torch.cuda.set_device(local)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    meet("cuda" if on_gpu else "cpu", rank, world)
    try:
        for job in plan.jobs:
            if job.workload.gpus == world:
                traced = options.out / TRACE.format(job=job.id, rank=rank) if options.profile else None
                _train(job, device, threads, options.out / f"{job.id}.log" if rank == 0 else None, traced)
                if rank == 0:
                    print(job.id, flush=True)
    finally:
        dist.destroy_process_group()
    return 0


#: The file of a rank's trace.
TRACE = "{job}.rank{rank}.trace.json.gz"
_VARIABLES = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))


def _train(job: Job, device: str, threads: int, path: Path | None, traced: Path | None) -> None:
    """The whole training; ``path``: where its log goes, None on ranks that write none; ``traced``: where a trace goes."""
    steps = [*_steps(job, device, traced)]
    if path is not None:
        used = None if device == "cpu" else _memory()
        log.save(path, [*log.head(job, _facts(device, threads)), *log.body(job, steps, used)])


def _steps(job: Job, device: str, traced: Path | None) -> Iterator[Step]:
    """Trains; on a CPU with the longest time that a rank waited for a core while a step lasted."""
    import torch
    import torch.distributed as dist

    from harness.measure import trainer as training

    def most(seconds: float) -> float:
        word = torch.tensor(seconds)
        if job.workload.gpus > 1 and device == "cpu":
            dist.all_reduce(word, dist.ReduceOp.MAX)
        return float(word)

    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()  # of the training before this one in the same process
    trainer = training.Trainer(job, device)
    gc.collect()
    gc.disable()  # Megatron-LM --manual-gc: no collection in the middle of a step
    try:
        for step in range(1, job.steps + 1):
            tokens, labels = trainer.batch(step)
            if job.workload.gpus > 1:
                dist.barrier()
            before = waited() if device == "cpu" else 0.0
            began = time.perf_counter()
            result = trainer.step(tokens, labels)  # its last act reads a number back: the device is done by then
            seconds = time.perf_counter() - began
            lost = most(waited() - before) if device == "cpu" else 0.0
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


def _facts(device: str, threads: int) -> dict[str, object]:
    import torch

    title = "cpu" if device == "cpu" else torch.cuda.get_device_name(device)
    return {"trainer_device": title, "trainer_version": f"torch {torch.__version__}", "threads_per_process": threads}


def _memory() -> dict[str, float]:
    import torch

    cuda: Any = torch.cuda
    return {
        "allocated": cuda.memory_allocated(),
        "max allocated": cuda.max_memory_allocated(),
        "reserved": cuda.memory_reserved(),
        "max reserved": cuda.max_memory_reserved(),
    }


if __name__ == "__main__":
    sys.exit(main())
