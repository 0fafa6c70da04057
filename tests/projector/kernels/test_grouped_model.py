"""Laws of the grouped GEMM model: its floors, and what it is for one expert."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.hardware.catalogue import gpu
from projector.hardware.efficiency import load
from projector.hardware.types import Efficiency
from projector.kernels import grouped
from projector.kernels.grouped import flatten
from projector.kernels.simulate import Simulated
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
    """As many experts and rows, evenly."""
    return replace(op, groups=len(loads), rows=sum(loads))


def test_rows_are_balanced() -> None:
    found = flatten([replace(OP, groups=3, rows=8), replace(OP, groups=2, rows=6)])
    cells = sorted(zip(found.owner.tolist(), found.rows.tolist(), found.count.tolist(), strict=True))
    assert cells == [(0, 2, 1), (0, 3, 2), (1, 3, 2)]
    assert found.total(found.rows, 2).tolist() == [8, 6]


@given(DEVICES, BACKENDS, LAYOUTS, LOADS, st.integers(0, 11), st.integers(1, 2000), st.booleans())
def test_more_tokens_never_take_less_time(
    name: str, backend: str, layout: str, loads: list[int], which: int, more: int, alone: bool
) -> None:
    """In a step, and ``alone`` where a short run has a higher clock."""
    op = replace(OP, backend=backend, layout=layout)
    larger = list(loads)
    larger[which % len(loads)] += more
    parameters = {**load(name).parameters, **({"grouped.burst": Parameter(0.5, "derived", "")} if alone else {})}
    c = grouped.constants(gpu(name), Efficiency(gpu=name, parameters=parameters), "", op, alone=alone)
    one, two = grouped.seconds([spread(op, loads), spread(op, larger)], [c, c])
    assert two >= one * (1 - 1e-12)


@given(DEVICES, BACKENDS, LAYOUTS, LOADS, st.booleans())
def test_no_faster_than_the_peak_or_the_memory(
    name: str, backend: str, layout: str, loads: list[int], accumulate: bool
) -> None:
    op = replace(spread(OP, loads), backend=backend, layout=layout, accumulate=accumulate and layout == "NT")
    took, device = seconds(op, name), gpu(name)
    busy = min(len(loads), op.rows)
    weights = busy * op.n * op.k * op.out_bytes * (2 if op.accumulate else 1)
    assert took >= op.flops / device.peak_of("bf16")
    assert took >= weights / device.memory_bandwidth


@given(DEVICES, BACKENDS, LAYOUTS, st.integers(1, 20000), st.booleans())
def test_one_expert_is_a_dense_product_and_its_cost(
    name: str, backend: str, layout: str, rows: int, accumulate: bool
) -> None:
    op = replace(OP, groups=1, rows=rows, backend=backend, layout=layout, accumulate=accumulate and layout == "NT")
    found = model(name)
    dense = found.times([grouped.as_gemm(op)]).seconds[0]
    each = load(name).get(f"grouped.group_us.{backend}", 1.0) * 1e-6
    assert found.times([op]).seconds[0] == pytest.approx(dense + each, rel=1e-12)


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
