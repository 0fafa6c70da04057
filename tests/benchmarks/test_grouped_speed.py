"""Grouped GEMMs per second of the batched model, beside the same law written one expert at a time."""

from __future__ import annotations

import math
import time

import numpy as np
from pytest_benchmark.fixture import BenchmarkFixture

from projector.hardware.catalogue import gpu
from projector.hardware.efficiency import load
from projector.kernels import grouped
from projector.operators.types import GroupedGemm

DEVICE = "b200"
TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128), (256, 256))


def operators(count: int) -> list[GroupedGemm]:
    return [GroupedGemm(name="e", groups=32, rows=32 * (64 + i % 4096), n=4096, k=7168) for i in range(count)]


def one_by_one(op: GroupedGemm, c: grouped.GroupedConstants) -> float:
    total = c.launch + op.groups * c.group
    for rows in (op.rows // op.groups,) * op.groups:
        if not rows:
            continue
        best = math.inf
        for high, wide in TILES:
            exact = math.ceil(rows / high) * math.ceil(op.n / wide) / c.units
            rounds = c.waves * math.ceil(exact) + (1 - c.waves) * max(exact, 1 / c.streams)
            loss = max((1 + 30 / high + 30 / wide) / (1 + 30 / 256 + 30 / 128), 1.0)
            best = min(best, rounds * c.units * 2 * high * wide * op.k * loss / c.rate)
        traffic = 2 * (rows * (op.n + op.k) + op.n * op.k) / c.bandwidth
        total += max(best, traffic) + (1 - c.overlap) * min(best, traffic)
    return total


def rates(ops: list[GroupedGemm], few: int) -> tuple[float, float]:
    """Operators per second in a batch, and one expert at a time."""
    c = grouped.constants(gpu(DEVICE), load(DEVICE), "", ops[0])
    start = time.perf_counter()
    batched = grouped.seconds(ops, [c] * len(ops))
    together = len(ops) / (time.perf_counter() - start)
    start = time.perf_counter()
    single = [one_by_one(op, c) for op in ops[:few]]
    np.testing.assert_allclose(batched[:few], single, rtol=1e-9)
    return together, few / (time.perf_counter() - start)


def test_balanced_operators_per_second(benchmark: BenchmarkFixture) -> None:
    ops = operators(20_000)
    c = grouped.constants(gpu(DEVICE), load(DEVICE), "", ops[0])
    together, alone = rates(ops, 100)
    assert len(benchmark(grouped.seconds, ops, [c] * len(ops))) == len(ops)
    assert together / alone > 20
