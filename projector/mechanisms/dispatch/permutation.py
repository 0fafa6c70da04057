"""Moving tokens inside a rank on the way to its experts: permutation, its reverse, sorting by local expert.

Fused kernels (Transformer Engine's permutation, a compiler's) or the elementary ones of NVIDIA/Megatron-LM@d98e8a64dd
core/transformer/moe/moe_utils.py: index selections, scatter-additions, lists of chunks.
"""

from __future__ import annotations

from projector.mechanism import mechanism
from projector.mechanisms.dispatch.routing import Routed
from projector.operators.rank import Rank
from projector.operators.types import Stream


def permute_launches(lo: Rank) -> tuple[int, int, int]:
    """Launches of (permute, its reverse, the gradient of the reverse): fused kernels or argsort and index selects."""
    return (4, 1, 1) if fused_permute(lo) else (9, 3, 3)


def fused_permute(lo: Rank) -> bool:
    return bool(lo.recipe.moe_permute_fusion) or (lo.recipe.sync_free_stage or 0) >= 1 or lo.compiled


def copies_kind(lo: Rank) -> str:
    """Kind of the kernels that sum the copies of a token: without the fused kernel they are scatter-additions.

    NVIDIA/Megatron-LM core/transformer/moe/moe_utils.py: ``unpermute`` calls ``scatter_add_``, and the gradient of the
    ``index_select`` of ``permute`` is ``index_add``. Each copy is read and added atomically to the token's row, which
    stays in the last cache level.
    """
    return "permute" if fused_permute(lo) else "scatter"


def sum_copies(name: str, copies: float, tokens: float, launches: int, lo: Rank) -> Stream:
    """Copies of tokens summed: written once per token by the fused kernel, once per copy by atomics."""
    kind = copies_kind(lo)
    return copy(name, kind, copies, tokens if kind == "permute" else copies, launches, lo)


def copy(name: str, kind: str, read_rows: float, write_rows: float, launches: int, lo: Rank) -> Stream:
    row = lo.act * lo.hidden
    return Stream(name=name, kind=kind, read=row * read_rows, write=row * write_rows, launches=launches)


@mechanism(off=())
def scatter_adds(r: Routed, lo: Rank) -> tuple[Stream, ...]:
    """Gradients of a gather as a compiler writes them: rows of the whole buffer added into their sources."""
    count = lo.recipe.moe_dispatch_scatter_adds or 0
    row = lo.act * lo.hidden * r.held
    return tuple(Stream(name=f"moe.scatter_add{i}", kind="scatter", read=2 * row, write=row) for i in range(count))
