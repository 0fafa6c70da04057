"""``--against RESULTS``: compares this evaluation with earlier rows, for every command that makes rows."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from harness.contracts import frame
from harness.contracts.results import Evaluation, Row, parted
from harness.report import files
from harness.score import drift
from harness.score.drift import Drift
from projector.errors import Problem


def problems(args: argparse.Namespace) -> list[Problem]:
    """Returns a problem for each flag that has no effect without ``--against``."""
    given = (("--drift-tolerance", args.drift_tolerance is not None), ("--allow-removed", args.allow_removed))
    if args.against is not None:
        return []
    return [Problem("command line", name, "no --against", "earlier results") for name, stated in given if stated]


def read(args: argparse.Namespace) -> tuple[Row, ...] | None:
    """Returns the earlier rows; None where nothing is compared. Raises InputError."""
    return files.rows(args.against) if args.against else None


def compare(
    args: argparse.Namespace, earlier: Sequence[Row], evaluation: Evaluation, predictor: str = ""
) -> tuple[Drift, Drift]:
    """Compares the held-out rows with the earlier ones, and the uncalibrated ones likewise; ``predictor``: of this one
    alone. A run that is doubted now, or was, is compared with nothing."""
    doubted = {row.run_id for row in evaluation.doubted}
    earlier = [row for row in parted(earlier)[0] if row.run_id not in doubted]
    rows = [row for row in evaluation.rows if predictor in ("", row.predictor)]
    tolerance = drift.BROKEN if args.drift_tolerance is None else args.drift_tolerance
    old, new = frame.of(earlier), frame.of(rows)
    held, plain = (
        drift.compare(old, new, fit, tolerance, may_remove=args.allow_removed) for fit in ("heldout", "uncalibrated")
    )
    return held, plain
