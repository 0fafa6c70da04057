"""The work of one process of a measurement: turn after turn, trainings and timings; rank 0 writes ``<id>.log`` of each."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from harness.measure import launch, log
from harness.measure.cores import used, waited
from harness.measure.launch import Turn
from harness.measure.log import TrainedStep
from harness.measure.spec import TRACE, Job, Profile
from harness.measure.trainer import Trainer
from projector.benchmark import task
from projector.benchmark.device import Device
from projector.benchmark.processes import cores

_TICKS = 0.02  # resolution in seconds of the time that other programs used in a step: a tick of 10 ms at each end


def run(
    payload: tuple[tuple[Turn, ...], str, Profile | None, int], device: Device, kept: Callable[[Any], None]
) -> list[dict[str, Any]]:
    """Takes turns with the ranks that are joined: logs (and, where asked for, traces) go into a folder for each
    repetition; rank 0 prints what is done. Returns the words of :class:`harness.measure.launch.TakenTurn`."""
    turns, place, profile, cooldown = payload
    folder = Path(place)
    compared = any(turn.asked for turn in turns)

    def stamp() -> float:
        return _over_ranks(pace(device, dist.barrier), device, dist.ReduceOp.MAX) if compared else 1.0

    def taken(turn: Turn) -> dict[str, Any]:
        if turn is not turns[0]:
            time.sleep(cooldown)
        return _take_turn(turn, folder, profile, device)

    return launch.take(turns, taken, stamp, kept)


def _take_turn(turn: Turn, folder: Path, profile: Profile | None, device: Device) -> dict[str, Any]:
    rank = dist.get_rank()
    gc.collect()  # frees the turn before, whose graphs refer to themselves
    if device.type == "cuda":
        torch.cuda.empty_cache()
    began, before = time.perf_counter(), _usage()
    timings = None
    if turn.asked is not None:
        timings = task.run(turn.asked, device)
    else:
        place = folder / str(turn.number)
        traced = place / TRACE.format(job=turn.job.id, rank=rank)
        steps = [*_steps(turn.job, device, profile, traced)]
        if rank == 0:
            memory = None if device.type == "cpu" else _memory()
            lines = [*log.head(turn.job, _facts(device)), *log.body(turn.job, steps, memory)]
            log.save(place / f"{turn.job.id}.log", lines)
    took = time.perf_counter() - began
    lost, others = (seconds / took for seconds in _since(before, device))
    if timings is not None:
        # Ranks on all cores leave none to other programs, which then slow the timed work.
        beside = {"without_core": lost, "cores_of_others": others, "cores": cores(), "processes": dist.get_world_size()}
        timings["conditions"]["while timed"] = beside
    if rank == 0:
        print(turn.name, flush=True)
    return {"waited": lost, "others": others, "found": timings}


def _usage() -> tuple[float, float, float]:
    return waited(), used(), time.process_time()


def _since(before: tuple[float, float, float], device: Device) -> tuple[float, float]:
    """Returns seconds without a core of the rank that waited most, and of core that programs beside these ranks used."""
    lost, ran, cpu = (now - then for now, then in zip(_usage(), before, strict=True))
    ours = _over_ranks(cpu, device, dist.ReduceOp.SUM)
    return _over_ranks(lost, device, dist.ReduceOp.MAX), max(0.0, ran - ours)


def _over_ranks(seconds: float, device: Device, how: Any) -> float:
    word = torch.tensor(seconds, device=device.place)
    if dist.get_world_size() > 1:
        dist.all_reduce(word, how)
    return float(word)


def _steps(job: Job, device: Device, profile: Profile | None, traced: Path) -> Iterator[TrainedStep]:
    """Trains and yields each step; on a CPU with the longest time that a rank waited, while the step lasted, for a core
    that others used."""
    on_cpu = device.type == "cpu"
    if not on_cpu:
        torch.cuda.reset_peak_memory_stats()  # an earlier training in the same process left its peak
    trainer = Trainer(job, device)
    gc.collect()
    gc.disable()  # Megatron-LM --manual-gc: no collection in the middle of a step
    try:
        for step in range(1, job.steps + 1):
            tokens, labels = trainer.batch(step)
            if job.workload.gpus > 1:
                dist.barrier()
            before = _usage()
            began = time.perf_counter()
            result = trainer.step(tokens, labels)  # ends by reading a number back: the device is done by then
            seconds = time.perf_counter() - began
            lost, others = _since(before, device) if on_cpu else (0.0, 0.0)
            lost = min(lost, max(0.0, others - _TICKS))  # threads of a rank wait for each other, too
            yield TrainedStep(step, time.time(), seconds, lost, result.loss, result.grad_norm)
        if profile is not None:
            _trace(trainer, job.steps, profile, traced)
    finally:
        gc.enable()


def _trace(trainer: Trainer, done: int, plan: Profile, path: Path) -> None:
    """Traces steps behind the timed ones, which a profiler would have slowed."""
    from torch import profiler

    schedule = profiler.schedule(wait=plan.wait, warmup=plan.warmup, active=plan.active, repeat=plan.repeat)
    with profiler.profile(
        schedule=schedule,
        on_trace_ready=lambda tracer: tracer.export_chrome_trace(str(path)),
        profile_memory=plan.profile_memory,
        with_stack=plan.with_stack,
        with_flops=plan.with_flops,
        record_shapes=plan.record_shapes,
    ) as tracer:
        for step in range((plan.wait + plan.warmup + plan.active) * plan.repeat):
            trainer.step(*trainer.batch(done + 1 + step))
            tracer.step()


def _facts(device: Device) -> dict[str, object]:
    title = "cpu" if device.type == "cpu" else device.title
    threads = torch.get_num_threads()
    return {"trainer_device": title, "trainer_version": f"torch {torch.__version__}", "threads_per_process": threads}


def _memory() -> dict[str, float]:
    kinds = ("allocated", "max allocated", "reserved", "max reserved")
    return {
        kind: getattr(torch.cuda, f"{'max_' * kind.startswith('max')}memory_{kind.rpartition(' ')[2]}")()
        for kind in kinds
    }


# The pace of the machine: one fixed piece of work, timed again and again between measurements. It tells whether two
# measurements saw the same machine. Nothing is ever divided by it: a machine that slows a product down does not slow a
# model's step by as much.
_EDGE = {"cpu": 512, "cuda": 4096}  # rows and columns of the product
_BYTES = {"cpu": 2**24, "cuda": 2**28}  # bytes of the copy: beyond the caches
_CALLS, _ROUNDS = 2000, 9  # calls of the host's smallest operator; rounds, whose median counts


def pace(device: Device, together: Callable[[], None]) -> float:
    """Returns the seconds that a product, a copy and work of the host take one after the other, the median of some
    rounds. ``together``: keeps ranks at the same place, so that all of them do it at once."""
    torch, kind, place = device.torch, device.type, device.place
    left, right = (torch.ones(_EDGE[kind], _EDGE[kind], device=place) for _ in range(2))
    source, small = torch.ones(_BYTES[kind], dtype=torch.int8, device=place), torch.zeros(8)
    product, target = torch.empty_like(left), torch.empty_like(source)
    times = []
    together()
    for _ in range(1 + _ROUNDS):  # the first touches memory
        start = time.perf_counter()
        torch.mm(left, right, out=product)
        target.copy_(source)
        for _ in range(_CALLS):
            small.add_(1)
        device.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])
