"""Laws of the grouped GEMM model: any spread of tokens over experts, its floors, and what it is for one expert."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projector.errors import InputError
from projector.hardware.catalogue import gpu
from projector.hardware.efficiency import load
from projector.hardware.types import Efficiency
from projector.kernels import grouped
from projector.kernels.simulate import Simulated
from projector.kernels.token_spread import flatten
from projector.mechanisms import Execution
from projector.operators.types import GroupedGemm
from projector.parameter import Parameter

OP = GroupedGemm(name="e", groups=8, rows=8 * 1024, n=4096, k=2048)
BACKENDS = st.sampled_from(("fused", "multi_stream", "loop"))
LAYOUTS = st.sampled_from(("TN", "NN", "NT"))
DEVICES = st.sampled_from(("h100_sxm", "b200", "mi355x", "a100_pcie_80gb"))
LOADS = st.lists(st.integers(0, 3000), min_size=2, max_size=12)


def model(name: str = "h100_sxm") -> Simulated:
    return Simulated(gpu(name), load(name), Execution())


def seconds(op: GroupedGemm, name: str = "h100_sxm") -> float:
    return float(model(name).times([op]).seconds[0])


def spread(op: GroupedGemm, loads: list[int]) -> GroupedGemm:
    return replace(op, groups=len(loads), rows=sum(loads), rows_per_group=tuple(loads))


@pytest.mark.parametrize("loads", [(1, 2), (1, 2, 3), (-1, 7), ()])
def test_loads_that_do_not_fit_the_operator_are_refused(loads: tuple[int, ...]) -> None:
    with pytest.raises(InputError) as caught:
        GroupedGemm(name="fc1", groups=2, rows=6, n=8, k=8, rows_per_group=loads)
    assert caught.value.problems[0].key == "rows_per_group"


def test_rows_without_a_spread_are_balanced() -> None:
    found = flatten([replace(OP, groups=3, rows=8), spread(OP, [5, 0, 5]), replace(OP, groups=2, rows=6)])
    cells = sorted(zip(found.owner.tolist(), found.rows.tolist(), found.count.tolist(), strict=True))
    assert cells == [(0, 2, 1), (0, 3, 2), (1, 0, 1), (1, 5, 2), (2, 3, 2)]
    assert found.total(found.rows, 3).tolist() == [8, 10, 6]


@settings(max_examples=40, deadline=None)
@given(BACKENDS, LAYOUTS, st.integers(1, 16), st.integers(0, 2000))
def test_a_stated_balanced_spread_is_no_spread(backend: str, layout: str, groups: int, each: int) -> None:
    op = replace(OP, groups=groups, rows=groups * each, backend=backend, layout=layout)
    assert seconds(op) == pytest.approx(seconds(replace(op, rows_per_group=(each,) * groups)), rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(BACKENDS, LAYOUTS, LOADS)
def test_the_order_of_experts_does_not_matter(backend: str, layout: str, loads: list[int]) -> None:
    op = replace(OP, backend=backend, layout=layout)
    assert seconds(spread(op, loads)) == pytest.approx(seconds(spread(op, sorted(loads))), rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(DEVICES, BACKENDS, LAYOUTS, LOADS, st.integers(0, 11), st.integers(1, 500))
def test_more_tokens_never_take_less_time(
    name: str, backend: str, layout: str, loads: list[int], which: int, more: int
) -> None:
    op = replace(OP, backend=backend, layout=layout)
    larger = list(loads)
    larger[which % len(loads)] += more
    one, two = model(name).times([spread(op, loads), spread(op, larger)]).seconds
    assert two >= one * (1 - 1e-12)


@settings(max_examples=60, deadline=None)
@given(DEVICES, BACKENDS, LAYOUTS, LOADS, st.booleans())
def test_no_faster_than_the_peak_or_the_memory(
    name: str, backend: str, layout: str, loads: list[int], accumulate: bool
) -> None:
    op = replace(spread(OP, loads), backend=backend, layout=layout, accumulate=accumulate and layout == "NT")
    took, device = seconds(op, name), gpu(name)
    busy = sum(rows > 0 for rows in loads)
    weights = busy * op.n * op.k * op.out_bytes * (2 if op.accumulate else 1)
    assert took >= op.flops / device.peak_of("bf16")
    assert took >= weights / device.memory_bandwidth


@settings(max_examples=60, deadline=None)
@given(DEVICES, BACKENDS, LAYOUTS, st.lists(st.integers(1, 12), min_size=2, max_size=12))
def test_balance_is_best_up_to_the_padding(name: str, backend: str, layout: str, tiles: list[int]) -> None:
    """Every expert of the balanced one may carry a tile of padding more, and end on a round of its own."""
    op = replace(OP, backend=backend, layout=layout)
    loads = [256 * count for count in tiles]
    uneven = spread(op, loads)
    padded = spread(op, [load + 256 for load in loads])
    even = replace(uneven, rows_per_group=None)
    found = model(name)
    took = found.times([even, uneven, padded]).seconds
    assert took[0] <= max(took[1] * 1.25, took[2])


def test_without_tails_balance_is_best() -> None:
    """Convex in an expert's rows: with whole rounds switched off and loads of whole tiles no spread beats the even."""
    smooth = {f"grouped.waves.{b}": Parameter(0.0, "derived", "") for b in ("loop", "multi_stream", "fused")}
    device = gpu("h100_sxm")
    base = load("h100_sxm")
    found = Simulated(device, Efficiency(gpu=base.gpu, parameters={**base.parameters, **smooth}), Execution())
    for backend in ("loop", "multi_stream", "fused"):
        op = replace(OP, backend=backend)
        even, *uneven = (spread(op, loads) for loads in ([1024] * 4, [512, 1536, 1024, 1024], [256, 256, 256, 3328]))
        times = found.times([even, *uneven]).seconds
        assert (times[1:] >= times[0] * 0.99).all()  # another tile may suit another load


