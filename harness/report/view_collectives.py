"""The collective model beside measured collectives, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from harness.kernels.collectives_score import Figure, held_out, levels
from harness.report.table import Column, Report, Table, percent, signed

__all__ = ["build", "by_fabric"]

SIZES = {True: "≥ 1 MiB", False: "< 1 MiB"}


def build(found: Sequence[Figure]) -> Report:
    """By fabric and size class, by source where several tell, and (in files) figure by figure."""
    measured = [figure for figure in found if not figure.limit]
    tables = (by_fabric(found), _by_source(found), _rows(measured))
    return Report(title=f"Collectives: {len(measured)} measured figures", tables=tuple(t for t in tables if t.rows))


def by_fabric(found: Sequence[Figure]) -> Table:
    """Median and worst absolute error of each fabric and size class."""
    columns = (Column("fabric", False), Column("size", False), Column("rows"), Column("median"), Column("worst"))
    rows = tuple(
        (each.fabric, SIZES[each.large], str(each.count), percent(each.median), percent(each.worst))
        for each in levels(found)
    )
    return Table(
        title="Error by fabric",
        columns=columns,
        rows=rows,
        note="Absolute error of the time. In-sample where constants of a fabric were fitted; thresholds are left out.",
    )


def _by_source(found: Sequence[Figure]) -> Table:
    rows = tuple(
        (fabric, SIZES[large], source, percent(error))
        for (fabric, large, source), error in sorted(held_out(found).items())
    )
    columns = (Column("fabric", False), Column("size", False), Column("source", False), Column("median"))
    note = "After one factor a fabric and size class, fitted to the other sources."
    return Table(title="Error by source, held out", columns=columns, rows=rows, note=note)


def _rows(found: Sequence[Figure]) -> Table:
    names = ("cluster", "kind", "GPUs", "nodes", "bytes", "measured µs", "projected µs", "error", "source")
    rows = tuple(
        (
            figure.record.cluster,
            figure.record.kind,
            str(figure.record.gpus),
            str(figure.record.nodes),
            f"{figure.record.bytes:.4g}",
            f"{figure.record.time_us:.4g}",
            f"{figure.seconds * 1e6:.4g}",
            signed(figure.error),
            figure.record.source,
        )
        for figure in sorted(found, key=lambda f: -abs(f.error))
    )
    words = ("cluster", "kind", "source")
    return Table(
        title="Figure by figure", columns=tuple(Column(n, n not in words) for n in names), rows=rows, detail=True
    )
