"""``harness plans``: published whole runs beside the plans made for them."""

from __future__ import annotations

import argparse

from harness.cli.common import say
from harness.evidence import shelf

KNOWN = {"totals": {"default": shelf.folder("measured") / "totals.yaml"}}


def command(args: argparse.Namespace) -> int:
    from harness.evaluation.plans import held
    from harness.evidence import totals
    from harness.report import view_plans

    say(args, view_plans.build(held(totals.read(args.totals))), out=args.out)
    return 0
