"""``harness score``: tells whether measured runs are as fast as they should be, by part, and the likeliest reason if
not."""

from __future__ import annotations

import argparse
import json
import os
import sys

from harness.cli.common import Parser, add_command, add_said, said_of, say

_ABOUT = """\
Reads training logs or tables of runs and sets every step time beside what measured runs of others let expect of it: normal
inside the 90 % interval, else slow or fast by so much, with what most likely explains it. Timers of Megatron-LM are
compared part by part. Exit code 1: no run can be judged, or, with --gate, one is slow."""


def register(parser: Parser) -> None:
    log = "measured/logs/cpu_gpt.log.gz"
    flags = add_command(parser, command, examples=(log, f"{log} measured/logs/cpu_llama_tp2.log.gz"))
    parser.description = _ABOUT
    flags.path("paths", metavar="LOG", help="a training log, or a YAML, JSON or CSV table", nargs="+")
    add_said(flags, "--config")
    flags.switch("--gate", "exit code 1 where a run is slow")
    flags.path("--out", metavar="FILE", help="also write all of it there, as Markdown")
    flags.path("--badge", metavar="FILE", help="also write a badge, as shields.io reads it (JSON)")
    flags.path("--comment", metavar="FILE", help="also write the body of a comment on a pull request")


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
