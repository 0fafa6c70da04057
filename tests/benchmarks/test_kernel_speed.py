"""Shapes per second of the kernel models in batches of 1e5, beside the same law written one shape at a time."""

from __future__ import annotations

import time

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from projector.hardware.catalogue import gpu
from projector.hardware.efficiency import load
from projector.kernels import gemm
from projector.kernels.simulate import Simulated
from projector.kernels.tiles import tiles
from projector.mechanisms import Execution
from projector.operators.types import Gemm
from tests.gemm_reference import seconds as reference

SHAPES = 100_000
DEVICE, EFFICIENCY = "mi300x", "mi300x"


def columns(count: int) -> gemm.GemmShapes:
    random = np.random.default_rng(3)
    m, n, k = (np.floor(2.0 ** random.uniform(7, 14, count)) for _ in range(3))
    two = np.full(count, 2.0)
    return gemm.GemmShapes(m, n, k, np.ones(count), two, two, np.ones(count))


def constants() -> gemm.GemmConstants:
    return gemm.constants(gpu(DEVICE), load(EFFICIENCY), "", "bf16", "", "TN", False)


def naive(shapes: gemm.GemmShapes, c: gemm.GemmConstants) -> list[float]:
    """The law of ``gemm.seconds``, one shape and one tile at a time."""
    found = tiles(gpu(DEVICE).arch)
    return [reference(m, n, k, 1.0, 2.0, 1.0, c, found) for m, n, k in zip(shapes.m, shapes.n, shapes.k, strict=True)]


def test_gemm_shapes_per_second(benchmark: BenchmarkFixture) -> None:
    shapes, c, found = columns(SHAPES), constants(), tiles(gpu(DEVICE).arch)
    index = np.zeros(SHAPES, dtype=np.int64)
    few = columns(500)
    start = time.perf_counter()
    one_by_one = naive(few, c)
    each = (time.perf_counter() - start) / 500
    start = time.perf_counter()
    batched = gemm.seconds(shapes, [c], index, found)
    together = (time.perf_counter() - start) / SHAPES
    benchmark(gemm.seconds, shapes, [c], index, found)
    assert gemm.seconds(few, [c], index[:500], found) == pytest.approx(one_by_one, rel=1e-12)
    assert len(batched) == SHAPES
    assert each / together > 30


@pytest.mark.parametrize("warm", [False, True])
def test_five_hundred_operators(benchmark: BenchmarkFixture, warm: bool) -> None:
    ops = [Gemm(name="g", m=1024 + i, n=4096, k=4096) for i in range(500)]
    kept = Simulated(gpu(DEVICE), load(EFFICIENCY), Execution())

    def run() -> float:
        model = kept if warm else Simulated(gpu(DEVICE), load(EFFICIENCY), Execution())
        return float(model.times(ops).seconds.sum())

    assert benchmark(run) > 0
