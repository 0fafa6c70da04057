"""``harness score``: tells whether measured runs are as fast as they should be, by part, and the likeliest reason if
not."""

from __future__ import annotations

import argparse
import json
import os
import sys

from harness.cli.common import said_of, say


def command(args: argparse.Namespace) -> int:
    from harness.evaluation.judge import judged
    from harness.report import github, view_score
    from harness.score.run_verdict import SLOW, values
    from projector.io.files import write_whole

    judgements, problems = judged(args.paths, said_of(args))
    report = view_score.build(judgements)
    if args.badge:
        write_whole(args.badge, json.dumps(view_score.badge(judgements)) + "\n")
    if args.comment:
        write_whole(args.comment, github.comment(report))
    if (page := github.summary_file(os.environ)) is not None:
        github.write_summary(page, report)
    say(args, report, out=args.out, most=None, further={"runs": values(judgements)})
    for problem in problems:
        print(problem, file=sys.stderr)
    verdicts = {run.verdict for run in judgements}
    return 2 if problems else int(verdicts == {""} or (args.gate and SLOW in verdicts))
