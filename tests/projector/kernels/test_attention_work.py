"""The work list of attention against explicit enumeration: tiles counted one by one, then list-scheduled over units."""

import heapq
import math
from dataclasses import replace

import numpy as np
import pytest
from asked import refusal
from hypothesis import given
from hypothesis import strategies as st

from projector.hardware.catalogue import gpu, gpu_names
from projector.hardware.efficiency import load
from projector.hardware.efficiency_file import parse
from projector.hardware.types import Efficiency
from projector.kernels.attention import floor_sum, makespan, work
from projector.kernels.simulate import Simulated, arrange
from projector.mechanisms import Execution
from projector.operators.types import Attention, Gemm, GroupedGemm, Stream
from projector.parameter import Parameter


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


@given(
    queries=st.integers(1, 3000), keys=st.integers(1, 3000), rows=st.sampled_from([16, 64, 80, 96, 128, 192, 256]),
    columns=st.sampled_from([16, 64, 80, 112, 128, 144, 176, 224]), mask=st.sampled_from(["full", "causal", "window"]),
    width=st.integers(1, 2000), backward=st.booleans(),
)  # fmt: skip
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


@given(rows=st.sampled_from([64, 128, 192]), columns=st.sampled_from([16, 64, 128]), chunks=st.integers(1, 6))
def test_chunks_of_a_context_add_up(rows: int, columns: int, chunks: int) -> None:
    """Queries of chunk c against all keys so far (a causal chunk with an offset) execute what the whole does."""
    size = rows * columns // math.gcd(rows, columns)
    whole = work(*columns_of(size * chunks, size * chunks, rows, columns, -math.inf, 0)).blocks[0]
    parts = [
        work(*columns_of(size, size * (c + 1), rows, columns, -math.inf, size * c)).blocks[0] for c in range(chunks)
    ]
    assert sum(parts) == whole


@given(
    tiles=st.integers(1, 24), lists=st.integers(1, 40), units=st.integers(1, 60), cost=st.floats(0.1, 5.0),
    prologue=st.floats(0.0, 20.0), causal=st.booleans(), reverse=st.booleans(),
)  # fmt: skip
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


# A list that was made ready once gives what the list gives, under whatever constants.

PRODUCT = Gemm(name="p", m=4096, n=4096, k=4096)
GROUPED = GroupedGemm(name="g", groups=8, rows=8192, n=2048, k=4096)
OPS = (
    PRODUCT, GROUPED, replace(PRODUCT, layout="NN", m=128), replace(PRODUCT, dtype="fp8", n=1024),
    replace(PRODUCT, m=777), replace(PRODUCT, accumulate=True), replace(GROUPED, groups=1),
    replace(PRODUCT, layout="NN", n=640),
)  # fmt: skip


def model(**values: float) -> Simulated:
    stated = {key.replace("__", "."): Parameter(value, "fitted", "") for key, value in values.items()}
    efficiency = Efficiency(gpu="h100_sxm", parameters={**load("h100_sxm").parameters, **stated})
    return Simulated(gpu("h100_sxm"), efficiency, Execution.of())


def test_arranged_once_is_the_same_to_the_bit_under_all_constants() -> None:
    given = arrange(OPS)
    found = []
    for constants in ({}, {"clock__matrix": 0.3}, {"clock__matrix": 0.9}):
        whole = model(**constants).arranged(given)
        assert (whole == model(**constants).times(OPS).seconds).all()
        one_by_one = np.array([model(**constants).times([op]).seconds[0] for op in OPS])
        np.testing.assert_allclose(whole, one_by_one, rtol=1e-12)
        found.append(whole)
    assert (found[1] > found[2]).any(), "the constants are those of the model, not of the arrangement"


# Dispatch, memory and the memory-bound kernels of the analytical model.

FLASH = Attention(name="a", batch=1, heads=32, kv_heads=8, seq_q=4096, seq_k=4096, head_dim_qk=128, head_dim_v=128)
EXPERTS = GroupedGemm(name="e", groups=32, rows=32768, n=4096, k=7168, backend="multi_stream")
MIXED = (
    Gemm(name="g", m=4096, n=4096, k=4096), EXPERTS, FLASH, Stream(name="n", kind="norm", read=1e8, write=1e8),
    replace(FLASH, flash=False, seq_q=1024, seq_k=1024),
)  # fmt: skip


def model_of(name: str = "h100_sxm") -> Simulated:
    return Simulated(gpu(name), load(name), Execution())


def test_order_does_not_matter_and_nothing_is_measured() -> None:
    alone = [model_of().times([op]).seconds[0] for op in MIXED]
    together = model_of().times(MIXED)
    backwards = model_of().times(MIXED[::-1])
    np.testing.assert_allclose(together.seconds, alone, rtol=1e-12)
    np.testing.assert_allclose(backwards.seconds[::-1], alone, rtol=1e-12)
    assert not together.measured.any()
    assert (together.seconds > 0).all()


def test_grouped_backends_order_by_cost_per_group() -> None:
    few = replace(EXPERTS, groups=64, rows=8192)
    for name in ("h100_sxm", "b200", "mi355x"):
        fused, looped = model_of(name).times([replace(few, backend="fused"), replace(few, backend="loop")]).seconds
        assert fused < looped, name


def test_efficiency_files_give_shares_between_low_and_high() -> None:
    for name in gpu_names():
        for key, parameter in load(name).parameters.items():
            assert parameter.source, (name, key)
            assert parameter.low is not None, (name, key)
            assert parameter.high is not None, (name, key)
            assert parameter.low <= parameter.value <= parameter.high, (name, key)


def test_a_broken_efficiency_file_names_every_mistake() -> None:
    text = "parameters:\n  a: {value: fast, kind: guessed, source: x}\n  b: {value: 1, kind: derived, sauce: y}\n"
    caught = refusal(parse, text, "x.yaml")
    keys = {problem.key for problem in caught.problems}
    assert keys == {"parameters.a.value", "parameters.a.kind", "parameters.b.sauce", "parameters.b.source"}
    refusal(parse, "parameters: [", "x.yaml")
    refusal(parse, "", "x.yaml")
