"""Looped breadth-first: every chunk takes all micro-batches before the next chunk starts."""

from __future__ import annotations

from projector.pipeline.types import Action, Generator, Schedule, loop_placement


def build(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """Returns forwards chunk by chunk, then backwards in reverse; ``group`` and ``extra_warmup`` do not apply."""
    steps = [(chunk, mb) for chunk in range(vpp) for mb in range(microbatches)]
    order = (*(Action("F", *at) for at in steps), *(Action("B", *at) for at in reversed(steps)))
    return Schedule("looped_bfs", pp, vpp, microbatches, False, (order,) * pp, loop_placement(pp, vpp))


GENERATOR = Generator(
    "looped_bfs", build, ("loopedbfs", "breadth-first", "bfs", "looped-breadth-first"),
    "Lamy-Poirier, arXiv 2211.05953; torch.distributed.pipelining ScheduleLoopedBFS (PyTorch 2.x)",
    configured_by=("torchtitan",), forwards_first=True,
)  # fmt: skip
