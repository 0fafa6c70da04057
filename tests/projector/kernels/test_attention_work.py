"""The work list of attention against explicit enumeration: tiles counted one by one, then list-scheduled over units."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projector.kernels.attention import makespan
from projector.kernels.attention_work import floor_sum, work


def enumerated(own: int, other: int, rows: int, columns: int, low: float, high: float) -> list[int]:
    """Blocks of every tile, position by position of its band."""
    blocks = []
    for first in range(0, own, rows):
        start, end = max(first + low, 0), min(min(first + rows, own) + high, other)
        blocks.append(math.ceil(end / columns) - math.floor(start / columns) if end > start else 0)
    return blocks


def scheduled(items: list[float], units: int) -> float:
    """End of the last item when each goes, in the order given, to the unit that is free first."""
    free = [0.0] * units
    for item in items:
        heapq.heappush(free, heapq.heappop(free) + item)
    return max(free)


def columns_of(*cells: float) -> list[np.ndarray]:
    return [np.array([float(cell)]) for cell in cells]


@given(count=st.integers(0, 60), step=st.integers(0, 300), start=st.integers(0, 500), divisor=st.integers(1, 300))
def test_floor_sum_is_the_sum(count: int, step: int, start: int, divisor: int) -> None:
    found = floor_sum(*(np.array([x], dtype=np.int64) for x in (count, step, start, divisor)))
    assert found[0] == sum((step * i + start) // divisor for i in range(count))


@settings(max_examples=400, deadline=None)
@given(
    queries=st.integers(1, 3000),
    keys=st.integers(1, 3000),
    rows=st.sampled_from([16, 64, 80, 96, 128, 192, 256]),
    columns=st.sampled_from([16, 64, 80, 112, 128, 144, 176, 224]),
    mask=st.sampled_from(["full", "causal", "window"]),
    width=st.integers(1, 2000),
    backward=st.booleans(),
)
def test_closed_form_is_the_enumeration(
    queries: int, keys: int, rows: int, columns: int, mask: str, width: int, backward: bool
) -> None:
    offset = keys - queries
    window = width if mask == "window" else math.inf
    band = (-offset, window - 1 - offset) if backward else (offset - window + 1, offset)
    low, high = (-math.inf, math.inf) if mask == "full" else band
    own, other = (keys, queries) if backward else (queries, keys)
    counted = enumerated(own, other, rows, columns, low, high)
    found = work(*columns_of(own, other, rows, columns, low, high))
    assert found.groups[0] == len(counted)
    assert found.blocks[0] == sum(counted)
    assert found.longest[0] >= max(counted)
    if mask == "full" or (mask == "causal" and keys >= queries and not backward):
        assert found.longest[0] == max(counted)


@given(
    own=st.integers(1, 2000),
    rows=st.sampled_from([64, 128, 192]),
    columns=st.sampled_from([16, 64, 128]),
    chunks=st.integers(1, 6),
)
def test_chunks_of_a_context_add_up(own: int, rows: int, columns: int, chunks: int) -> None:
    """Queries of chunk c against all keys so far (a causal chunk with an offset) execute what the whole does."""
    size = rows * columns // math.gcd(rows, columns)
    whole = work(*columns_of(size * chunks, size * chunks, rows, columns, -math.inf, 0)).blocks[0]
    parts = [
        work(*columns_of(size, size * (c + 1), rows, columns, -math.inf, size * c)).blocks[0] for c in range(chunks)
    ]
    assert sum(parts) == whole


@settings(max_examples=200, deadline=None)
@given(
    tiles=st.integers(1, 24),
    lists=st.integers(1, 40),
    units=st.integers(1, 60),
    cost=st.floats(0.1, 5.0),
    prologue=st.floats(0.0, 20.0),
    causal=st.booleans(),
    reverse=st.booleans(),
)
def test_makespan_brackets_list_scheduling(
    tiles: int, lists: int, units: int, cost: float, prologue: float, causal: bool, reverse: bool
) -> None:
    """Whole waves are exact for equal items; for causal ones, longest first is reached and no order exceeds the bound."""
    one = [prologue + cost * (i + 1 if causal else tiles) for i in range(tiles)]
    items = sorted(one * lists, reverse=True) if reverse else one * lists
    truth = scheduled(items, units)
    mean, longest = sum(one) / tiles, max(one)
    waves, mean_of, longest_of = columns_of(len(items) / units, mean, longest)
    early, late = (float(makespan(waves, mean_of, longest_of, np.array([tail]))[0]) for tail in (0.0, 2.0))
    if not causal:
        assert truth == pytest.approx(early) == pytest.approx(late)
        return
    assert early >= max(sum(items) / units, longest) * (1 - 1e-9)
    assert truth <= sum(items) / units + longest * (1 + 1e-9)  # Graham's bound, for any order
    assert abs(truth - early) <= longest
    assert early <= late <= sum(items) / units + 2.0 * longest


def test_an_empty_band_costs_no_block() -> None:
    """Keys that no query of the window reaches."""
    found = work(*columns_of(4096, 512, 128, 128, -3584, 128 - 1 - 3584))
    assert found.blocks[0] == sum(enumerated(4096, 512, 128, 128, -3584, 128 - 1 - 3584))
    assert found.groups[0] == 32
