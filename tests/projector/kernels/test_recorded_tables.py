"""Measured tables: reading, exactness at measured shapes, reach, the error of interpolation, and how they are made."""

import csv
import runpy
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from asked import refusal
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled

from projector.hardware.catalogue import gpu, gpu_names
from projector.hardware.efficiency import load
from projector.io import files
from projector.kernels import nearest_shapes, tables
from projector.kernels.nearest_shapes import REACH, bounded, nearest
from projector.kernels.recorded import Recorded, available
from projector.kernels.simulate import Simulated
from projector.kernels.tables import Measured, read, tables_dir
from projector.mechanisms import Execution
from projector.operators.types import Attention, Gemm, GroupedGemm, Stream

HEADER = "family,dtype,scaling,layout,accumulate,out_bytes,m,n,k,batch,time_us,condition,source\n"


def fallback(name: str, gemm: str = "hipblaslt", attention: str = "aiter") -> Simulated:
    return Simulated(gpu(name), load(name), Execution.of(kernels={"gemm": gemm, "attention": attention}))


def table(folder: Path, *lines: str) -> Path:
    (folder / "mi300x").mkdir()
    (folder / "mi300x" / "gemm.csv").write_text(HEADER + "".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def test_the_repository_has_tables_of_catalogue_gpus(root: Path) -> None:
    folder = tables_dir(root / "tests")
    assert folder == root / "measured" / "kernels"
    names = {path.name for path in folder.iterdir() if path.is_dir()}
    assert {"b200", "a100_pcie_80gb", "mi300x", "mi355x", "h100_sxm"} <= names <= set(gpu_names())
    assert sum(path.stat().st_size for path in folder.rglob("*.csv")) < 6e6
    assert available("b200", folder)
    assert not available("v100_sxm_32gb", folder)


def test_measured_shapes_are_returned_as_measured(root: Path) -> None:
    folder = root / "measured" / "kernels"
    once: dict[object, list[float]] = {}
    rows = [row for row in read(folder / "mi355x") if row.family in ("hipblaslt", "aiter")]
    rows = [row for row in rows if isinstance(row.op, Attention) or row.op.out_bytes == 2.0]  # type: ignore[union-attr]
    for row in rows:
        once.setdefault(row.op, []).append(row.seconds)
    ops = [op for op, times in once.items() if len(times) == 1]
    assert len(ops) > 300
    found = Recorded(gpu("mi355x"), fallback("mi355x"), folder).times(ops)  # type: ignore[arg-type]
    assert found.measured.all()
    np.testing.assert_allclose(found.seconds, [once[op][0] for op in ops], rtol=1e-9)


def test_far_shapes_and_streams_fall_back(root: Path) -> None:
    model = fallback("mi355x")
    far = Gemm(name="g", m=3, n=100_000, k=17)
    other = Gemm(name="g", m=4096, n=4096, k=4096, layout="NT", accumulate=True, out_bytes=4.0)
    stream = Stream(name="s", kind="norm", read=1e8, write=1e8)
    flash = Attention(name="a", batch=1, heads=8, kv_heads=8, seq_q=4096, seq_k=4096, head_dim_qk=64, head_dim_v=64)
    found = Recorded(gpu("mi355x"), model, root / "measured" / "kernels").times([far, other, stream, flash])
    assert not found.measured.any()
    np.testing.assert_allclose(found.seconds, model.times([far, other, stream, flash]).seconds)


def test_between_two_shapes_the_models_error_is_interpolated(tmp_path: Path) -> None:
    ops = [Gemm(name="", m=m, n=4096, k=4096) for m in (4096, 6144, 8192)]
    model = fallback("mi300x")
    truth = model.times(ops).seconds * 1.3  # the device is 30 % slower than the model everywhere
    lines = [f"hipblaslt,bf16,,TN,0,2,{op.m},4096,4096,1,{t * 1e6},test,test" for op, t in zip(ops, truth, strict=True)]
    recorded = Recorded(gpu("mi300x"), model, table(tmp_path, lines[0], lines[2]))
    found = recorded.times([ops[1], replace(ops[1], m=int(8192 * np.exp(REACH) * 1.01))])
    assert found.measured.tolist() == [True, False]
    assert found.seconds[0] == pytest.approx(truth[1], rel=1e-6)


def test_rows_of_the_stacks_own_library_are_preferred(tmp_path: Path) -> None:
    cell = "bf16,,TN,0,2,4096,4096,4096,1"
    folder = table(tmp_path, f"asm,{cell},100,test,test", f"hipblaslt,{cell},200,test,test")
    op = Gemm(name="g", m=4096, n=4096, k=4096)
    for family, seconds in (("asm", 1e-4), ("hipblaslt", 2e-4)):
        found = Recorded(gpu("mi300x"), fallback("mi300x", family), folder).times([op])
        assert found.seconds[0] == pytest.approx(seconds, rel=1e-9)


def test_attention_of_another_family_is_not_measured(root: Path) -> None:
    op = Attention(name="a", batch=1, heads=32, kv_heads=8, seq_q=4096, seq_k=4096, head_dim_qk=128, head_dim_v=128)
    for family, expected in (("aiter", True), ("ck", False)):
        model = fallback("mi300x", attention=family)
        assert Recorded(gpu("mi300x"), model, root / "measured" / "kernels").times([op]).measured[0] == expected


def test_broken_tables_name_every_bad_row(tmp_path: Path) -> None:
    folder = table(
        tmp_path, "ck,bf16,,TN,0,2,x,1,1,1,5,a,b", "ck,bf16,,TN,0,2,1,1,1,1,5,a,b", "ck,bf16,,TN,0,2,1,1,1,1,-5,a,b"
    )
    assert [problem.where.rsplit(":", 1)[1] for problem in refusal(read, folder / "mi300x").problems] == ["2", "4"]


@pytest.mark.parametrize(
    ("name", "gemm", "attention", "dense", "flash"),
    [("a100_pcie_80gb", "cublaslt", "fa2", 0.05, 0.08), ("mi355x", "hipblaslt", "aiter", 0.065, 0.04)],
)
def test_leaving_one_shape_out(root: Path, name: str, gemm: str, attention: str, dense: float, flash: float) -> None:
    recorded = Recorded(gpu(name), fallback(name, gemm, attention), root / "measured" / "kernels")
    left = [each for each in recorded.leave_one_shape_out() if each.covered >= 5]
    plain = [each for each in left if each.name.startswith("gemm bf16") and each.rows > 30]
    masked = [each for each in left if each.name.startswith("attention")]
    assert plain
    assert masked
    assert np.average([e.mape for e in plain], weights=[e.covered for e in plain]) < dense
    assert np.average([e.mape for e in masked], weights=[e.covered for e in masked]) < flash


def test_the_tables_hold_what_the_converter_makes(root: Path, shared: Path, tmp_path: Path) -> None:
    """A table may have grown by measurements of this project since; what was converted must be in it unchanged."""
    runpy.run_path(str(root / "tools" / "import_kernel_tables.py"))["main"](shared / "kernels", tmp_path)
    for made in sorted(tmp_path.rglob("*.csv")):
        kept = root / "measured" / "kernels" / made.relative_to(tmp_path)
        rows, there = (list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) for path in (made, kept))
        stated = ({tuple((k, v) for k, v in row.items() if v) for row in some} for some in (rows, there))
        assert set.issubset(*stated), kept
        timed = not made.name.endswith(".sources.csv")
        assert all(row["source"] and (not timed or float(row["time_us"]) > 0) for row in rows)


