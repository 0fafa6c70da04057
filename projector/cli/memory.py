"""``projector memory``: what every pipeline rank holds at its peak and through a step, and whether that fits."""

from __future__ import annotations

import argparse
import shutil

from projector.cli.options import add_selection
from projector.cli.parser import Parser, add_command, add_json, whole


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
    group = parser.add_argument_group("what comes out")
    group.add_argument("--draw", metavar="FILE", help="peaks and course of a step: .png, .svg or .pdf by its ending")
    group.add_argument("--width", type=whole(50, 400), metavar="COLUMNS", help="of the sketch; default: the terminal")
    add_json(group)


def _run(options: argparse.Namespace) -> None:
    from projector.cli import as_json, document, remedies, report
    from projector.cli.inputs import one_projection
    from projector.io.table import Line
    from projector.io.terminal import show
    from projector.memory import draw
    from projector.memory.timeline import memory_timeline, sketch

    case, made = one_projection(options, "projector performance compares them all, with their memory")
    lines = memory_timeline(made.resolved, case.cluster.gpu, made.timeline)
    if options.draw:
        title = f"{case.workload.model.name} on {case.workload.gpus} × {case.cluster.gpu.title}"
        draw.save(made.memory, lines, options.draw, title)
    helping = remedies.found(case, made)
    if options.json:
        content = document.memory(case, made)
        as_json.write(
            content if helping is None else {**content, "remedies": remedies.as_document(case, helping, made)}
        )
        return
    width = options.width or shutil.get_terminal_size((120, 24)).columns
    course = [Line(""), *(Line(text) for text in sketch(lines, width).splitlines())]
    show((*report.memory(case, made, course), *(remedies.lines(case, helping) if helping else ())))
