"""Bounds the time of a step for any schedule on a placement without generating one: what prunes a search."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from projector.size import Floats


def lower_bound(
    placement: Sequence[Sequence[int]],
    microbatches: ArrayLike,
    forward: ArrayLike,
    backward_input: ArrayLike,
    backward_weight: ArrayLike,
    p2p: ArrayLike = 0.0,
    split: bool = False,
) -> Floats:
    """Returns ``[…]``: seconds that any order of these actions takes at least.

    ``microbatches``: a number, or one per run ``[…]``. ``placement[rank][chunk]``: virtual stages (``Schedule.placement``,
    :func:`projector.pipeline.types.loop_placement`). Durations ``[…, stages]`` and ``p2p`` (scalar or ``[stages − 1]``)
    as for :func:`projector.pipeline.evaluate`. The largest of:

    * one micro-batch through all stages and back;
    * for each rank: the way of the first micro-batch down to its lowest stage, all its work, and (unsplit, where a
      rank's last action is the backward of that stage) the way of the last gradient from there to stage 0.
    """
    F, B, W = (np.asarray(part, dtype=np.float64) for part in (forward, backward_input, backward_weight))
    back = B if split else B + W
    stages = F.shape[-1]
    hops = np.asarray(np.broadcast_to(np.asarray(p2p, dtype=np.float64), (max(stages - 1, 0),)))
    if hops.any():
        hops = hops * _crosses(placement)
    reach = np.concatenate([[0.0], np.cumsum(hops)])
    head, tail = _sum_below(F) + reach, _sum_below(back) + reach
    bound = F.sum(axis=-1) + back.sum(axis=-1) + 2 * reach[-1]
    rounds = np.asarray(microbatches) * stages / sum(map(len, placement))
    chosen = np.array(placement)
    lowest, work = chosen.min(axis=1), (F + B + W)[..., chosen].sum(axis=-1)
    by_rank = head[..., lowest] + rounds[..., None] * work + (0.0 if split else tail[..., lowest])
    return np.asarray(np.maximum(bound, by_rank.max(axis=-1)))


def _sum_below(seconds: Floats) -> Floats:
    return np.cumsum(seconds, axis=-1) - seconds


def _crosses(placement: Sequence[Sequence[int]]) -> NDArray[np.bool_]:
    """Returns ``[stages − 1]``: whether the boundary above a stage leaves its rank."""
    ranks = [{rank for rank, row in enumerate(placement) if stage in row} for stage in sorted(set().union(*placement))]
    return np.asarray([here.isdisjoint(there) or len(here) > 1 for here, there in pairwise(ranks)], np.bool_)
