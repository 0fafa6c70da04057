"""Which rows of a kernel table are fitted together, and which parameters they fit: grouped GEMM.

Each parameter: (prior, lowest, highest). A backend with few rows on a GPU moves fewer of them: what a table cannot
tell stays as the architecture has it.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.kernels.fit import Set
from projector.kernels.tables import Measured
from projector.operators.types import GroupedGemm

GROUPED = {
    "grouped.loop": (1.0, 0.5, 1.6),
    "grouped.memory": (0.8, 0.5, 0.95),
    "grouped.overlap": (0.2, 0.0, 1.0),
    "grouped.waves": (0.4, 0.0, 1.0),
    "grouped.group_us": (0.5, 0.0, 6.0),
    "grouped.burst": (0.05, 0.0, 0.5),
}
ISSUE = (6.0, 0.0, 20.0)  # the host of a framework that was timed; it never becomes a parameter of a projection
SOME = ("grouped.loop", "grouped.overlap", "grouped.waves")
MANY, SEVERAL = 40, 8  # rows from which all, and some, constants of a backend are fitted


def sets(rows: Sequence[Measured]) -> list[Set]:
    chosen: dict[str, list[Measured]] = {}
    for row in rows:
        if isinstance(row.op, GroupedGemm):
            chosen.setdefault(row.op.backend, []).append(row)
    made = []
    for backend, few in sorted(chosen.items()):
        names = tuple(GROUPED) if len(few) >= MANY else SOME if len(few) >= SEVERAL else ("grouped.loop",)
        keys = {f"{name}.{backend}": GROUPED[name] for name in names}
        if len(few) >= MANY and all(row.condition == "framework average" for row in few):
            keys[f"grouped.issue_us.{backend}"] = ISSUE
        made.append(Set(f"grouped {backend}", tuple(few), "", keys, shape))
    return made


def shape(row: Measured) -> object:
    """Rows left out together: all phases of one linear of one number of experts."""
    op = row.op
    return (op.flops, op.groups) if isinstance(op, GroupedGemm) else None
