"""The tile model of GEMMs: bounds of physics, monotony, batching, kernel classes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from asked import refusal
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled

from harness.kernels import sets
from projector.hardware.catalogue import gpu
from projector.hardware.efficiency import load
from projector.kernels import gemm
from projector.kernels.simulate import Simulated
from projector.kernels.tables import read
from projector.kernels.tiles import TILES, parse, tiles
from projector.mechanisms import Execution
from projector.operators.types import Gemm, Stream
from tests.gemm_reference import seconds as reference

GPUS = ("a100_sxm_80gb", "h100_sxm", "b200", "gb300", "mi250x", "mi300x", "mi355x")
SIZES = st.integers(1, 20_000)


def model(name: str, family: str = "") -> Simulated:
    return Simulated(gpu(name), load(name), Execution.of(kernels={"gemm": family}))


def seconds(name: str, *ops: Gemm) -> np.ndarray:
    return model(name).times(ops).seconds


@pytest.mark.parametrize(("name", "low", "high"), tabled("kernels", "rates_of_large_products"))
def test_large_bf16_products_run_at_a_training_rate(name: str, low: float, high: float) -> None:
    """Best published and typical rates, TFLOP/s at 8192³ (Azure AI-benchmarking-guide, MAMF, AITER, SimuMax)."""
    op = Gemm(name="g", m=8192, n=8192, k=8192)
    assert low < op.flops / seconds(name, op)[0] / 1e12 < high


@pytest.mark.parametrize("name", ["b200", "gb200", "b300", "gb300"])
def test_scales_of_32_elements_cost_every_blackwell_the_same_share(name: str) -> None:
    """2,677 against 2,814 TFLOP/s: TransformerEngine's docs/examples/gemm_profiling, B300, operands quantised beforehand."""
    one = Gemm(name="g", m=15872, n=16384, k=4096, dtype="fp8", scaling="tensorwise")
    plain, scaled = seconds(name, one, replace(one, dtype="mxfp8", scaling=""))
    assert plain / scaled == pytest.approx(2677 / 2814, rel=0.02)


def test_block_scaled_fp8_is_slower_than_one_scale() -> None:
    for name in ("h100_sxm", "mi300x", "mi355x"):
        op = Gemm(name="g", m=8192, n=8192, k=8192, dtype="fp8", scaling="tensorwise")
        assert np.less(*seconds(name, op, replace(op, scaling="blockwise"))), name


def test_short_reductions_lose_efficiency() -> None:
    for name in GPUS:
        shapes = [Gemm(name="g", m=8192, n=8192, k=k) for k in (256, 1024, 4096)]
        rates = [op.flops / t for op, t in zip(shapes, seconds(name, *shapes), strict=True)]
        assert rates[0] < rates[1] < rates[2], name
        assert rates[0] < 0.85 * rates[2], name


def test_split_k_helps_where_the_grid_is_small() -> None:
    op = Gemm(name="g", m=256, n=256, k=65536)
    whole_tile = 2 * 256 * 128 * 65536 / (gpu("h100_sxm").peak_of("bf16") / 132)
    assert seconds("h100_sxm", op)[0] < whole_tile / 2


def test_family_constants_override_the_general_ones() -> None:
    op = Gemm(name="g", m=8192, n=8192, k=8192)
    asm, library = (model("mi355x", family).times([op]).seconds[0] for family in ("asm", "hipblaslt"))
    assert asm < library


shares = st.floats(0.0, 1.0)
laws = st.builds(
    gemm.GemmConstants, rate=st.floats(1e13, 5e15), bandwidth=st.floats(1e11, 8e12), prologue=st.floats(0.0, 1e-5),
    prologue_floor=st.floats(0.0, 2e-6), launch=st.floats(0.0, 1e-5), waves=shares, perimeter=shares,
    iteration=st.floats(0.0, 0.5), exposed=shares, cold=shares, split=st.floats(0.0, 1e-5),
    split_bytes=st.floats(0.0, 40.0), burst=st.floats(0.0, 0.5), burst_decay=st.floats(1e-5, 1e-3),
    k_bytes=st.sampled_from([0.53125, 1.0, 2.0, 4.0]), units=st.sampled_from([80.0, 132.0, 148.0, 304.0]),
)  # fmt: skip