def test_an_installed_package_carries_the_tables(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The build copies them to where :func:`tables_dir` looks when no checkout is near."""
    build = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    (target,) = [to for origin, to in build["force-include"].items() if origin == "measured/kernels"]
    assert root / target == tables.PACKAGED
    package = tmp_path / "site" / "projector" / "kernels"
    (package / "measured").mkdir(parents=True)
    monkeypatch.setattr(files, "_ROOT", tmp_path / "site")
    monkeypatch.setattr(tables, "PACKAGED", package / "measured")
    assert tables.tables_dir(tmp_path) == package / "measured"


# How far the analytical models are from the measured tables, by kernel class: levels achieved, plus margin.  Held-
# out errors of the same constants are printed by ``harness calibrate --kernels`` and kept in the efficiency files.


def errors(root: Path, name: str, family: str, kind: type, least: float, **fields: object) -> np.ndarray:
    def wanted(row: Measured) -> bool:
        if not isinstance(row.op, kind) or row.family != family or row.op.flops <= least:  # type: ignore[attr-defined]
            return False
        return all(getattr(row.op, key) == value for key, value in fields.items())

    rows = [row for row in read(root / "measured" / "kernels" / name) if wanted(row)]
    assert len(rows) >= 5
    model = Simulated(gpu(name), load(name), Execution.of(kernels={"gemm": family, "attention": family}), alone=True)
    return model.times([row.op for row in rows]).seconds / np.array([row.seconds for row in rows]) - 1.0


# Kinds by name, with the FLOP from which on a level holds: products, attention, and all grouped products.
KINDS = {"Gemm": (Gemm, 1e10), "Attention": (Attention, 1e11), "GroupedGemm": (GroupedGemm, 0.0)}


@pytest.mark.parametrize(("kind", "name", "family", "fields", "mape"), tabled("kernels", "levels_of_models"))
def test_levels(root: Path, kind: str, name: str, family: str, fields: dict[str, object], mape: float) -> None:
    of, least = KINDS[kind]
    error = errors(root, name, family, of, least, **fields)
    assert np.abs(error).mean() < mape
    assert of is not Gemm or abs(error.mean()) < 0.06


# Laws of interpolating measured tables: monotone in work, fading beyond reach, streams, left-out errors, speed.


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
    monkeypatch.setattr(nearest_shapes, "_TREE", 0)
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


def test_many_look_ups_at_once() -> None:
    random = np.random.default_rng(8)
    sizes = np.floor(2.0 ** random.uniform(8, 13, (20_000, 3))).astype(int).tolist()
    ops = [Gemm(name="", m=m, n=n, k=k, dtype="fp8", scaling="blockwise") for m, n, k in sizes]
    found = Recorded(gpu("mi300x"), simulated("mi300x", "ck"), TABLES)
    assert found.times(ops).measured.mean() > 0.3


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
