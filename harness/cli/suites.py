"""``harness suites``: the suites that ``harness run`` knows by name."""

from __future__ import annotations

import argparse

from harness.cli.common import Parser, add_command, say


def register(parser: Parser) -> None:
    add_command(parser, command, examples=("", "--json"))


def command(args: argparse.Namespace) -> int:
    from harness.evidence import shelf, suite
    from harness.report.table import Report, figure, listed, text

    known = suite.load_all(sorted(shelf.folder("suites").glob("*.yaml")))
    made = (
        text("suite", lambda each: each.path.stem),
        text("title", "title"),
        figure("runs", lambda each: len(each.runs)),
        figure("trainings", lambda each: len(each.plan.jobs) or None, minor=1),
        figure("gates", lambda each: sum(map(len, each.gate.values())) or None),
    )
    note = "harness run NAME projects the runs of one; a suite of your own is a file of the same kind."
    say(args, Report(title="Suites", tables=(listed("", known, made, note),)))
    return 0