@given(
    chosen=st.lists(laws, min_size=1, max_size=3),
    shapes=st.lists(st.tuples(SIZES, SIZES, SIZES, st.integers(1, 8)), min_size=1, max_size=6),
    catalogue=st.sampled_from(sorted(TILES)),
    writes=st.sampled_from([1.0, 2.0]),
)
def test_the_arrays_say_what_the_law_says(
    chosen: list[gemm.GemmConstants], shapes: list[tuple[int, int, int, int]], catalogue: str, writes: float
) -> None:
    found = parse(TILES[catalogue])
    index = np.arange(len(shapes)) % len(chosen)
    m, n, k, batch = np.array(shapes, dtype=np.float64).T
    size = np.array([chosen[i].k_bytes for i in index])
    out, times = np.full(len(m), 4.0), np.full(len(m), writes)
    got = gemm.seconds(gemm.GemmShapes(m, n, k, batch, size, out, times), chosen, index, found)
    for i, shape in enumerate(shapes):
        want = reference(*map(float, shape), 4.0, writes, chosen[index[i]], found)
        assert got[i] == pytest.approx(want, rel=1e-12)


def test_a_short_product_alone_runs_above_the_clock_that_a_step_sustains() -> None:
    """B200: figures timed through a framework, a few repetitions in a row (see the efficiency file)."""
    device, execution = gpu("b200"), Execution.of(kernels={"gemm": "cublaslt"})
    short, long = (Gemm(name="g", m=4096, n=size, k=4096) for size in (4096, 4096 * 64))
    alone, inside = (Simulated(device, load("b200"), execution, flag).times([short, long]).seconds for flag in (1, 0))
    gain = inside / alone - 1.0
    assert gain[0] > 0.1
    assert 0.0 <= gain[1] < 0.01


def test_catalogues_are_complete() -> None:
    for arch in ("volta", "ampere", "hopper", "blackwell", "blackwell_ultra", "gfx90a", "gfx942", "gfx950", "x86_64"):
        for dtype in ("bf16", "fp16", "fp8", "tf32", "fp32", "mxfp8", "mxfp4"):
            found = tiles(arch, "hipblaslt", dtype)
            assert len(found.rows) == len(found.columns) == len(found.units) >= 6
            assert (found.area <= 1.0).all()
    for key, text in TILES.items():
        assert (parse(text).depth >= 16).all(), key


def test_the_closest_catalogue_wins() -> None:
    assert tiles("gfx950", "asm", "bf16").rows.max() == 256
    assert len(tiles("gfx942", "opus_preshuffled", "fp8", "blockwise").rows) == 1
    assert tiles("gfx950", "no_such_library", "fp8", "blockwise").rows.max() == 128
    assert tiles("gfx90a", "hipblaslt", "fp16").rows.tolist() == tiles("gfx942", "hipblaslt", "bf16").rows.tolist()
    assert tiles("blackwell_ultra", "cublaslt", "nvfp4").depth.tolist() == [[256.0]] * 17


@pytest.mark.parametrize(
    "key", [key for key in TILES if key.split(".")[0] not in ("gfx942", "gfx950") and "block" not in key]
)
def test_a_library_may_compute_the_transposed_product(key: str) -> None:
    found = parse(TILES[key])
    pairs = set(zip(found.rows[:, 0], found.columns[:, 0], found.units[:, 0], strict=True))
    assert pairs == {(columns, rows, units) for rows, columns, units in pairs}


@pytest.mark.parametrize("text", ["128x128", "axbxc", "1x2x3x4", "128x128x64/two"])
def test_a_malformed_tile_is_refused(text: str) -> None:
    refusal(parse, text, kind=ValueError)


# Single terms of the kernel laws in closed form: whole waves, an accumulated output, one fill for each launch.

