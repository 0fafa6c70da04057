"""Collectives per second through arrays, beside one message at a time: the ratio in one run, not a clock reading."""

from __future__ import annotations

import time

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from projector.collectives.model import Pricing, costs, seconds_of
from projector.hardware import catalogue
from projector.hardware.types import GroupShape
from projector.memo import forget
from projector.operators.types import Collective

SIZES, FEW = 100_000, 300
SHAPE = GroupShape(512, 8)
FASTER = 8.0  # an array against a loop over its messages, per message
REMEMBERED = 5.0  # a run's operator seen before against the whole model


def sizes() -> np.ndarray:
    return 2.0 ** np.random.default_rng(7).uniform(3, 34, SIZES)


def test_an_array_outruns_a_loop_over_messages(benchmark: BenchmarkFixture) -> None:
    cluster, messages = catalogue.cluster("h100_sxm"), sizes()
    candidates = costs("all_reduce", SHAPE, cluster)
    start = time.perf_counter()
    explicit = [min(cost.seconds(size) for cost in candidates) for size in messages[:FEW].tolist()]
    each = (time.perf_counter() - start) / FEW
    found = benchmark(seconds_of, "all_reduce", messages, SHAPE, cluster)
    start = time.perf_counter()
    seconds_of("all_reduce", messages, SHAPE, cluster)
    together = (time.perf_counter() - start) / SIZES
    assert each / together > FASTER
    assert found[:FEW] == pytest.approx(explicit)


def test_an_operator_seen_before(benchmark: BenchmarkFixture) -> None:
    cluster = catalogue.cluster("mi355x")
    op = Collective(name="x", kind="all_reduce", group="dp", bytes=3e7)
    pricing = Pricing({"dp": SHAPE}, cluster)
    fresh = 0.0
    for _ in range(FEW):
        forget()
        start = time.perf_counter()
        Pricing({"dp": SHAPE}, cluster).seconds(op)
        fresh += (time.perf_counter() - start) / FEW
    benchmark(pricing.seconds, op)
    start = time.perf_counter()
    for _ in range(FEW):
        pricing.seconds(op)
    known = (time.perf_counter() - start) / FEW
    assert fresh / known > REMEMBERED
