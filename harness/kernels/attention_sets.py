"""Divides the attention rows of a kernel table into sets that are fitted together, and says which parameters each set
fits.

One set is a family, an operand type and a direction; all masks and head dimensions share its constants, except kernels
whose two head dimensions differ. Constants that its rows cannot tell apart keep their priors: a few rows fit a rate and
the cost of a work-group, or the rate alone, and take the rest from the family that they resemble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.kernels.fit import Bounds, Set
from harness.kernels.sets import BOUNDS, of_one, operands
from projector.kernels.attention_constants import block, parent
from projector.kernels.tables import Measured
from projector.operators.types import Attention

MANY, FEW = 11, 4  # least shapes for all constants; least shapes for more than the rate


def sets(rows: Sequence[Measured]) -> list[Set]:
    """Returns the sets of a table, families that others take constants from first."""
    result = []
    for (_, family, dtype, backward, dim), members in of_one(rows, Attention, _set_key):
        if len(members) < 3:
            continue
        stem = f"attention.{'backward' if backward else 'forward'}"
        tail = f"{family}.{dtype}" + (f".d{dim}" if dim else "")
        keys = {f"{stem}.{name}.{tail}": bounds for name, bounds in _parameters(members).items()}
        result.append(Set(f"{stem} {tail}", tuple(members), family, keys))
    return result


def _set_key(family: str, op: Attention) -> tuple[bool, str, str, bool, int]:
    dim = op.head_dim_qk if _is_own_kernel(family, op) else 0
    return bool(parent(family)), family, operands(op.dtype), op.backward, dim


def _is_own_kernel(family: str, op: Attention) -> bool:
    """Tells whether unequal head dimensions mean another kernel with a rate of its own: not where the operands' way
    through shared memory explains the rate, nor for a family that only scales another one."""
    copies = block(family, "", op.head_dim_v, op.dtype, op.causal, op.backward).warp_rows > 0
    return op.head_dim_qk != op.head_dim_v and not copies and not parent(family)


def _parameters(rows: Sequence[Measured]) -> Mapping[str, Bounds]:
    ops = [row.op for row in rows if isinstance(row.op, Attention)]
    shapes, widths = len({lists(row) for row in rows}), {op.head_dim_qk for op in ops}
    kernel = block(rows[0].family, "", ops[0].head_dim_v, ops[0].dtype, True, ops[0].backward)
    many = len(rows) >= MANY
    known = BOUNDS["attention"]
    chosen = {"loop": known["loop"]}
    if all(row.condition == "framework average" for row in rows):
        chosen |= BOUNDS["average"]
    elif kernel.paired and many:
        chosen["launch_us"] = known["launch_us"]
    if many or (shapes >= FEW and len({op.seq_k for op in ops}) > 1):
        chosen["prologue_us"] = known["prologue_us"]
    if many or (shapes >= FEW and len(widths) > 1 and not kernel.warp_rows):
        chosen["overlap"] = known["overlap"]
    if kernel.paired and many:
        chosen["power"] = known["power"]
    if many and not kernel.paired and any(op.causal for op in ops) and not ops[0].backward:
        chosen["mask"] = known["mask"]
    if kernel.warp_rows and len(widths) > 1:
        chosen["fetch"] = known["fetch"]
    if many and not kernel.warp_rows and min(widths) < 128:
        chosen["softmax"] = known["softmax"]  # products hide it at larger head dimensions
    return chosen


def lists(row: Measured) -> object:
    """Returns the key by which rows are left out together: sequence length, heads in all, and head dimension."""
    return (row.op.seq_q, row.op.heads * row.op.batch, row.op.head_dim_v) if isinstance(row.op, Attention) else None
