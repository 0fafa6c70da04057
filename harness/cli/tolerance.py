"""``harness tolerance``: shows the error of projected peaks, and the tolerance that the memory verdict needs."""

from __future__ import annotations

import argparse

from harness.cli.common import say, tables
from harness.evidence import shelf

KNOWN = {"runs": {"default": [shelf.folder("measured/runs")]}}


def command(args: argparse.Namespace) -> int:
    from harness.evaluation import peaks
    from harness.evidence.runs_of import runs_of_all
    from harness.report import view_tolerance

    runs = runs_of_all(tables(args.runs))
    say(args, view_tolerance.build(peaks.peaks(runs), peaks.judged(runs), peaks.sized(runs)))
    return 0