@settings(max_examples=30, deadline=None)
@given(DEVICES, BACKENDS, LAYOUTS, st.integers(1, 20000), st.booleans())
def test_one_expert_is_a_dense_product_and_its_cost(
    name: str, backend: str, layout: str, rows: int, accumulate: bool
) -> None:
    op = replace(OP, groups=1, rows=rows, backend=backend, layout=layout, accumulate=accumulate and layout == "NT")
    found = model(name)
    dense = found.times([grouped.as_gemm(op)]).seconds[0]
    each = load(name).get(f"grouped.group_us.{backend}", 1.0) * 1e-6
    assert found.times([op]).seconds[0] == pytest.approx(dense + each, rel=1e-12)


def test_an_empty_expert_costs_an_issue_and_no_product() -> None:
    busy = [2048] * 4
    for backend in ("loop", "multi_stream", "fused"):
        op = replace(OP, backend=backend)
        few, with_empty, busier = (seconds(spread(op, loads)) for loads in (busy, [*busy, 0], [*busy, 1]))
        each = load("h100_sxm").get(f"grouped.group_us.{backend}", 1.0) * 1e-6
        assert with_empty == pytest.approx(few + each, rel=1e-12)
        assert busier > with_empty


def test_an_empty_experts_gradient_is_zeroed_unless_it_accumulates() -> None:
    op = replace(OP, layout="NT", backend="loop")
    stored = seconds(spread(op, [512, 512, 0])) - seconds(spread(op, [512, 512]))
    added = replace(op, accumulate=True, out_bytes=4.0)
    kept = seconds(spread(added, [512, 512, 0])) - seconds(spread(added, [512, 512]))
    assert stored > OP.n * OP.k * 2.0 / gpu("h100_sxm").memory_bandwidth
    assert kept == pytest.approx(load("h100_sxm").get("grouped.group_us.loop", 1.0) * 1e-6, rel=1e-9)


def test_fp32_main_gradients_cost_eight_bytes_an_element() -> None:
    """Where writing dominates, products hide alike: the difference is the traffic's."""
    op = replace(OP, layout="NT", groups=64, rows=64, n=7168, k=4096)
    added = replace(op, accumulate=True, out_bytes=4.0)
    c = grouped.constants(gpu("h100_sxm"), load("h100_sxm"), "", op)
    stored, more = grouped.seconds([op, added], [c, c])
    assert more - stored == pytest.approx(64 * 7168 * 4096 * (8.0 - 2.0) / c.bandwidth, rel=1e-9)


def test_batches_and_single_operators_agree() -> None:
    ops = [
        replace(spread(OP, list(loads)), backend=backend, layout=layout, name=f"{backend}{layout}")
        for backend in ("loop", "fused", "multi_stream")
        for layout in ("TN", "NN", "NT")
        for loads in np.random.default_rng(1).integers(0, 900, (4, 9)).tolist()
    ]
    together = model().times(ops).seconds
    np.testing.assert_allclose(together, [seconds(op) for op in ops], rtol=1e-12)


def test_a_short_run_by_itself_has_a_higher_clock_than_a_step() -> None:
    """The gain decays with the operator's own time, never reaches past the peak, and is none inside a step."""
    device, base = gpu("b200"), load("b200")
    changed = {
        "grouped.burst": Parameter(0.2, "derived", ""),
        "grouped.loop.multi_stream": Parameter(0.8, "derived", ""),
    }
    efficiency = Efficiency(gpu="b200", parameters={**base.parameters, **changed})
    ops = [replace(OP, rows=8 * each, k=8192) for each in (2048, 16384, 131072)]
    step, alone = (grouped.constants(device, efficiency, "", OP, alone) for alone in (False, True))
    gain = grouped.seconds(ops, [step] * 3) / grouped.seconds(ops, [alone] * 3) - 1.0
    assert step.burst == 0.0
    assert 0.2 >= gain[0] > gain[1] > gain[2] >= 0.0
    assert (grouped.seconds(ops, [alone] * 3) >= np.array([op.flops for op in ops]) / device.peak_of("bf16")).all()


@settings(max_examples=30, deadline=None)
@given(BACKENDS, LAYOUTS, LOADS, st.integers(0, 11), st.integers(1, 2000))
def test_more_tokens_take_longer_alone_too(backend: str, layout: str, loads: list[int], which: int, more: int) -> None:
    burst = {"grouped.burst": Parameter(0.5, "derived", "")}
    base = load("b200")
    efficiency = Efficiency(gpu="b200", parameters={**base.parameters, **burst})
    op = replace(OP, backend=backend, layout=layout)
    larger = list(loads)
    larger[which % len(loads)] += more
    c = grouped.constants(gpu("b200"), efficiency, "", op, alone=True)
    one, two = grouped.seconds([spread(op, loads), spread(op, larger)], [c, c])
    assert two >= one * (1 - 1e-12)
