"""Communication of tensor- and expert-parallel layers as differentiable functions, and the groups of a rank.

The pairs are those of Megatron-LM (arXiv:1909.08053, figure 3; sequence parallelism arXiv:2205.05198, figure 6): an
identity forward is a sum backward and the other way round, and gathering tokens is the inverse of scattering sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from projector.benchmark.processes import BACKENDS
from projector.dataclass import dataclass


@dataclass(frozen=True)
class Group:
    """One process group as a rank sees it; ``handle`` None: the rank is alone in it."""

    size: int = 1
    rank: int = 0
    handle: Any = None


@dataclass(frozen=True)
class Ranks:
    """The groups of one rank. ``sequence_parallel``: tokens are split over ``tp`` outside attention and MLP."""

    tp: Group = Group()
    ep: Group = Group()
    dp: Group = Group()
    edp: Group = Group()
    sequence_parallel: bool = False

    def enter(self, x: Tensor) -> Tensor:
        """Communicates before a column-parallel product: every rank gets all tokens."""
        return gather_from(x, self.tp) if self.sequence_parallel else copy_to(x, self.tp)

    def leave(self, x: Tensor) -> Tensor:
        """Communicates after a row-parallel product: the sum over the ranks, on all tokens or on this rank's."""
        return scatter_to(x, self.tp) if self.sequence_parallel else reduce_from(x, self.tp)


ALONE = Ranks()


def start_alone(kind: str) -> None:
    """Starts a process group of this process alone on a device of ``kind`` (``cuda``, ``cpu``) where there is none."""
    if not dist.is_initialized():
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(BACKENDS[kind], store=store, rank=0, world_size=1)


def joined(lines: Iterable[Sequence[int]]) -> Group:
    """Returns this rank's group among ``lines`` of ranks, which every rank makes in the same order; a line of one rank
    makes none."""
    me, own = dist.get_rank(), Group()
    for line in lines:
        if len(line) > 1:
            handle = dist.new_group(list(line))
            if me in line:
                own = Group(len(line), list(line).index(me), handle)
    return own


def copy_to(x: Tensor, group: Group) -> Tensor:
    """Returns ``x``; its gradient is the sum over ``group``."""
    return _pair(x, group, _identity, _summed)


def reduce_from(x: Tensor, group: Group) -> Tensor:
    """Returns the sum of ``x`` over ``group``; its gradient passes as it is."""
    return _pair(x, group, _summed, _identity)


def gather_from(x: Tensor, group: Group) -> Tensor:
    """Returns the tokens [n, …] of every rank one after the other [n·size, …]; gradients are summed and scattered."""
    return _pair(x, group, _gathered, _scattered)


def scatter_to(x: Tensor, group: Group) -> Tensor:
    """Returns this rank's tokens [n/size, …] of the sum over ``group``; gradients are gathered."""
    return _pair(x, group, _scattered, _gathered)


def exchange(x: Tensor, out: Sequence[int], into: Sequence[int], group: Group) -> Tensor:
    """Returns all-to-all of rows: ``into[i]`` rows of ``x`` go to rank i, ``out[i]`` rows come from it."""
    there, back = (list(out), list(into)), (list(into), list(out))
    return _pair(x, group, *(partial(_all_to_all, splits=splits) for splits in (there, back)))


def grouped_counts(counts: Tensor, group: Group) -> Tensor:
    """Returns [size, n] rows that each rank sends to this rank's n experts, from [size·n] rows that this rank sends."""
    if group.size == 1:
        return counts.view(1, -1)
    received = torch.empty_like(counts)
    dist.all_to_all_single(received, counts, group=group.handle)
    return received.view(group.size, -1)


def _summed(x: Tensor, group: Group) -> Tensor:
    out = x.contiguous().clone()
    dist.all_reduce(out, group=group.handle)
    return out


def _gathered(x: Tensor, group: Group) -> Tensor:
    x = x.contiguous()
    out = x.new_empty((x.shape[0] * group.size, *x.shape[1:]))
    all_gather(out, x, group=group.handle)
    return out


def _scattered(x: Tensor, group: Group) -> Tensor:
    x = x.contiguous()
    out = x.new_empty((x.shape[0] // group.size, *x.shape[1:]))
    reduce_scatter(out, x, group=group.handle)
    return out


# renamed in torch 2.13; the names before it still work there, with a warning on every call
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


Change = Callable[[Tensor, Group], Tensor]


class _ForwardAndBackward(torch.autograd.Function):
    """Applies one communication to a tensor forward, and another one to its gradient backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, there: Change, back: Change) -> Tensor:
        ctx.group, ctx.back = group, back
        return there(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return ctx.back(grads[0], ctx.group), None, None, None


def _pair(x: Tensor, group: Group, there: Change, back: Change) -> Tensor:
    if group.size == 1:
        return x
    return _ForwardAndBackward.apply(x, group, there, back)  # type: ignore[no-any-return, no-untyped-call]


def _identity(x: Tensor, _: Group) -> Tensor:
    return x.view_as(x)


def _all_to_all(x: Tensor, group: Group, splits: tuple[list[int], list[int]]) -> Tensor:
    out, into = splits
    received = x.new_empty((sum(out), *x.shape[1:]))
    dist.all_to_all_single(received, x.contiguous(), out, into, group=group.handle)
    return received
