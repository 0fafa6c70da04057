"""Shows what every pipeline rank holds at its peak and through a step, and whether that fits: ``projector memory``."""

from __future__ import annotations

import argparse
import shutil
from typing import TYPE_CHECKING, Any

from projector.cli.live import add_live, first_rank_prints
from projector.cli.options import add_selection, add_strict
from projector.cli.parser import Parser, add_command, add_json, quantity, whole

if TYPE_CHECKING:
    from projector.io.table import Line
    from projector.memory.plan import MemoryPlan


def register(parser: Parser) -> None:
    add_command(
        parser,
        _run,
        examples=(
            "--config examples/deepseek_v3_h100.yaml",
            "--config examples/mixtral_8x22b_mi355x.yaml --gpu mi300x micro_batch_size=1",
        ),
    )
    add_selection(parser)
    group = parser.add_argument_group("how, and what comes out")
    group.add_argument(
        "--memory-mode",
        choices=("simulate", "benchmark", "both"),
        help="activations from models, or counted while layers run on the device at hand, beside those of models; default: "
        "benchmark with --save-benchmark or --load-benchmark, else simulate",
    )
    add_live(group)
    add_margin(group)
    add_strict(group)
    group.add_argument("--draw", metavar="FILE", help="peaks and course of a step: .png, .svg or .pdf by its ending")
    group.add_argument("--width", type=whole(50, 400), metavar="COLUMNS", help="of the sketch; default: the terminal")
    add_json(group)


def add_margin(parser: Any) -> None:
    parser.add_argument(
        "--memory-safety-margin",
        type=quantity("share", 0, 0.9),
        metavar="X",
        help="also the verdict of a run that needs so much more than is projected (0.05: 5 %%)",
    )


def with_margin(options: argparse.Namespace, plan: MemoryPlan) -> tuple[Line, ...]:
    """Returns the verdict with the margin that ``options`` add to the memory needed; nothing where they add none."""
    from projector.io.table import Line, gib

    margin = options.memory_safety_margin
    if margin is None:
        return ()
    needed = plan.required * (1 + margin)
    word, style = ("fits", "good") if needed <= plan.usable else ("does not fit", "bad")
    return (Line(f"With a margin of {margin:.0%}: {gib(needed)} GiB of {gib(plan.usable)} GiB usable, {word}", style),)


def _run(options: argparse.Namespace) -> None:
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
    fixes = remedies.found(case, projection)
    counted = live.counted(options, case, projection) if timed else live.NOTHING_COUNTED
    if options.json:
        content = {**document.memory(case, projection), **counted.values}
        as_json.write(
            content if fixes is None else {**content, "remedies": remedies.as_document(case, fixes, projection)}
        )
        return
    width = options.width or shutil.get_terminal_size((120, 24)).columns
    sketch_lines = [Line(""), *(Line(text) for text in sketch(timelines, width).splitlines())]
    blocks = (*with_margin(options, projection.memory), *counted.blocks)
    show((*report.memory(case, projection, sketch_lines), *blocks, *(remedies.lines(case, fixes) if fixes else ())))
