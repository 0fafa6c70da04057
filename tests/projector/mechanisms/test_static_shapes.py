"""Buffers of dropless experts where shapes are fixed before a router has spoken."""

from __future__ import annotations

import pytest

from projector.frameworks import resolve
from projector.layers.lower import layer
from projector.operators.types import Stream
from tests.workloads import workload

EXPERTS, TOPK, HIDDEN, TOKENS = 256, 8, 7168, 4096


@pytest.mark.parametrize("ep", [8, 16, 32, 64, 128])
def test_a_rank_holds_no_token_more_often_than_it_has_experts(ep: int) -> None:
    """Worst case of MaxText's ragged exchange: every rank's tokens, each as often as this rank has experts for it."""
    made = resolve(workload("deepseek_v3", 128, "maxtext", global_batch_size=128, ep=ep), "amd", "gfx950")
    block = layer(made.workload.model.layer_kinds[-1], made)
    (sort,) = (op for op in block.forward if op.name == "moe.sort")
    assert isinstance(sort, Stream)
    assert sort.read == pytest.approx(ep * TOKENS * min(TOPK, EXPERTS // ep) * HIDDEN * 2)
