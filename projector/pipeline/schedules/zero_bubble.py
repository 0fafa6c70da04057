"""ZB-H1, ZB-H2 and the interleaved form: 1F1B with weight gradients put off to fill the flush, by hand."""

from __future__ import annotations

from projector.pipeline.schedules.interleaved import lanes, or_whole_groups
from projector.pipeline.schedules.split import lagging
from projector.pipeline.types import Action, Generator, Schedule, loop_placement


def one(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """Returns the order with a warm-up of ``(vpp − 1)·group + (pp − r − 1)`` forwards on rank ``r``, W ``r`` behind B;
    ``group`` defaults to ``pp``.

    A last group that does not fill the pipeline is treated as in :mod:`projector.pipeline.schedules.interleaved`. One
    chunk a rank is ZB-H1: for F = B = W the bubble of a rank's span is ``(pp − 1)·(F + B − W)``, a third of 1F1B's, and
    no rank holds more than ``pp`` micro-batches.
    """
    if vpp == 1:
        return _of_one_chunk("zb_h1", pp, microbatches, 1, extra_warmup)

    def orders(count: int, size: int) -> tuple[tuple[Action, ...], ...]:
        return _orders(pp, vpp, count, size, 1, extra_warmup)

    return or_whole_groups("interleaved_zb", pp, vpp, microbatches, group or pp, orders, split=True)


def two(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """Returns the order in which rank ``r`` runs ``2(pp − r − 1)`` forwards ahead, so that the bubble before the first
    backward fills, too, and keeps ``2r`` weight gradients back: up to ``2·pp − 1`` micro-batches alive. For F = B = W
    and ``m >= 2·pp − 1`` no rank waits within its own span."""
    return _of_one_chunk("zb_h2", pp, microbatches, 2, extra_warmup)


def _of_one_chunk(name: str, pp: int, microbatches: int, times: int, extra: int) -> Schedule:
    orders = _orders(pp, 1, microbatches, microbatches, times, extra)
    return Schedule(name, pp, 1, microbatches, True, orders, loop_placement(pp, 1))


def _orders(pp: int, vpp: int, count: int, size: int, times: int, extra: int) -> tuple[tuple[Action, ...], ...]:
    """Returns the order of every rank. ``times``: how many forwards more a rank runs ahead, and W fewer it keeps back,
    than the one below."""
    forward, backward = lanes(count, vpp, size)
    ahead = [min(len(forward), (vpp - 1) * size + times * (pp - rank - 1) + extra) for rank in range(pp)]
    return tuple(lagging(forward, backward, warmup, times * rank) for rank, warmup in enumerate(ahead))


# fmt: off
GENERATORS = (
    Generator("zb_h1", one, ("zbh1", "zbb", "zb", "zero-bubble", "zerobubble"),
              "Qi et al., arXiv 2401.10241, section 2.1",
              chunks=1, split=True, looped="interleaved_zb", configured_by=("primus",)),
    Generator("zb_h2", two, ("zbh2",), "Qi et al., arXiv 2401.10241, section 2.2",
              chunks=1, split=True, looped="interleaved_zb"),
    Generator("interleaved_zb", one, ("interleaved-zero-bubble", "interleavedzerobubble", "zero-bubble-interleaved"),
              "torch.distributed.pipelining ScheduleInterleavedZeroBubble (PyTorch 2.x); Qi et al., arXiv 2401.10241",
              split=True, single="zb_h1", configured_by=("torchtitan",)),
)
# fmt: on
