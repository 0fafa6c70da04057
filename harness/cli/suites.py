"""``harness suites``: the suites that ``harness run`` knows by name."""

from __future__ import annotations

import argparse

from harness.cli.common import say


def command(args: argparse.Namespace) -> int:
    from harness.evidence import shelf, suite
    from harness.report.spec import tabled
    from harness.report.table import Report

    known = suite.load_all(sorted(shelf.folder("suites").glob("*.yaml")))
    table = tabled("suites", known, gates=lambda suite: sum(map(len, suite.gate.values())))
    say(args, Report(title="Suites", tables=(table,)))
    return 0
