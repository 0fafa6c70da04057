"""1F1B, and interleaved 1F1B: ``vpp`` chunks a rank, micro-batches in groups that pass one chunk after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from projector.pipeline.compiler import deadlocks
from projector.pipeline.schedules.split import alternate, drop_missing
from projector.pipeline.types import Action, Generator, Schedule, actions, loop_placement

Orders = tuple[tuple[Action, ...], ...]


def table(microbatches: int, vpp: int, group: int) -> list[tuple[int, int]]:
    """Returns ``(chunk, microbatch)`` in forward order: a group through chunk 0, then through chunk 1, …

    The last group is whatever remains. Megatron-LM ``get_schedule_table``; the backward mirrors the chunks.
    """
    return [(chunk, mb) for _, chunk, mb in lanes(microbatches, vpp, group)[0]]


def lanes(microbatches: int, vpp: int, group: int) -> tuple[list[Action], list[Action]]:
    """Returns the forwards and the backwards of every rank in the order of :func:`table`."""
    forward: list[Action] = []
    backward: list[Action] = []
    for first in range(0, microbatches, group):
        for chunk in range(vpp):
            forward += actions("F", chunk, microbatches)[first : first + group]
            backward += actions("B", vpp - 1 - chunk, microbatches)[first : first + group]
    return forward, backward


def build(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """Returns the order with a warm-up of ``min(m·vpp, 2(pp − r − 1) + (vpp − 1)·group)`` forwards on rank ``r``;
    ``group`` defaults to ``pp``.

    Megatron refuses a last group of fewer than ``pp`` micro-batches; here see :func:`or_whole_groups`. One chunk a rank
    is plain 1F1B, whose warm-up is one forward for each stage below.
    """
    hops = 1 if vpp == 1 else 2

    def orders(count: int, size: int) -> Orders:
        ahead = [hops * (pp - rank - 1) + (vpp - 1) * size + extra_warmup for rank in range(pp)]
        forward, backward = lanes(count, vpp, size)
        every = len(forward)
        return tuple(
            (*forward[:warmup], *alternate(forward[warmup:], backward), *backward[every - warmup :])
            for warmup in (min(each, every) for each in ahead)
        )

    if vpp == 1:
        whole = orders(microbatches, microbatches)
        return Schedule("1f1b", pp, 1, microbatches, False, whole, loop_placement(pp, 1))
    return or_whole_groups("interleaved", pp, vpp, microbatches, group or pp, orders)


def or_whole_groups(
    name: str,
    pp: int,
    vpp: int,
    microbatches: int,
    group: int,
    orders: Callable[[int, int], Orders],
    split: bool = False,
) -> Schedule:
    """Returns the schedule of ``orders(microbatches, group)`` if it can run; else whole groups without surplus
    micro-batches.

    With a last group that does not fill the pipeline, the usual warm-up may leave ranks waiting for each other. Orders
    of whole groups cannot deadlock, and dropping micro-batches from them does not change that.
    """
    place = loop_placement(pp, vpp)
    usual = Schedule(name, pp, vpp, microbatches, split, orders(microbatches, group), place)
    if (group >= pp and microbatches % group == 0) or not deadlocks(usual):
        return usual
    size = max(group, pp)
    whole = orders(-(-microbatches // size) * size, size)
    existing = tuple(drop_missing(order, microbatches) for order in whole)
    return Schedule(name, pp, vpp, microbatches, split, existing, place)


# fmt: off
_PUBLISHED: dict[str, Any] = {
    "source": "Narayanan et al., arXiv 2104.04473; Megatron-LM megatron/core/pipeline_parallel/schedules.py",
    "configured_by": ("megatron", "primus", "torchtitan"),
}
GENERATORS = (
    Generator("1f1b", build,
              ("one-forward-one-backward", "pipedream-flush", "no-pipeline", "none", "non-interleaved", "dapple"),
              chunks=1, looped="interleaved", **_PUBLISHED),
    Generator("interleaved", build,
              ("1f1b-interleaved", "interleaved-1f1b", "interleaved1f1b", "virtual-pipeline", "vpp", "interleaving"),
              single="1f1b", **_PUBLISHED),
)
# fmt: on
