"""V-Half: a V-shaped building block that keeps about half of 1F1B's activations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from projector.pipeline.schedules.split import by_slot, v_schedule
from projector.pipeline.types import Action, Generator, Kind, Schedule, actions

__all__ = ["GENERATOR", "PERIOD", "lanes"]

PERIOD = 6  # slots a micro-batch takes on a rank: F, B and W of two chunks


def build(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """One micro-batch's slots repeated every six; W where there is room."""
    del vpp, group, extra_warmup
    gap = 3 if pp % 2 == 0 else 0  # keeps the four passes of a rank in different residues of the period
    orders = []
    for rank in range(pp):
        first: dict[tuple[Kind, int], int] = {
            ("F", 0): 2 * rank,
            ("F", 1): 3 * pp - rank - 2,
            ("B", 1): 3 * pp + gap + 2 * rank - 1,
            ("B", 0): 6 * pp + gap - rank - 2,
        }
        orders.append(by_slot(lanes(first, microbatches)))
    return v_schedule("v_half", pp, microbatches, orders)


def lanes(first: Mapping[tuple[Kind, int], int], microbatches: int) -> Iterator[tuple[int, int, tuple[Action, ...]]]:
    """The slots of all micro-batches from those of the first, for :func:`by_slot`."""
    for (kind, chunk), slot in first.items():
        yield slot, PERIOD, actions(kind, chunk, microbatches)


GENERATOR = Generator(
    name="v_half",
    build=build,
    chunks=2,
    split=True,
    aliases=("vhalf", "zbv-greedy-half", "zbv-half"),
    source="Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362",
)
