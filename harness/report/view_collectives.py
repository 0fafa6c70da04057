"""The collective model beside measured collectives, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from harness.kernels.collectives_score import Figure, held_out, levels
from harness.report.table import Report, Table, figure, listed, percent, signed, text

SIZES = {True: "≥ 1 MiB", False: "< 1 MiB"}


def build(found: Sequence[Figure]) -> Report:
    """By fabric and size class, by source where several tell, and (in files) figure by figure."""
    measured = [each for each in found if not each.limit]
    tables = (by_fabric(found), _by_source(found), _rows(measured))
    return Report.of(f"Collectives: {len(measured)} measured figures", tables)


def by_fabric(found: Sequence[Figure]) -> Table:
    """Median and worst absolute error of each fabric and size class."""
    made = (
        text("fabric", "fabric"),
        text("size", lambda each: SIZES[each.large]),
        figure("rows", "count"),
        figure("median", "median", percent),
        figure("worst", "worst", percent),
        figure("no table", "strange", percent),
        figure("bias", "bias", signed),
    )
    note = (
        "Absolute error of the time. In-sample where constants of a fabric were fitted; thresholds are left out. No "
        "table: median, and median signed error, by the library's own shares of links and lines and the hop of the GPU's "
        "usual network, as for a fabric that nobody measured; token kernels keep theirs."
    )
    return listed("Error by fabric", levels(found), made, note)


def _by_source(found: Sequence[Figure]) -> Table:
    made = (
        text("fabric", lambda item: item[0][0]),
        text("size", lambda item: SIZES[item[0][1]]),
        text("source", lambda item: item[0][2]),
        figure("median", lambda item: percent(item[1])),
    )
    note = "After one factor a fabric and size class, fitted to the other sources."
    return listed("Error by source, held out", sorted(held_out(found).items()), made, note)


def _rows(found: Sequence[Figure]) -> Table:
    made = (
        text("cluster", "record.cluster"),
        text("kind", "record.kind"),
        figure("GPUs", "record.gpus"),
        figure("nodes", "record.nodes"),
        figure("bytes", lambda f: f"{f.record.bytes:.4g}"),
        figure("measured µs", lambda f: f"{f.record.time_us:.4g}"),
        figure("projected µs", lambda f: f"{f.seconds * 1e6:.4g}"),
        figure("error", "error", signed),
        text("source", "record.source"),
    )
    return listed("Figure by figure", sorted(found, key=lambda f: -abs(f.error)), made, detail=True)
