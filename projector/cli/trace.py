"""Writes the timeline of a step for ui.perfetto.dev: ``projector trace``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from projector.projection import Projection


def command(options: argparse.Namespace) -> None:
    from projector.cli.inputs import one_projection
    from projector.io.table import Line
    from projector.io.terminal import show

    case, projection = one_projection(options, "projector schedules compares them all")
    write_trace(projection, options.out)
    schedule = projection.timeline.compiled.schedule
    if options.json:
        from projector.cli import as_json, document

        figures = {"written": options.out, "step_seconds": projection.step_seconds}
        as_json.write({**document.head("trace", case, projection), **figures})
        return
    sizes = f"{schedule.name}, {schedule.pp} ranks, {schedule.microbatches} micro-batches"
    said = f"{options.out}: {sizes}, {projection.step_seconds:.3f} s; open it at https://ui.perfetto.dev"
    show([Line(said)])


def write_trace(projection: Projection, path: str) -> None:
    """Writes the whole step as a trace. Raises :class:`projector.errors.InputError` when it cannot be written."""
    from projector.io.files import writing
    from projector.pipeline import trace

    with writing(path):
        trace.write(projection.timeline, path, projection.spans, kept_by_stage(projection), static_by_rank(projection))


def kept_by_stage(projection: Projection) -> NDArray[np.float64]:
    """Returns the bytes that one micro-batch keeps on each virtual stage between forward and backward, ``[stages]``."""
    import numpy as np

    from projector.memory.holding import holdings

    placement = projection.timeline.compiled.schedule.placement
    saved = np.zeros(1 + max(map(max, placement)))
    ranks = holdings(projection.resolved, projection.cluster.gpu.arch, placement)
    for stages, rank in zip(placement, ranks, strict=True):
        saved[list(stages)] = [chunk.saved for chunk in rank.chunks]
    return saved


def static_by_rank(projection: Projection) -> NDArray[np.float64]:
    """Returns the bytes on each rank that never leave, ``[pp]``."""
    import numpy as np

    return np.array([rank.static for rank in projection.memory.ranks])
