"""V-Half: a V-shaped building block that keeps about half of 1F1B's activations."""

from __future__ import annotations

from projector.pipeline.schedules.split import v_schedule
from projector.pipeline.schedules.squeezed import squeezed
from projector.pipeline.types import Generator, Schedule


def build(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """Returns one micro-batch's slots repeated every six; W where there is room; both ends squeezed."""
    del vpp, group, extra_warmup
    gap = 3 if pp % 2 == 0 else 0  # keeps the four passes of a rank in different residues of the period

    def block(rank: int) -> tuple[int, int, int, int]:
        return 2 * rank, 3 * pp - rank - 2, 3 * pp + gap + 2 * rank - 1, 6 * pp + gap - rank - 2

    return v_schedule("v_half", pp, microbatches, squeezed(pp, microbatches, block))


GENERATOR = Generator(
    name="v_half",
    build=build,
    chunks=2,
    split=True,
    aliases=("vhalf", "zbv-greedy-half", "zbv-half"),
    run_by=("primus",),
    source="Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362",
)
