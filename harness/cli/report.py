"""``harness report``: makes tables, plots and pages again from saved rows."""

from __future__ import annotations

import argparse

from harness.cli.common import folder_problems, say, say_screen
from harness.contracts.results import Evaluation
from harness.report import files, junit, publish, screen
from harness.report.table import Report
from harness.score import gate
from projector.errors import InputError, raise_all
from projector.io.files import write_whole
from projector.io.progress import progress

_FORMATS = (
    "any of " + "; ".join(f"{name} ({files})" for name, files in publish.FORMATS.items()) + ". Default: html md png."
    " With --by, --metric or --where: md, csv or tex, to stdout"
)
KNOWN = {"--format": {"help": _FORMATS}}


def command(args: argparse.Namespace) -> int:
    if problems := folder_problems(args.out):
        raise InputError(problems)
    asked = bool(args.by or args.metric or args.where)
    problems = [] if asked else publish.format_problems(args.format)
    raise_all(problems)
    saved = files.read(args.results)
    e = saved.evaluation
    if asked:
        return _one_table(args, e)
    checks = [c for name, limits in saved.gates.items() for c in gate.check(name, e.frame, limits)]
    title = "Projection accuracy: " + ", ".join(saved.gates) if saved.gates else "Projection accuracy"
    report = publish.report_of(saved, checks, title)
    folder = args.out or (args.results if args.results.is_dir() else args.results.parent)
    with progress("writing reports"):
        publish.write_reports(folder, report, saved, args.format or publish.usual(plots=args.plots))
    if args.junit:
        write_whole(args.junit, junit.render(checks, e.every))
    say_screen(args, screen.Screen(report=report, evaluation=e, checks=checks, folder=folder))
    return int(args.junit is not None and not all(check.passed for check in checks))


def _one_table(args: argparse.Namespace, evaluation: Evaluation) -> int:
    """Prints the table that was asked for."""
    from harness.report import query

    table = query.ask(evaluation, args.by, args.metric, args.where, args.format)
    if args.format and not args.json:
        print(query.FORMATS[args.format[0]](table), end="")
    else:
        say(args, Report(title=str(args.results), tables=(table,)), most=None)
    return 0
