"""``harness plans``: published whole runs beside the plans made for them."""

from __future__ import annotations

import argparse

from harness.cli.common import Parser, add_command, say
from harness.evidence import shelf


def register(parser: Parser) -> None:
    flags = add_command(parser, command, examples=("", "measured/totals.yaml --out out/plans.md --json"))
    usual, text = shelf.folder("measured") / "totals.yaml", "published totals (default: measured/totals.yaml)"
    flags.path("totals", metavar="FILE", help=text, nargs="?", default=usual)
    flags.path("--out", metavar="FILE", help="write the report there, as Markdown")


def command(args: argparse.Namespace) -> int:
    from harness.evaluation.plans import held
    from harness.evidence import totals
    from harness.report import view_plans

    say(args, view_plans.build(held(totals.read(args.totals))), out=args.out)
    return 0
