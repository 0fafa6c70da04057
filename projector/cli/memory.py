"""``projector memory``: what every pipeline rank holds at its peak, and whether that fits."""

from __future__ import annotations

import argparse

from projector.cli.options import Subparsers, add_command, add_json, add_selection

__all__ = ["register"]


def register(commands: Subparsers) -> None:
    parser = add_command(commands, "memory", "peak memory of every pipeline rank, by component, and the verdict", _run)
    add_selection(parser)
    add_json(parser.add_argument_group("what comes out"))


def _run(options: argparse.Namespace) -> None:
    from projector.cli import document, report
    from projector.cli.changes import ALL
    from projector.cli.inputs import blamed, read_case
    from projector.cli.page import show
    from projector.errors import InputError, Problem
    from projector.projection import project

    if options.pipeline_schedule_algorithm == ALL:
        expected = "one schedule; projector performance compares them all, with their memory"
        raise InputError([Problem("--pipeline-schedule-algorithm", "", ALL, expected)])
    case = read_case(options)
    with blamed(options):
        made = project(case.workload, case.cluster)
    if options.json:
        document.write(document.memory(case, made))
    else:
        show(report.memory(case, made))
