"""How the routed tokens of grouped GEMMs spread over experts, as flat columns: one entry per distinct load of an
operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from projector.kernels.protocol import FloatArray
from projector.operators.types import GroupedGemm
from projector.size import Column, table


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
    """The loads of all operators, of each ``number`` where sizes are columns. Where an operator states none its rows are
    balanced: no two experts differ by more than one row.
    """
    rows, groups = table([(op.rows, op.groups) for op in ops], number).astype(np.int64)
    stated = np.repeat([op.rows_per_group is not None for op in ops], number)
    even = np.flatnonzero(~stated)
    base, more = np.divmod(rows[even], groups[even])
    owners = [even, even[more > 0]]
    loads = [base, base[more > 0] + 1]
    counts = [groups[even] - more, more[more > 0]]
    for place, op in enumerate(ops):
        given = op.rows_per_group
        if isinstance(given, Column):
            inside = np.arange(given.values.shape[1]) < groups[place * number :][:number, None]
            owners.append(place * number + np.nonzero(inside)[0])
            loads.append(given.values[inside])
            counts.append(np.ones(len(loads[-1]), np.int64))
    for i in np.flatnonzero(stated).tolist():
        given = ops[i // number].rows_per_group
        if isinstance(given, Column):
            continue
        found = Counter(given or ())
        owners.append(np.full(len(found), i))
        loads.append(np.fromiter(found.keys(), dtype=np.int64, count=len(found)))
        counts.append(np.fromiter(found.values(), dtype=np.int64, count=len(found)))
    owner, load, count = (np.concatenate(parts) for parts in (owners, loads, counts))
    return Spread(owner.astype(np.intp), load.astype(np.float64), count.astype(np.float64))
