"""Attention shapes per second through columns, and beside an explicit work list: tiles counted and scheduled one by one."""

from __future__ import annotations

import heapq
import math
import time
from dataclasses import replace

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from projector.hardware.catalogue import gpu
from projector.hardware.efficiency import load
from projector.kernels import attention
from projector.kernels.simulate import Simulated
from projector.mechanisms import Execution
from projector.operators.types import Attention

SHAPES, FEW = 100_000, 20
DEVICE, FAMILY = "h100_sxm", "fa3"
FASTER = 100.0  # a batch against the work list written out, per shape


def columns(count: int) -> attention.AttentionShapes:
    random = np.random.default_rng(5)
    seq = np.floor(2.0 ** random.uniform(8, 14, count))
    heads, ones = random.integers(1, 65, count).astype(np.float64), np.ones(count)
    wide = np.full(count, 128.0)
    return attention.AttentionShapes(
        batch=ones,
        heads=heads,
        kv_heads=ones,
        seq_q=seq,
        seq_k=seq,
        head_dim_qk=wide,
        head_dim_v=wide,
        causal=ones,
        window=np.full(count, np.inf),
        backward=np.zeros(count),
        size=2.0 * ones,
    )


def constants() -> attention.AttentionConstants:
    one = Attention(name="", batch=1, heads=8, kv_heads=1, seq_q=1024, seq_k=1024, head_dim_qk=128, head_dim_v=128)
    return attention.constants(gpu(DEVICE), load(DEVICE), FAMILY, one)


def bare() -> attention.AttentionConstants:
    """Without what a schedule does not know: launch, the clock of idle units, an order other than longest first."""
    return replace(constants(), launch=0.0, power=0.0, tail=0.0, spill=0.0)


def written_out(heads: float, seq: float, c: attention.AttentionConstants) -> float:
    """Longest work-groups first, each to the unit that is free first."""
    tiles = [math.ceil(min(end, seq) / c.columns) for end in np.arange(c.rows, seq + c.rows, c.rows)]
    items = sorted((c.prologue + n * c.iteration for n in tiles for _ in range(int(heads))), reverse=True)
    free = [0.0] * int(c.units)
    for item in items:
        heapq.heapreplace(free, free[0] + item)
    return max(free)


def test_columns_outrun_the_work_list(benchmark: BenchmarkFixture) -> None:
    shapes, c = columns(SHAPES), bare()
    index = np.zeros(SHAPES, dtype=np.int64)
    start = time.perf_counter()
    explicit = [written_out(h, s, c) for h, s in zip(shapes.heads[:FEW], shapes.seq_q[:FEW], strict=True)]
    each = (time.perf_counter() - start) / FEW
    found = benchmark(attention.seconds_of, shapes, [c], index)
    start = time.perf_counter()
    attention.seconds_of(shapes, [c], index)
    together = (time.perf_counter() - start) / SHAPES
    assert each / together > FASTER
    assert found[:FEW] == pytest.approx(explicit, rel=0.15)


def test_one_operator_seen_before(benchmark: BenchmarkFixture) -> None:
    one = Attention(name="", batch=1, heads=8, kv_heads=1, seq_q=8192, seq_k=8192, head_dim_qk=128, head_dim_v=128)
    model = Simulated(gpu(DEVICE), load(DEVICE), Execution.of(kernels={"attention": FAMILY}))
    ops = [one]
    assert benchmark(model.times, ops).seconds[0] > 0


def test_ten_thousand_operators(benchmark: BenchmarkFixture) -> None:
    c = constants()
    ops = [
        Attention(
            name="",
            batch=1,
            heads=8 + i % 56,
            kv_heads=8,
            seq_q=256 + i,
            seq_k=256 + i,
            head_dim_qk=128,
            head_dim_v=128,
        )
        for i in range(10_000)
    ]
    assert (benchmark(attention.seconds, ops, [c] * len(ops)) > 0).all()
