"""V-Min: the V-shaped building block with the least memory, about a third of 1F1B's activations."""

from __future__ import annotations

from projector.pipeline.schedules.split import v_schedule
from projector.pipeline.schedules.squeezed import squeezed
from projector.pipeline.types import Generator, Schedule


def build(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """Returns one micro-batch's slots repeated every six; W where there is room; both ends squeezed."""
    del vpp, group, extra_warmup
    gap = 2 if pp % 3 == 0 else 0  # keeps the four passes of a rank in different residues of the period

    def block(rank: int) -> tuple[int, int, int, int]:
        return rank, 2 * pp - rank - 1, 2 * pp + gap + rank, 4 * pp + gap - rank - 1

    return v_schedule("v_min", pp, microbatches, squeezed(pp, microbatches, block))


GENERATOR = Generator(
    name="v_min",
    build=build,
    chunks=2,
    split=True,
    aliases=("vmin", "zbv-greedy-min", "zbv-min"),
    run_by=("primus",),
    source="Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362",
)
