"""Tabulates the collective model beside measured collectives."""

from __future__ import annotations

from collections.abc import Sequence

from harness.kernels.collectives_score import Figure, held_out, levels
from harness.report.spec import tabled
from harness.report.table import Report, Table

SIZES = {True: "≥ 1 MiB", False: "< 1 MiB"}


def build(found: Sequence[Figure]) -> Report:
    """Tabulates by fabric and size class, by source where several measured, and (in files) figure by figure."""
    measured = [figure for figure in found if not figure.limit]
    by_source = tabled("fabric_sources", sorted(held_out(found).items()), size=SIZES.__getitem__)
    rows = tabled("collectives", sorted(measured, key=lambda f: -abs(f.error)))
    return Report.of(f"Collectives: {len(measured)} measured figures", (by_fabric(found), by_source, rows))


def by_fabric(found: Sequence[Figure]) -> Table:
    """Returns the median and the worst absolute error of each fabric and size class."""
    return tabled("fabrics", levels(found), size=SIZES.__getitem__)
