"""The table of another package's dense products beside ours."""

from __future__ import annotations

from collections.abc import Sequence

from harness.kernels.beside import Beside
from harness.report.table import Table, figure, listed, percent, text

_COLUMNS = (
    text("GPU", "cls.gpu"),
    text("operands", "cls.operands"),
    text("family", "cls.family", minor=2),
    figure("rows", "rows"),
    figure("ours", "ours", percent),
    figure("theirs", "theirs", percent),
    figure("ours, large", "ours_large", percent),
    figure("theirs, large", "theirs_large", percent),
    figure("theirs / measured", "bias", "{:.2f}".format),
)


def table(backend: str, lines: Sequence[Beside], held_out: bool) -> Table:
    """A line a class of products."""
    note = (
        f"Mean |modelled / measured − 1| over the products that {backend} prices too; large: of 10 GFLOP and more. Ours: "
        f"{'held out' if held_out else 'with the constants as shipped'}. Last: the geometric mean of theirs over measured."
    )
    return listed(f"Dense products by {backend} beside ours", lines, _COLUMNS, note)
