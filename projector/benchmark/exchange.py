"""Process groups of the ranks that time together, and collectives timed in place, at the sizes of the step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from projector.benchmark.device import Device
from projector.benchmark.layers_parallel import Group, Ranks, all_gather, joined, reduce_scatter
from projector.benchmark.processes import BACKENDS
from projector.benchmark.timings import Asked, CollectiveWanted, summary

_TYPES = {1: torch.int8, 2: torch.bfloat16, 4: torch.float32}
_WARM, _FEWEST, _MOST = 1, 5, 200
_QUEUED = 8  # calls that one time is the mean of: the sum of a step counts, and few of them take much longer than most
_BETWEEN = 4e-3  # seconds of compute between two of them on a CPU: about a layer of a model that fits there
BUCKET = 25 * 2**20  # bytes of one gradient reduction (torch.nn.parallel.DistributedDataParallel, bucket_cap_mb)


def groups_of(asked: Asked) -> Ranks:
    """Returns the groups of this rank: ``tp`` innermost, ``ep`` over neighbouring ranks (Megatron's order with EP
    folding)."""
    if asked.ranks == 1:
        return Ranks(tp=Group(1, 0, _own())) if asked.wrapped else Ranks()
    recipe, ranks = asked.workload.recipe, asked.ranks
    return Ranks(
        tp=_lines(ranks, recipe.tp, 1),
        ep=_lines(ranks, recipe.ep, recipe.etp),
        dp=_lines(ranks, ranks // recipe.tp, recipe.tp),
        sequence_parallel=bool(recipe.sequence_parallel) and recipe.tp > 1,
    )


def _own() -> Any:
    """Returns a group of this rank alone; every rank makes all of them."""
    if not dist.is_initialized():
        backend = BACKENDS["cuda" if torch.cuda.is_available() else "cpu"]
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    return [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]


def _lines(ranks: int, size: int, stride: int) -> Group:
    """This rank's group of ``size`` ranks that lie ``stride`` apart; every rank makes all groups."""
    blocks = range(0, ranks, size * stride)
    return joined([range(at, at + size * stride, stride) for block in blocks for at in range(block, block + stride)])


def run_collective(asked: CollectiveWanted, ranks: Ranks, device: Device, budget: float) -> list[float]:
    """(see :func:`summary`) of a collective with all groups of its size at work at once.

    On a GPU calls are queued behind each other. On a CPU every rank computes between them, as in a step: the threads of
    gloo that move the data then wait for the cores that compute, and ranks come at different moments.
    """
    call = _call(asked, _group(asked, ranks), device)
    once = _queued(call, device) if device.type == "cuda" else _between_compute(call)
    times: list[float] = []
    began = time.perf_counter()
    for number in range(_WARM + _MOST):
        device.synchronize()
        dist.barrier()
        taken = once()
        if number < _WARM:
            continue
        times.append(taken)
        if len(times) >= _FEWEST and agreed(time.perf_counter() - began > budget / 4, device):
            break
    found = [summary(times)]
    if asked.kind == "send_recv":
        dist.broadcast_object_list(found, 0)  # the last of an odd number has no partner
    return found[0]


def _queued(call: Callable[[], Any], device: Device) -> Callable[[], float]:
    def once() -> float:
        start = time.perf_counter()
        for _ in range(_QUEUED):
            call()
        device.synchronize()
        return (time.perf_counter() - start) / _QUEUED

    return once


def _between_compute(call: Callable[[], Any]) -> Callable[[], float]:
    left, right = torch.ones(128, 256), torch.ones(256, 256)
    products, ends = 0, time.perf_counter() + _BETWEEN
    while time.perf_counter() < ends:
        left @ right
        products += 1
    agreed = torch.tensor(products)  # as much work on every rank, though not as much time
    dist.broadcast(agreed, 0)
    products = int(agreed)

    def once() -> float:
        taken = 0.0
        for _ in range(_QUEUED):
            for _ in range(products):
                left @ right
            start = time.perf_counter()
            call()
            taken += time.perf_counter() - start
        return taken / _QUEUED

    return once


def agreed(word: bool, device: Device) -> bool:
    """The same answer on every rank: that of rank 0, which has the watch."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return word
    told = torch.tensor([float(word)], device=device.place)
    dist.broadcast(told, 0)
    return bool(told.item())


def _group(asked: CollectiveWanted, ranks: Ranks) -> Group:
    known = {"tp": ranks.tp, "ep": ranks.ep, "dp": ranks.dp}.get(asked.group)
    if known is not None and known.size == asked.size:
        return known
    world = dist.get_world_size()
    return Group(world, dist.get_rank(), None) if asked.size == world else _lines(world, asked.size, 1)


def _call(asked: CollectiveWanted, group: Group, device: Device) -> Callable[[], Any]:
    """Returns one collective on buffers of its own. Sizes: see :class:`projector.operators.types.Collective`."""
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
    return _message(buffer(count))


def _message(data: torch.Tensor) -> Callable[[], Any]:
    """From even ranks to odd ones, as a pipeline's stage to the next; what the receiver waits for."""
    me, world = dist.get_rank(), dist.get_world_size()
    peer = me + 1 if me % 2 == 0 else me - 1
    if peer >= world:
        return lambda: None
    return lambda: dist.send(data, peer) if me % 2 == 0 else dist.recv(data, peer)