ONE_TILE = parse("128x128x64")
# Ten units, no memory limit, no fixed costs: a product takes whole rounds of ten tiles.
LAW = gemm.GemmConstants(
    rate=1e12, bandwidth=1e18, prologue=0.0, prologue_floor=0.0, launch=0.0, waves=1.0, perimeter=0.0, iteration=0.0,
    exposed=0.0, cold=0.0, split=1.0, split_bytes=8.0, burst=0.0, burst_decay=1e-3, k_bytes=2.0, units=10.0,
)  # fmt: skip


def took(law: gemm.GemmConstants, rows: int, k: int = 64, writes: float = 1.0) -> float:
    columns = (np.array([value]) for value in (128.0 * rows, 128.0, float(k), 1.0, 2.0, 4.0, writes))
    return float(gemm.seconds(gemm.GemmShapes(*columns), [law], np.zeros(1, dtype=int), ONE_TILE)[0])


@pytest.mark.parametrize(("tiles", "rounds"), [(1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (21, 3)])
def test_tiles_run_in_whole_waves(tiles: int, rounds: int) -> None:
    one = 2 * 128 * 128 * 64 * 10 / 1e12
    assert took(LAW, tiles) == pytest.approx(rounds * one)
    assert took(replace(LAW, waves=0.0), tiles) == pytest.approx(max(1.0, tiles / 10) * one)
    assert took(replace(LAW, waves=0.5), tiles) == pytest.approx((rounds + max(1.0, tiles / 10)) / 2 * one)


def test_a_tile_that_is_not_full_costs_a_full_one() -> None:
    shape = (np.array([value]) for value in (129.0, 128.0, 64.0, 1.0, 2.0, 4.0, 1.0))
    part = gemm.seconds(gemm.GemmShapes(*shape), [replace(LAW, units=1.0)], np.zeros(1, dtype=int), ONE_TILE)
    assert float(part[0]) == pytest.approx(took(replace(LAW, units=1.0), 2))


def test_an_accumulated_output_is_read_and_written() -> None:
    """The share of the output that the loop does not hide: 4 bytes an element, twice where C is read as well."""
    law = replace(LAW, exposed=0.25, bandwidth=1e12)
    output = 128.0 * 10 * 128 * 4 / 1e12
    deep = 64 * 100
    bare = took(replace(law, exposed=0.0), 10, deep)
    assert took(law, 10, deep) - bare == pytest.approx(0.25 * output)
    assert took(law, 10, deep, writes=2.0) - bare == pytest.approx(0.5 * output)


def test_a_product_bound_by_memory_pays_for_the_output_it_reads_too() -> None:
    law = replace(LAW, bandwidth=1e6)
    output = 128.0 * 10 * 128 * 4 / 1e6
    assert took(law, 10, writes=2.0) - took(law, 10) == pytest.approx(output)


def test_every_launch_of_a_stream_pays_its_fill() -> None:
    efficiency = load("h100_sxm")
    model = Simulated(gpu("h100_sxm"), efficiency, Execution())
    ops = [Stream(name="s", kind="norm", read=1e6, write=1e6, launches=n) for n in (1, 2, 11)]
    one, two, eleven = model.times(ops).seconds
    assert two - one == pytest.approx(efficiency.get("stream.fill_us", 2.0) * 1e-6)
    assert eleven - one == pytest.approx(10 * (two - one))


def test_a_table_of_large_products_fits_the_rate_alone(root: Path) -> None:
    """What a tile costs beside its loop shows in small products; no table without them may set it for small ones."""
    rows = read(root / "measured" / "kernels" / "mi355x")
    known = [row for row in rows if row.family == "hipblaslt" and isinstance(row.op, Gemm) and row.op.dtype == "bf16"]
    large = [row for row in known if row.op.flops > sets.LARGE]  # type: ignore[union-attr]
    assert len(large) >= sets.MANY
    keys = [[key for each in sets.gemm(some) for key in each.keys] for some in (known, large)]
    assert "gemm.prologue_us.bf16" in keys[0]
    assert keys[1] == ["gemm.loop.bf16"]
