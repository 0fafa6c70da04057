"""Laws of interpolating measured tables: monotone in work, fading beyond reach, streams, left-out errors, speed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projector.hardware.catalogue import gpu
from projector.hardware.efficiency import load
from projector.kernels import neighbours
from projector.kernels.neighbours import REACH, bounded, nearest
from projector.kernels.recorded import Recorded, left_out
from projector.kernels.simulate import Simulated
from projector.kernels.tables import read
from projector.mechanisms import Execution
from projector.operators.types import Gemm, Stream

ROOT = Path(__file__).resolve().parents[3]
TABLES = ROOT / "measured" / "kernels"
SCATTER = 1.06  # what equal kernels of one table may differ by
SIZES = st.integers(256, 16384)
RECORDED: dict[str, Recorded] = {}


def simulated(name: str, family: str) -> Simulated:
    attention = "fa2" if family == "cublaslt" else "aiter"
    return Simulated(gpu(name), load(name), Execution.of(kernels={"gemm": family, "attention": attention}))


def recorded(name: str, family: str) -> Recorded:
    return RECORDED.setdefault(name, Recorded(gpu(name), simulated(name, family), TABLES))


@pytest.mark.parametrize(("name", "family"), [("a100_pcie_80gb", "cublaslt"), ("mi355x", "hipblaslt")])
def test_no_shape_beats_a_smaller_measured_one(name: str, family: str) -> None:
    """Every pair of a measured shape and a larger unmeasured one near it, beyond the scatter of the table itself."""
    rows = [row for row in read(TABLES / name) if isinstance(row.op, Gemm) and row.op.dtype == "bf16"]
    own = [row for row in rows if row.family == family and row.op.layout == "TN" and row.op.out_bytes == 2.0]  # type: ignore[union-attr]
    random = np.random.default_rng(2)
    chosen = random.choice(len(own), 300)
    larger = []
    for i in chosen:
        op = own[i].op
        assert isinstance(op, Gemm)
        grown = random.uniform(1, 1.3, 3)
        larger.append(Gemm(name="", m=int(op.m * grown[0]), n=int(op.n * grown[1]), k=int(op.k * grown[2])))
    took = recorded(name, family).times(larger).seconds
    smaller = np.array([own[i].seconds for i in chosen])
    assert (took * SCATTER >= smaller).mean() > 0.97  # the rest: neighbours of the table that contradict each other


@settings(max_examples=60)
@given(SIZES, SIZES, SIZES, st.sampled_from("mnk"), st.floats(1.3, 4.0))
def test_more_work_takes_longer_beyond_the_scatter(m: int, n: int, k: int, axis: str, factor: float) -> None:
    """Between interpolated shapes: neighbours change, so a step of some percent either way is within the scatter."""
    small = Gemm(name="", m=m, n=n, k=k)
    grown = {"m": int(m * factor), "n": int(n * factor), "k": int(k * factor)}[axis]
    large = Gemm(name="", m=grown if axis == "m" else m, n=grown if axis == "n" else n, k=grown if axis == "k" else k)
    one, two = recorded("a100_pcie_80gb", "cublaslt").times([small, large]).seconds
    assert two * 1.1 >= one


def test_bounds_hold_between_measured_neighbours() -> None:
    points = np.log(np.array([[1024.0, 1024, 1024, 1], [1200.0, 1200, 1200, 1]]))
    wanted = np.log(np.array([[1100.0, 1100, 1100, 1], [1024.0, 1024, 1024, 1], [1100.0, 1000, 1100, 1]]))
    near = nearest(points, wanted)
    measured = np.array([10.0, 12.0])
    low = bounded(np.array([1.0, 1.0, 1.0]), near, points, wanted, measured)
    high = bounded(np.array([99.0, 99.0, 99.0]), near, points, wanted, measured)
    assert low.tolist() == pytest.approx([10.0 / 1.05, 1.0, 1.0])  # the second was measured, the third is not larger
    assert high.tolist() == pytest.approx([12.0 * 1.05, 99.0, 12.0 * 1.05])


def test_neighbours_that_contradict_each_other_bound_nothing() -> None:
    points = np.log(np.array([[1024.0, 1024, 1024, 1], [1200.0, 1200, 1200, 1]]))
    wanted = np.log(np.array([[1100.0, 1100, 1100, 1]]))
    near = nearest(points, wanted)
    assert bounded(np.array([5.0]), near, points, wanted, np.array([20.0, 10.0])).tolist() == [5.0]


def test_trust_fades_from_the_reach_to_twice_the_reach() -> None:
    points = np.zeros((1, 4))
    wanted = np.array([[distance * REACH, 0.0, 0.0, 0.0] for distance in (0.0, 0.99, 1.5, 1.99, 2.5)])
    near = nearest(points, wanted)
    assert near.trust.tolist() == pytest.approx([1.0, 1.0, 0.5, 0.01, 0.0])
    assert near.reached.tolist() == [True, True, False, False, False]


def test_the_tree_and_the_pairs_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy")
    random = np.random.default_rng(4)
    points, wanted = random.uniform(5, 9, (400, 4)), random.uniform(5, 9, (300, 4))
    pairs = nearest(points, wanted)
    monkeypatch.setattr(neighbours, "_TREE", 0)
    tree = nearest(points, wanted)
    np.testing.assert_array_equal(pairs.rows, tree.rows)
    np.testing.assert_allclose(pairs.weights, tree.weights, rtol=1e-9)


def test_streams_are_recorded() -> None:
    model = simulated("h100_sxm", "cublaslt")
    found = Recorded(gpu("h100_sxm"), model, TABLES)
    measured = next(
        row for row in read(TABLES / "h100_sxm") if row.op == Stream(name="", kind="reduce", read=2**29, write=0)
    )
    twice = Stream(name="x", kind="reduce", read=2.0**30, write=0.0)
    norm = Stream(name="x", kind="norm", read=2.0**29, write=0.0)
    result = found.times([measured.op, twice, norm])
    assert result.measured.tolist() == [True, True, False]
    assert result.seconds[0] == pytest.approx(measured.seconds, rel=1e-9)
    assert result.seconds[1] / result.seconds[0] == pytest.approx(2.0, rel=0.03)


def test_rates_fitted_by_a_source_are_no_measured_shape() -> None:
    found = Recorded(gpu("b200"), simulated("b200", "cublaslt"), TABLES)
    op = Stream(name="x", kind="permute", read=2.0**30, write=2.0**30)
    assert not found.times([op]).measured[0]


def test_left_out_errors_by_kind() -> None:
    model = simulated("a100_pcie_80gb", "cublaslt")
    kinds = {each.kind: each for each in left_out(gpu("a100_pcie_80gb"), model, TABLES)}
    classes = left_out(gpu("a100_pcie_80gb"), model, TABLES, by_class=True)
    assert {"gemm", "attention"} <= set(kinds)
    dense = kinds["gemm"]
    assert dense.rows == sum(each.rows for each in classes if each.kind == "gemm")
    assert len(dense.errors) == dense.covered == len(dense.flops)
    assert dense.median <= dense.p90
    assert dense.mape < 0.05


def test_a_hundred_thousand_look_ups() -> None:
    random = np.random.default_rng(8)
    sizes = np.floor(2.0 ** random.uniform(8, 13, (100_000, 3))).astype(int).tolist()
    ops = [Gemm(name="", m=m, n=n, k=k, dtype="fp8", scaling="blockwise") for m, n, k in sizes]
    found = Recorded(gpu("mi300x"), simulated("mi300x", "ck"), TABLES)
    result = found.times(ops)
    assert result.measured.mean() > 0.3


def test_what_a_short_run_gained_is_taken_off_inside_a_step(root: Path) -> None:
    device, execution = gpu("b200"), Execution.of(kernels={"gemm": "cublaslt"})
    inside, alone = (Simulated(device, load("b200"), execution, flag) for flag in (False, True))
    op = Gemm(name="g", m=4096, n=7168, k=4096)
    folder = root / "measured" / "kernels"
    as_timed = Recorded(device, alone, folder).times([op]).seconds[0]
    sustained = Recorded(device, inside, folder, alone=alone).times([op]).seconds[0]
    gain = inside.times([op]).seconds[0] / alone.times([op]).seconds[0]
    assert gain > 1.05
    assert sustained == pytest.approx(as_timed * gain, rel=0.02)
