"""Makes the process groups of the ranks that time together, and times collectives at the sizes of the step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist

from projector.benchmark.device import Device
from projector.benchmark.layers_parallel import Group, Ranks, all_gather, joined, reduce_scatter, start_alone
from projector.benchmark.timings import Asked, CollectiveWanted, Seconds

_TYPES = {1: torch.int8, 2: torch.bfloat16, 4: torch.float32}
_QUEUED = 8  # calls that one time is the mean of: the sum of a step counts, and few of them take much longer than most
_BETWEEN = 4e-3  # seconds of compute between two of them on a CPU: about a layer of a model that fits there
BUCKET = 25 * 2**20  # bytes of one gradient reduction (torch.nn.parallel.DistributedDataParallel, bucket_cap_mb)


def groups_of(asked: Asked) -> Ranks:
    """Returns the groups of this rank: ``tp`` innermost, ``ep`` over neighbouring ranks (Megatron's order with EP
    folding)."""
    if asked.ranks == 1:
        if not asked.wrapped:
            return Ranks()
        start_alone("cuda" if torch.cuda.is_available() else "cpu")
        alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]  # every rank makes all of them
        return Ranks(tp=Group(1, 0, alone[dist.get_rank()]))
    recipe, ranks = asked.workload.recipe, asked.ranks
    return Ranks(
        tp=_strided_group(ranks, recipe.tp, 1),
        ep=_strided_group(ranks, recipe.ep, recipe.etp),
        dp=_strided_group(ranks, ranks // recipe.tp, recipe.tp),
        sequence_parallel=bool(recipe.sequence_parallel) and recipe.tp > 1,
    )


def _strided_group(ranks: int, size: int, stride: int) -> Group:
    """Returns this rank's group of ``size`` ranks that lie ``stride`` apart; every rank makes all groups."""
    blocks = range(0, ranks, size * stride)
    return joined([range(at, at + size * stride, stride) for block in blocks for at in range(block, block + stride)])


def run_collective(asked: CollectiveWanted, ranks: Ranks, device: Device, budget: float) -> dict[str, Any]:
    """Returns the seconds (fields of :class:`Seconds`) of a collective with all groups of its size at work at once.

    On a GPU calls are queued behind each other. On a CPU every rank computes between them, as in a step: the threads of
    gloo that move the data then wait for the cores that compute, and ranks come at different moments.
    """
    group = {"tp": ranks.tp, "ep": ranks.ep, "dp": ranks.dp}.get(asked.group)
    if group is None or group.size != asked.size:
        world = dist.get_world_size()
        group = Group(world, dist.get_rank()) if asked.size == world else _strided_group(world, asked.size, 1)
    call = _call(asked, group, device)
    seconds_of_call = _queued(call, device) if device.type == "cuda" else _between_compute(call)
    result = [repeated(seconds_of_call, device, budget, warm=1, fewest=5, most=200)]
    if asked.kind == "send_recv":
        dist.broadcast_object_list(result, 0)  # the last of an odd number has no partner
    return result[0]


def repeated(
    seconds_of_call: Callable[[], float], device: Device, budget: float, *, warm: int, fewest: int, most: int
) -> dict[str, Any]:
    """Returns the seconds (fields of :class:`Seconds`) of ``fewest`` to ``most`` calls behind ``warm`` others, which all
    ranks begin together, until a quarter of the ``budget`` is spent."""
    times: list[float] = []
    start = time.perf_counter()
    for number in range(warm + most):
        together(device)
        seconds = seconds_of_call()
        if number >= warm:
            times.append(seconds)
            if len(times) >= fewest and agreed(time.perf_counter() - start > budget / 4, device):
                break
    return asdict(Seconds.of(times))


def together(device: Device) -> None:
    """Waits until this device and all ranks are at the same place."""
    device.synchronize()
    if several():
        dist.barrier()


def several() -> bool:
    """Returns whether other ranks have joined this one."""
    return dist.is_initialized() and dist.get_world_size() > 1


def _queued(call: Callable[[], Any], device: Device) -> Callable[[], float]:
    def seconds_of_call() -> float:
        start = time.perf_counter()
        for _ in range(_QUEUED):
            call()
        device.synchronize()
        return (time.perf_counter() - start) / _QUEUED

    return seconds_of_call


def _between_compute(call: Callable[[], Any]) -> Callable[[], float]:
    left, right = torch.ones(128, 256), torch.ones(256, 256)
    products, ends = 0, time.perf_counter() + _BETWEEN
    while time.perf_counter() < ends:
        left @ right
        products += 1
    agreed = torch.tensor(products)  # as much work on every rank, though not as much time
    dist.broadcast(agreed, 0)
    products = int(agreed)

    def seconds_of_call() -> float:
        seconds = 0.0
        for _ in range(_QUEUED):
            for _ in range(products):
                left @ right
            start = time.perf_counter()
            call()
            seconds += time.perf_counter() - start
        return seconds / _QUEUED

    return seconds_of_call


def agreed(word: bool, device: Device) -> bool:
    """Returns the answer of rank 0, which has the watch, on every rank."""
    if not several():
        return word
    answer = torch.tensor([float(word)], device=device.place)
    dist.broadcast(answer, 0)
    return bool(answer.item())


def _call(asked: CollectiveWanted, group: Group, device: Device) -> Callable[[], Any]:
    """Returns a call of one collective on its own buffers (sizes: :class:`projector.operators.types.Collective`)."""
    dtype = _TYPES.get(asked.width, torch.float32)
    count = max(group.size, asked.bytes // dtype.itemsize // group.size * group.size)

    def buffer(elements: int) -> torch.Tensor:
        return torch.zeros(elements, dtype=dtype, device=device.place)

    if asked.kind == "all_reduce":
        pieces = torch.split(buffer(count), BUCKET // dtype.itemsize)
        return lambda: [dist.all_reduce(piece, group=group.handle) for piece in pieces]
    if asked.kind in ("all_gather", "reduce_scatter"):
        whole, part = buffer(count), buffer(count // group.size)
        if asked.kind == "all_gather":
            return lambda: all_gather(whole, part, group=group.handle)
        return lambda: reduce_scatter(part, whole, group=group.handle)
    if asked.kind == "all_to_all":
        sent, got = buffer(count), buffer(count)
        return lambda: dist.all_to_all_single(got, sent, group=group.handle)
    # a message from even ranks to odd ones, as from a pipeline's stage to the next; the last of an odd number has none
    data, me = buffer(count), dist.get_rank()
    peer = me + 1 if me % 2 == 0 else me - 1
    if peer >= dist.get_world_size():
        return lambda: None
    return lambda: dist.send(data, peer) if me % 2 == 0 else dist.recv(data, peer)
