"""Shapes per second of the kernel models in batches of 1e5, beside the same law written one shape at a time."""

import heapq
import math
from dataclasses import replace

import numpy as np
import pytest
from measured_table import spent
from pytest_benchmark.fixture import BenchmarkFixture

from projector.collectives.model import Pricing, costs, seconds_of
from projector.hardware import catalogue
from projector.hardware.catalogue import gpu
from projector.hardware.efficiency import load
from projector.hardware.types import GroupShape
from projector.kernels import attention, gemm, grouped
from projector.kernels.tiles import tiles
from projector.memo import clear_caches
from projector.operators.types import Attention, Collective, GroupedGemm
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
    one_by_one, each = spent(lambda: naive(few, c))
    batched, together = spent(lambda: gemm.seconds(shapes, [c], index, found))
    benchmark(gemm.seconds, shapes, [c], index, found)
    assert gemm.seconds(few, [c], index[:500], found) == pytest.approx(one_by_one, rel=1e-12)
    assert len(batched) == SHAPES
    assert each / 500 > 30 * together / SHAPES


# Attention shapes per second through columns, and beside an explicit work list: tiles counted and scheduled one by
# one.

ATTENTION_SHAPES, FEW = 100_000, 20
ATTENTION_DEVICE, FAMILY = "h100_sxm", "fa3"
FASTER = 100.0  # a batch against the work list written out, per shape


def attention_columns(count: int) -> attention.AttentionShapes:
    random = np.random.default_rng(5)
    seq = np.floor(2.0 ** random.uniform(8, 14, count))
    heads, ones = random.integers(1, 65, count).astype(np.float64), np.ones(count)
    wide = np.full(count, 128.0)
    return attention.AttentionShapes(
        batch=ones, heads=heads, kv_heads=ones, seq_q=seq, seq_k=seq, head_dim_qk=wide, head_dim_v=wide, causal=ones,
        window=np.full(count, np.inf), backward=np.zeros(count), size=2.0 * ones,
    )  # fmt: skip


def attention_constants() -> attention.AttentionConstants:
    one = Attention(name="", batch=1, heads=8, kv_heads=1, seq_q=1024, seq_k=1024, head_dim_qk=128, head_dim_v=128)
    return attention.constants(gpu(ATTENTION_DEVICE), load(ATTENTION_DEVICE), FAMILY, one)


def bare() -> attention.AttentionConstants:
    """Without what a schedule does not know: launch, the clock of idle units, an order other than longest first."""
    return replace(attention_constants(), launch=0.0, power=0.0, tail=0.0, spill=0.0)


def written_out(heads: float, seq: float, c: attention.AttentionConstants) -> float:
    """Longest work-groups first, each to the unit that is free first."""
    tiles = [math.ceil(min(end, seq) / c.columns) for end in np.arange(c.rows, seq + c.rows, c.rows)]
    items = sorted((c.prologue + n * c.iteration for n in tiles for _ in range(int(heads))), reverse=True)
    free = [0.0] * int(c.units)
    for item in items:
        heapq.heapreplace(free, free[0] + item)
    return max(free)


def test_columns_outrun_the_work_list(benchmark: BenchmarkFixture) -> None:
    shapes, c = attention_columns(ATTENTION_SHAPES), bare()
    index = np.zeros(ATTENTION_SHAPES, dtype=np.int64)
    some = [*zip(shapes.heads[:FEW], shapes.seq_q[:FEW], strict=True)]
    explicit, each = spent(lambda: [written_out(heads, seq, c) for heads, seq in some])
    found = benchmark(attention.seconds_of, shapes, [c], index)
    _, together = spent(lambda: attention.seconds_of(shapes, [c], index))
    assert each / FEW > FASTER * together / ATTENTION_SHAPES
    assert found[:FEW] == pytest.approx(explicit, rel=0.15)


# Grouped GEMMs per second of the batched model, beside the same law written one expert at a time.

GROUPED_DEVICE = "b200"
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


def test_balanced_operators_per_second(benchmark: BenchmarkFixture) -> None:
    ops = operators(20_000)
    c = grouped.constants(gpu(GROUPED_DEVICE), load(GROUPED_DEVICE), "", ops[0])
    batched, together = spent(lambda: grouped.seconds(ops, [c] * len(ops)))
    single, each = spent(lambda: [one_by_one(op, c) for op in ops[:100]])
    np.testing.assert_allclose(batched[:100], single, rtol=1e-9)
    assert len(benchmark(grouped.seconds, ops, [c] * len(ops))) == len(ops)
    assert each / 100 > 20 * together / len(ops)


# Collectives per second through arrays, beside one message at a time: the ratio in one run, not a clock reading.

SIZES, FEW_COLLECTIVES = 100_000, 300
SHAPE = GroupShape(512, 8)
COLLECTIVES_FASTER = 8.0  # an array against a loop over its messages, per message
REMEMBERED = 5.0  # a run's operator seen before against the whole model


def sizes() -> np.ndarray:
    return 2.0 ** np.random.default_rng(7).uniform(3, 34, SIZES)


def test_an_array_outruns_a_loop_over_messages(benchmark: BenchmarkFixture) -> None:
    cluster, messages = catalogue.cluster("h100_sxm"), sizes()
    candidates = costs("all_reduce", SHAPE, cluster)
    some = messages[:FEW_COLLECTIVES].tolist()
    explicit, each = spent(lambda: [min(cost.seconds(size) for cost in candidates) for size in some])
    found = benchmark(seconds_of, "all_reduce", messages, SHAPE, cluster)
    _, together = spent(lambda: seconds_of("all_reduce", messages, SHAPE, cluster))
    assert each / FEW_COLLECTIVES > COLLECTIVES_FASTER * together / SIZES
    assert found[:FEW_COLLECTIVES] == pytest.approx(explicit)


def test_an_operator_seen_before(benchmark: BenchmarkFixture) -> None:
    cluster = catalogue.cluster("mi355x")
    op = Collective(name="x", kind="all_reduce", group="dp", bytes=3e7)
    pricing = Pricing({"dp": SHAPE}, cluster)
    fresh = 0.0
    for _ in range(FEW_COLLECTIVES):
        clear_caches()
        fresh += spent(lambda: Pricing({"dp": SHAPE}, cluster).seconds(op))[1]
    benchmark(pricing.seconds, op)
    _, known = spent(lambda: [pricing.seconds(op) for _ in range(FEW_COLLECTIVES)])
    assert fresh / known > REMEMBERED
