"""ZB-V: two chunks a rank in a V, zero bubble for F = B = W at 1F1B's memory."""

from __future__ import annotations

from collections.abc import Iterator

from projector.pipeline.schedules.split import alternate, v_schedule
from projector.pipeline.types import KINDS, Action, Generator, Schedule, actions


def build(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """Returns the published order for at least ``2·pp − 1`` micro-batches; for fewer, the same order without those that
    do not exist. A rank holds up to ``2·pp`` half-size chunks."""
    enough = max(2 * pp - 1, microbatches)
    return v_schedule("zbv", pp, microbatches, (_rank(pp, rank, enough) for rank in range(pp)))


def _rank(pp: int, rank: int, m: int) -> Iterator[Action]:
    F, B, W = ([actions(kind, chunk, m) for chunk in (0, 1)] for kind in KINDS)
    ahead, rounds = 2 * pp - rank - 1, m - pp
    yield from F[0][: ahead - rank]
    yield from alternate(F[1][:rank], F[0][ahead - rank :])
    yield from alternate(F[1][rank:pp], B[1], W[1])
    both, last = m - ahead, pp - rank  # rounds that still have a forward of chunk 0; backwards of chunk 1 done
    yield from alternate(F[0][ahead:], B[0], W[0], F[1][pp:], B[1][last:], W[1][last:])
    late = slice(both, rounds), slice(last + both, last + rounds)
    yield from alternate(B[0][late[0]], W[0][late[0]], F[1][pp + both :], B[1][late[1]], W[1][late[1]])
    yield from alternate(B[0][rounds : rounds + rank], B[1][last + rounds :])
    yield from alternate(B[0][rounds + rank :], W[0][rounds:])
    yield from W[1][last + rounds :]
    yield from W[0][rounds + last :]


GENERATOR = Generator(
    "zbv", build, ("zb-v", "zbv-formatted", "zbv-zero-bubble", "zbvzerobubble", "zbv-optimized"),
    "Qi et al., arXiv 2401.10241, section 6", chunks=2, split=True, configured_by=("primus", "torchtitan"),
)  # fmt: skip
