"""Every moment is counted once, whatever runs beside what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.trace.account import account, union
from harness.trace.events import Kernels
from harness.trace.idle import BETWEEN, LAUNCH, OTHERS, SYNC, idle
from harness.trace.reader import read
from harness.trace.steps import Part, chosen
from tests.harness.trace.made import GEMM, REDUCE, Made

NAMES = (GEMM, "flash::flash_fwd_kernel<x>", REDUCE, "Memcpy DtoD (Device -> Device)", "who knows")


def part_of(rows: list[tuple[float, float, int]]) -> Part:
    rows = sorted(rows)
    start, length, name = (np.array(column) for column in zip(*rows, strict=True))
    nothing = np.full(len(rows), -1, dtype=np.int64)
    kernels = Kernels(start, start + length, nothing, name.astype(np.int64), nothing, NAMES)
    return Part(kernels, float(start.min()), float((start + length).max()) + 1.0, True, "")


rows = st.lists(
    st.tuples(st.floats(0, 10), st.floats(0.001, 3), st.integers(0, len(NAMES) - 1)), min_size=1, max_size=30
)


@settings(max_examples=60, deadline=None)
@given(rows)
def test_the_parts_sum_to_the_step(found: list[tuple[float, float, int]]) -> None:
    part = part_of(found)
    made = account(part)
    assert sum(entry.exposed for entry in made.entries) + made.idle == pytest.approx(part.seconds)
    assert made.busy + made.idle == pytest.approx(part.seconds)
    assert all(0 <= entry.exposed <= entry.busy + 1e-12 for entry in made.entries)
    assert sum(entry.calls for entry in made.entries) == len(found)


@settings(max_examples=30, deadline=None)
@given(rows)
def test_a_union_is_what_a_clock_would_count(found: list[tuple[float, float, int]]) -> None:
    part = part_of(found)
    spans = union(part.kernels, np.ones(len(found), dtype=bool))
    ticks = np.linspace(0, 14, 1401)
    inside = sum((ticks >= a) & (ticks < b) for a, b in spans)
    apart = sum((ticks >= a) & (ticks < b) for a, b in zip(part.kernels.start, part.kernels.end, strict=True))
    assert ((inside > 0) == (apart > 0)).all()
    assert (inside <= 1).all()


def test_communication_counts_only_where_nothing_computes() -> None:
    made = account(part_of([(0.0, 4.0, 0), (1.0, 5.0, 2), (5.5, 2.0, 3)]))
    exposed = {entry.kind: entry.exposed for entry in made.entries}
    assert exposed["GEMM"] == pytest.approx(4.0)
    assert exposed["communication: all_reduce"] == pytest.approx(2.0)  # from 4 to 6: before, the product runs
    assert exposed["copy"] == pytest.approx(1.5)  # from 6 to 7.5: before, the message is under way


def test_two_products_at_a_time_share_it() -> None:
    made = account(part_of([(0.0, 2.0, 0), (0.0, 2.0, 1)]))
    assert {entry.kind: entry.exposed for entry in made.entries} == pytest.approx({"GEMM": 1.0, "attention": 1.0})


@pytest.fixture
def gaps(tmp_path: Path) -> dict[str, float]:
    made = Made()
    made.kernel(GEMM, 100, 50, launch=10)
    made.kernel(GEMM, 152, 48, launch=20)  # follows at once
    made.host("cudaStreamSynchronize", 30, 172, cat="cuda_runtime")
    made.kernel(GEMM, 230, 70, launch=210)  # 30 µs: the host had waited until 202
    made.kernel(GEMM, 340, 60, launch=330)  # 40 µs: launched late
    made.kernel(GEMM, 450, 50, launch=335)  # 50 µs: launched before the device ran dry
    trace = read(made.write(tmp_path / "t.json"))
    part = chosen(trace)
    return {reason: 1e6 * seconds for reason, seconds in idle(trace, part, account(part)).items()}


def test_a_gap_has_the_reason_of_what_ended_it(gaps: dict[str, float]) -> None:
    assert gaps == pytest.approx({BETWEEN: 2.0, SYNC: 30.0, LAUNCH: 40.0, OTHERS: 50.0})
