"""DualPipe: micro-batches enter at both ends of the pipeline, and every rank holds a stage of either direction."""

from __future__ import annotations

from itertools import chain

from projector.pipeline.schedules.dualpipe_v import Parts, joined, parts
from projector.pipeline.types import Action, Generator, Schedule


def build(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """Returns the order in which rank ``r`` holds stage ``r`` for the first half of the micro-batches and stage
    ``pp − r − 1`` for the second, so two ranks hold each stage. Both halves of the ranks run DualPipeV's order of
    ``pp / 2`` ranks, mirrored.

    For F, B (whole) and W seconds, and a pair of both F&B, a rank waits (pp/2 − 1)(F&B + B − 3W) and keeps at most
    ``pp + 1`` micro-batches; parameters twice (the repository's README).
    """
    first_half = parts(pp // 2, microbatches // 2)
    ranks = [*first_half, *reversed(first_half)]
    orders = tuple(_towards(int(rank >= pp // 2), microbatches // 2, own) for rank, own in enumerate(ranks))
    placement = tuple((rank, pp - rank - 1) for rank in range(pp))
    return Schedule("dualpipe", pp, 1, microbatches, True, orders, placement, joined(ranks))


def _towards(far: int, each: int, order: Parts) -> tuple[Action, ...]:
    """Returns the order with its chunk 0 in direction ``far``; micro-batches of direction 1 come last."""
    return tuple(
        Action(kind, chunk ^ far, number + each * (chunk ^ far)) for kind, chunk, number in chain.from_iterable(order)
    )


GENERATOR = Generator(
    "dualpipe", build, ("dual-pipe", "bidirectional"),
    "DeepSeek-V3 technical report, arXiv 2412.19437, section 3.2.1; deepseek-ai/DualPipe@3da1bbe dualpipe.py",
    chunks=1, split=True, multiples={"pp": 2, "microbatches": 2}, pairs=True,
)  # fmt: skip
