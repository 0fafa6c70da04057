"""Shows what every pipeline rank holds at its peak and through a step, and whether that fits: ``projector memory``."""

from __future__ import annotations

import argparse
import shutil
from typing import TYPE_CHECKING

from projector.cli.extra import Extra
from projector.cli.live import first_rank_prints

if TYPE_CHECKING:
    from projector.io.table import Line
    from projector.memory.plan import MemoryPlan


def with_margin(options: argparse.Namespace, plan: MemoryPlan) -> tuple[Line, ...]:
    """Returns the verdict with the margin that ``options`` add to the memory needed; nothing where they add none."""
    from projector.io.table import Line, gib

    margin = options.memory_safety_margin
    if margin is None:
        return ()
    needed = plan.required * (1 + margin)
    word, style = ("fits", "good") if needed <= plan.usable else ("does not fit", "bad")
    return (Line(f"With a margin of {margin:.0%}: {gib(needed)} GiB of {gib(plan.usable)} GiB usable, {word}", style),)


def command(options: argparse.Namespace) -> None:
    timed = options.memory_mode or ("benchmark" if options.save_benchmark or options.load_benchmark else "simulate")
    with first_rank_prints(timed != "simulate"):
        _show(options, timed != "simulate")


def _show(options: argparse.Namespace, timed: bool) -> None:
    from projector.cli import as_json, document, live, remedies, report
    from projector.cli.inputs import one_projection
    from projector.cli.setting_remarks import refuse_assumed
    from projector.io.table import Line
    from projector.io.terminal import show
    from projector.memory import draw
    from projector.memory.timeline import memory_timeline, sketch

    case, projection = one_projection(options, "projector performance compares them all, with their memory")
    if options.strict:
        refuse_assumed(case.workload, projection, case.assumed)
    timelines = memory_timeline(projection.resolved, case.cluster.gpu, projection.timeline)
    if options.draw:
        title = f"{case.workload.model.name} on {case.workload.gpus} × {case.cluster.gpu.title}"
        draw.save(projection.memory, timelines, options.draw, title)
    fixes = remedies.extra(case, projection)
    counted = live.counted(options, case, projection) if timed else Extra()
    if options.json:
        as_json.write({**document.memory(case, projection), **counted.values, **fixes.values})
        return
    width = options.width or shutil.get_terminal_size((120, 24)).columns
    sketch_lines = [Line(""), *(Line(text) for text in sketch(timelines, width).splitlines())]
    blocks = (*with_margin(options, projection.memory), *counted.blocks, *fixes.blocks)
    show((*report.memory(case, projection, sketch_lines), *blocks))
