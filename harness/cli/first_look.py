"""``harness first-look``: projects runs that nobody has looked at, and keeps these projections."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.cli.common import say, tables
from projector.io.progress import progress

KNOWN = {"runs": {"default": [Path("measured/runs")]}}


def command(args: argparse.Namespace) -> int:
    from harness import predictors
    from harness.evaluation import first_look
    from harness.evidence.runs_of import runs_of_all
    from harness.report import files, provenance, view_sources

    before = first_look.read(args.out)
    seen = {look.run_id for look in before}
    if args.known.exists():
        seen |= {row.run_id for row in files.rows(args.known) if row.projected_step_seconds is not None}
    due = first_look.due(runs_of_all(tables(args.runs)), seen)
    revision = provenance.revision(Path(__file__).resolve().parents[2])
    with progress("projecting", len(due)) as advance:
        looks = first_look.look(due, predictors.load(("simulate",))[0], revision, advance)
    if looks:
        first_look.append(args.out, looks)
    say(args, view_sources.first_looks([*before, *looks]), written=str(args.out) if looks else "")
    return 0
