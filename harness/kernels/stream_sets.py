"""Which rows of a kernel table are fitted together, and which parameters they fit: streams.

Bare reads, writes and copies say what a device's memory reaches beside others; classes of a framework's kernels
(``elementwise``, ``permute``, ``loss``) have one row a device and state their share themselves, so none is fitted.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.kernels.fit import Set
from projector.kernels.tables import Measured
from projector.operators.types import Stream

BARE = frozenset({"copy", "reduce", "fill"})
STREAM = {"stream.device": (1.0, 0.7, 1.15)}  # (prior, lowest, highest)


def sets(rows: Sequence[Measured]) -> list[Set]:
    bare = [row for row in rows if isinstance(row.op, Stream) and row.op.kind in BARE]
    if len(bare) < 2:
        return []
    return [Set("stream", tuple(bare), "", STREAM, operation)]


def operation(row: Measured) -> object:
    """Rows left out together: those that read and write as much."""
    op = row.op
    return (op.kind, op.read, op.write) if isinstance(op, Stream) else None
