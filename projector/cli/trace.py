"""``projector trace``: the timeline of a step for ui.perfetto.dev."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from projector.cli.options import add_selection
from projector.cli.parser import Parser, add_command, add_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from projector.projection import Projection


def register(parser: Parser) -> None:
    add_command(
        parser,
        _run,
        examples=(
            "--config examples/deepseek_v3_h100.yaml --out step.json",
            "--model qwen3_8b --gpu b200 --gpus 8 --pp 4 --mbs 1 --gbs 16 --seq-length 4096",
        ),
    )
    add_selection(parser)
    group = parser.add_argument_group("what comes out")
    group.add_argument("--out", "-o", default="trace.json", metavar="FILE", help="default: trace.json")
    add_json(group)


def _run(options: argparse.Namespace) -> None:
    from projector.cli.inputs import one_projection

    case, made = one_projection(options, "projector schedules compares them all")
    write_trace(made, options.out)
    schedule = made.timeline.compiled.schedule
    if options.json:
        from projector.cli import as_json, document

        as_json.write({**document.head("trace", case, made), "written": options.out, "step_seconds": made.step_seconds})
        return
    print(
        f"{options.out}: {schedule.name}, {schedule.pp} ranks, {schedule.microbatches} micro-batches, "
        f"{made.step_seconds:.3f} s; open it at https://ui.perfetto.dev"
    )


def write_trace(made: Projection, path: str) -> None:
    """The whole step of ``made`` as a trace. Raises :class:`projector.errors.InputError` when it cannot be written."""
    from projector.io.files import writing
    from projector.pipeline import trace

    with writing(path):
        trace.write(made.timeline, path, made.spans, kept_by_stage(made), static_by_rank(made))


def kept_by_stage(made: Projection) -> NDArray[np.float64]:
    """Returns ``[stages]``: bytes that one micro-batch keeps on each virtual stage between forward and backward."""
    import numpy as np

    from projector.memory.holding import holdings

    placement = made.timeline.compiled.schedule.placement
    out = np.zeros(1 + max(map(max, placement)))
    for own, held in zip(placement, holdings(made.resolved, made.cluster.gpu.arch, placement), strict=True):
        out[list(own)] = [chunk.saved for chunk in held.chunks]
    return out


def static_by_rank(made: Projection) -> NDArray[np.float64]:
    """Returns ``[pp]``: bytes on each rank that never leave."""
    import numpy as np

    return np.array([rank.static for rank in made.memory.ranks])
