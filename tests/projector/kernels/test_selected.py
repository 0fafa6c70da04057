"""Attention of queries that choose their keys: linear in the keys, and never free of its own rows."""

from __future__ import annotations

import pytest

from projector.hardware import catalogue
from projector.hardware.efficiency import of as efficiency_of
from projector.kernels import selected
from projector.operators.types import Attention

# Milliseconds by keys and heads of NVIDIA/cudnn-frontend pull request 318, backward of 4096 queries on SM100.
PUBLISHED = {
    (128, 64): 0.560,
    (512, 64): 1.233,
    (1024, 64): 2.155,
    (2048, 64): 4.019,
    (128, 128): 1.066,
    (1024, 128): 4.303,
}


def seconds(gpu: str, keys: float, heads: int = 64, backward: bool = True) -> float:
    device = catalogue.default_cluster(gpu).gpu
    sizes = {
        "batch": 1,
        "heads": heads,
        "kv_heads": 1,
        "seq_q": 4096,
        "seq_k": 4096,
        "head_dim_qk": 512,
        "head_dim_v": 512,
    }
    op = Attention(name="core_attn", keys=keys, backward=backward, **sizes)  # type: ignore[arg-type]
    return selected.seconds(op, device, efficiency_of(device))


@pytest.mark.parametrize("gpu", ["b200", "gb200"])
def test_the_published_backward_comes_out(gpu: str) -> None:
    for (keys, heads), milliseconds in PUBLISHED.items():
        assert seconds(gpu, keys, heads) * 1e3 == pytest.approx(milliseconds, rel=0.1)


@pytest.mark.parametrize("gpu", ["gb300", "h100_sxm", "mi355x"])
@pytest.mark.parametrize("backward", [False, True])
def test_time_is_linear_in_keys_and_rows_of_queries_remain(gpu: str, backward: bool) -> None:
    none, some, twice = (seconds(gpu, keys, backward=backward) for keys in (0.0, 512.0, 1024.0))
    assert twice - some == pytest.approx(some - none)
    rows = (2 if backward else 1) * 2.0 * 4096 * 64 * 1024
    assert none >= rows / catalogue.default_cluster(gpu).gpu.memory_bandwidth
