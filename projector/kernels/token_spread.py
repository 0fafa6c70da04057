"""How the routed tokens of grouped GEMMs spread over experts, as flat columns: one entry per distinct load of an
operator.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from projector.dataclass import dataclass
from projector.kernels.protocol import FloatArray
from projector.operators.types import GroupedGemm
from projector.size import table


@dataclass(frozen=True, slots=True)
class Spread:
    """Columns (e,): the operator an entry belongs to, the rows of one expert, and how many experts carry as many."""

    owner: npt.NDArray[np.intp]
    rows: FloatArray
    count: FloatArray

    def total(self, values: FloatArray, operators: int) -> FloatArray:
        """Sum over the experts of each operator, (operators,), of a value per entry (e,)."""
        found = np.bincount(self.owner, weights=values * self.count, minlength=operators)
        return found.astype(np.float64, copy=False)


def flatten(ops: Sequence[GroupedGemm], number: int = 1) -> Spread:
    """The loads of all operators, of each ``number`` where sizes are columns: no two experts differ by more than one row."""
    rows, groups = table([(op.rows, op.groups) for op in ops], number).astype(np.int64)
    every = np.arange(len(rows))
    base, more = np.divmod(rows, groups)
    some = more > 0
    owner, load, count = (
        np.concatenate(parts) for parts in ((every, every[some]), (base, base[some] + 1), (groups - more, more[some]))
    )
    return Spread(owner.astype(np.intp), load.astype(np.float64), count.astype(np.float64))
