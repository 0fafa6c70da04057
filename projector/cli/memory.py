"""``projector memory``: what every pipeline rank holds at its peak and through a step, and whether that fits."""

from __future__ import annotations

import argparse
import shutil
from typing import TYPE_CHECKING, Any

from projector.cli.live import add_live, one_voice
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
    """The verdict with what ``options`` add to the memory that is needed; nothing where they add nothing."""
    from projector.io.table import Line, gib

    margin = options.memory_safety_margin
    if margin is None:
        return ()
    needed = plan.required * (1 + margin)
    word, style = ("fits", "good") if needed <= plan.usable else ("does not fit", "bad")
    return (Line(f"With a margin of {margin:.0%}: {gib(needed)} GiB of {gib(plan.usable)} GiB usable, {word}", style),)


def _run(options: argparse.Namespace) -> None:
    timed = options.memory_mode or ("benchmark" if options.save_benchmark or options.load_benchmark else "simulate")
    with one_voice(timed != "simulate"):
        _shown(options, timed != "simulate")


def _shown(options: argparse.Namespace, timed: bool) -> None:
    from projector.cli import as_json, document, live, remedies, report
    from projector.cli.inputs import one_projection
    from projector.cli.leftover import refuse_assumed
    from projector.io.table import Line
    from projector.io.terminal import show
    from projector.memory import draw
    from projector.memory.timeline import memory_timeline, sketch

    case, made = one_projection(options, "projector performance compares them all, with their memory")
    if options.strict:
        refuse_assumed(case.workload, made, case.assumed)
    lines = memory_timeline(made.resolved, case.cluster.gpu, made.timeline)
    if options.draw:
        title = f"{case.workload.model.name} on {case.workload.gpus} × {case.cluster.gpu.title}"
        draw.save(made.memory, lines, options.draw, title)
    helping = remedies.found(case, made)
    counted = live.counted(options, case, made) if timed else live.NOTHING_COUNTED
    if options.json:
        content = {**document.memory(case, made), **counted.values}
        as_json.write(
            content if helping is None else {**content, "remedies": remedies.as_document(case, helping, made)}
        )
        return
    width = options.width or shutil.get_terminal_size((120, 24)).columns
    course = [Line(""), *(Line(text) for text in sketch(lines, width).splitlines())]
    further = (*with_margin(options, made.memory), *counted.blocks)
    show((*report.memory(case, made, course), *further, *(remedies.lines(case, helping) if helping else ())))
