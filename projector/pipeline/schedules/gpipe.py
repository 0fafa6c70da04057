"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

from projector.pipeline.types import Action, Generator, Schedule, loop_placement


def build(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """Returns all forwards, then all backwards: all ``m`` in flight; ``group`` and ``extra_warmup`` do not apply."""
    forward = tuple(Action("F", 0, mb) for mb in range(microbatches))
    backward = tuple(Action("B", 0, mb) for mb in range(microbatches))
    return Schedule("gpipe", pp, 1, microbatches, False, (forward + backward,) * pp, loop_placement(pp, 1))


GENERATOR = Generator(
    "gpipe", build, ("g-pipe", "fill-drain", "afab", "all-forward-all-backward"), "Huang et al., arXiv 1811.06965",
    chunks=1, configured_by=("torchtitan",), forwards_first=True, looped="looped_bfs",
)  # fmt: skip
