"""What holds for every product on every device: all of the catalogue, all operand types, all families with constants."""

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from projector.hardware import clock
from projector.hardware.catalogue import gpu, gpu_names
from projector.hardware.efficiency import load
from projector.hardware.types import Efficiency
from projector.kernels.constants import element_bytes
from projector.kernels.simulate import Simulated
from projector.kernels.tiles import Catalogue, tiles
from projector.mechanisms import Execution
from projector.operators.types import Gemm

TIGHT = 1.0 + 1e-9
SCALINGS = {"fp8": ("tensorwise", "rowwise", "blockwise"), "mxfp8": ("mxfp8",), "mxfp4": ("mxfp4",)}
NARROW = ("fp8", "mxfp8", "mxfp4", "nvfp4", "fp4")
DTYPES = {"bf16", "fp16", *NARROW, "tf32", "fp32", "int8"}
STEMS_LESS_IS_SLOWER = ("clock.matrix", "gemm.loop", "gemm.memory")
STEMS_MORE_IS_SLOWER = (
    *("gemm.prologue_us", "gemm.prologue_floor_us", "gemm.launch_us", "gemm.waves", "gemm.exposed", "gemm.cold"),
    *("gemm.perimeter", "gemm.iteration", "gemm.split_us", "gemm.split_bytes", "gemm.small_tile"),
)


def library(name: str) -> str:
    """The library that frameworks call on a device."""
    return "hipblaslt" if gpu(name).vendor == "amd" else "cublaslt"


@cache
def families(name: str) -> tuple[str, ...]:
    """Every family with constants of its own on a device, and the vendor's library."""
    words = (key.split(".") for key in load(name).parameters if key.startswith("gemm."))
    named = {parts[2] for parts in words if len(parts) > 3 and parts[2] not in DTYPES}
    return (library(name), *sorted(named))


@cache
def model(name: str, family: str, mhz: float | None = None) -> Simulated:
    device, efficiency = gpu(name), load(name)
    if mhz is not None:
        device, efficiency = clock.settle(device, efficiency, mhz=mhz)
    return Simulated(device, efficiency, Execution.of(kernels={"gemm": family}))


@dataclass(frozen=True)
class Case:
    """One product on one device by one family."""

    name: str
    family: str
    op: Gemm

    def seconds(self, *ops: Gemm) -> np.ndarray:
        return model(self.name, self.family).times(ops or (self.op,)).seconds

    @property
    def catalogue(self) -> Catalogue:
        return tiles(gpu(self.name).arch, self.family, self.op.dtype, self.op.scaling)


def size(most: int) -> st.SearchStrategy[int]:
    """Sizes spread evenly over their magnitudes, as shapes of models are."""
    return st.floats(0.0, np.log2(most)).map(lambda power: int(2.0**power))


@st.composite
def cases(draw: st.DrawFn, dtypes: tuple[str, ...] = (), batched: bool = True) -> Case:
    name = draw(st.sampled_from([n for n in gpu_names() if not dtypes or {*dtypes} & {*gpu(n).peak}]))
    dtype = draw(st.sampled_from([d for d in sorted(gpu(name).peak) if not dtypes or d in dtypes]))
    op = Gemm(
        name="product", m=draw(size(32768)), n=draw(size(32768)), k=draw(size(32768)),
        batch=draw(st.sampled_from((1, 1, 1, 3, 16))) if batched else 1, dtype=dtype,
        scaling=draw(st.sampled_from(SCALINGS.get(dtype, ("",)))), layout=draw(st.sampled_from(("TN", "NN", "NT"))),
        out_bytes=draw(st.sampled_from((2.0, 4.0))), accumulate=draw(st.booleans()),
    )  # fmt: skip
    return Case(name, draw(st.sampled_from(families(name))), op)


many = settings(max_examples=40)


def test_every_device_has_products_of_every_one_of_its_types() -> None:
    assert len(gpu_names()) >= 22
    for name in gpu_names():
        for dtype in gpu(name).peak:
            for scaling in SCALINGS.get(dtype, ("",)):
                for family in families(name):
                    op = Gemm(name="product", m=4096, n=4096, k=4096, dtype=dtype, scaling=scaling)
                    assert np.isfinite(Case(name, family, op).seconds()).all(), (name, family, dtype, scaling)


@many
@given(case=cases())
def test_no_product_beats_the_instructions_at_the_highest_clock(case: Case) -> None:
    device = gpu(case.name)
    highest = max(device.boost_clock_mhz / device.peak_clock_mhz, 1.0)
    fastest = model(case.name, case.family, device.boost_clock_mhz).times([case.op]).seconds[0]
    for took in (case.seconds()[0], fastest):
        assert took >= case.op.flops / (device.peak_of(case.op.dtype) * highest)


@many
@given(case=cases())
def test_no_product_beats_the_memory(case: Case) -> None:
    op = case.op
    operands = (op.m * op.k + op.n * op.k) * element_bytes(op.dtype)
    output = op.m * op.n * op.out_bytes * (2 if op.accumulate else 1)
    assert case.seconds()[0] >= op.batch * (operands + output) / gpu(case.name).memory_bandwidth


@many
@given(case=cases(), axis=st.sampled_from(("m", "n", "k", "batch")), more=size(8192))
@example(case=Case("b200", "cublaslt", Gemm(name="deeper", m=1, n=1, k=128, dtype="fp32")), axis="k", more=128)
def test_more_work_takes_no_less_time(case: Case, axis: str, more: int) -> None:
    """Up to one tile: an extent that grows by at least the largest tile's side cannot make the product faster."""
    tile = {"m": case.catalogue.rows, "n": case.catalogue.columns, "k": case.catalogue.depth}
    step = max(more, int(tile[axis].max())) if axis in tile else 1 + more % 31
    small, large = case.seconds(case.op, replace(case.op, **{axis: getattr(case.op, axis) + step}))
    assert large * TIGHT >= small


@many
@given(case=cases(batched=False), count=st.integers(2, 64))
@example(case=Case("a100_pcie_80gb", "cublaslt", Gemm(name="wide", m=1, n=32768, k=512, dtype="fp32")), count=2)
def test_a_batch_takes_no_longer_than_its_products_one_by_one(case: Case, count: int) -> None:
    one, together = case.seconds(case.op, replace(case.op, batch=count))
    assert together <= count * one * TIGHT


def symmetric(found: Catalogue) -> bool:
    columns = [column.ravel().tolist() for column in (found.rows, found.columns, found.depth, found.units)]
    shapes = set(zip(*columns, strict=True))
    return shapes == {(columns, rows, depth, units) for rows, columns, depth, units in shapes}


@many
@given(case=cases())
def test_rows_and_columns_change_places_where_the_tiles_do(case: Case) -> None:
    """Exact where the family carries every tile in both orientations. Elsewhere the device is as symmetric as ever and
    the library is not: one orientation may have to round up to a tile that the other fits, never past a whole one.
    """
    turned, straight = case.seconds(replace(case.op, m=case.op.n, n=case.op.m), case.op)
    if symmetric(case.catalogue):
        assert turned == pytest.approx(straight, rel=1e-9)
    elif min(case.op.m, case.op.n) >= 4096:
        assert turned == pytest.approx(straight, rel=0.25)


@many
@given(case=cases())
def test_accumulating_is_not_faster(case: Case) -> None:
    plain, summed = case.seconds(replace(case.op, accumulate=False), replace(case.op, accumulate=True))
    assert plain <= summed * TIGHT


@many
@given(case=cases(), low=st.floats(300.0, 2000.0), gain=st.floats(1.0, 4.0))
def test_a_higher_clock_is_not_slower_nor_more_than_proportionally_faster(case: Case, low: float, gain: float) -> None:
    slow, fast = (
        model.__wrapped__(case.name, case.family, mhz).times([case.op]).seconds[0] for mhz in (low, low * gain)
    )
    assert fast <= slow * TIGHT
    assert slow <= gain * fast * TIGHT


@many
@given(case=cases(), low=st.floats(0.3, 1.0), high=st.floats(0.3, 1.0))
def test_the_clock_moves_what_it_computes_and_nothing_else(case: Case, low: float, high: float) -> None:
    """A product whose instructions take a thousandth of its time at the lower clock does not feel it."""
    device = gpu(case.name)
    thin = replace(case.op, m=max(case.op.m, 16384), n=max(case.op.n, 16384), k=1, accumulate=False)
    slow, fast = (
        model.__wrapped__(case.name, case.family, share * device.peak_clock_mhz).times([thin]).seconds[0]
        for share in (min(low, high), max(low, high))
    )
    padded = -(-thin.m // 256) * -(-thin.n // 256) * 256**2 * 512 * 2.0 * thin.batch  # whole tiles, one deep iteration
    compute = padded / (device.peak_of(thin.dtype) * 0.05 * min(low, high))
    assert slow - fast <= compute


# -- types -------------------------------------------------------------------------------------------------------------


def bare(efficiency: Efficiency) -> Efficiency:
    """The same constants for every class: keys that name a family, a type or a scheme left out."""
    kept = {
        key: value
        for key, value in efficiency.parameters.items()
        if not (key.startswith("gemm.") and key.count(".") > 1 and not key.startswith("gemm.layout"))
    }
    return replace(efficiency, parameters=kept)


def alike(a: Catalogue, b: Catalogue) -> bool:
    """Whether two families carry the same tiles, depth in bytes apart."""
    return all(
        x.shape == y.shape and (x == y).all() for x, y in ((a.rows, b.rows), (a.columns, b.columns), (a.units, b.units))
    )


@many
@given(case=cases(dtypes=NARROW))
def test_narrow_types_are_not_slower_for_the_same_constants_and_tiles(case: Case) -> None:
    wide = replace(case.op, dtype="bf16", scaling="")
    if not alike(case.catalogue, Case(case.name, case.family, wide).catalogue):
        return
    same = Simulated(gpu(case.name), bare(load(case.name)), Execution.of(kernels={"gemm": case.family}))
    # The last iteration of a narrow type covers more of K: up to one tile.
    step = int(case.catalogue.depth.max())
    k = -(-case.op.k // step) * step
    a, b = same.times([replace(case.op, k=k), replace(wide, k=k)]).seconds
    assert a <= b * TIGHT


@many
@given(case=cases(dtypes=NARROW))
def test_where_a_narrow_type_is_slower_a_sourced_constant_says_so(case: Case) -> None:
    wide = replace(case.op, dtype="bf16", scaling="")
    step = int(case.catalogue.depth.max())
    k = -(-case.op.k // step) * step
    narrow, plain = case.seconds(replace(case.op, k=k), replace(wide, k=k))
    if narrow <= plain * TIGHT:
        return
    same_tiles = alike(case.catalogue, Case(case.name, case.family, wide).catalogue)
    assert worse(case) or not same_tiles, f"{narrow / plain:.2f} times as long as bf16, and no constant says why"


def worse(case: Case) -> list[str]:
    """Keys, each with its source, that make the class slower than bf16 of the same family."""
    found = load(case.name).parameters

    def key(stem: str, dtype: str, scaling: str) -> str | None:
        tails = [f"{dtype}.{scaling}", dtype] if scaling else [dtype]
        names = [f"{stem}.{middle}{tail}" for tail in tails for middle in (f"{case.family}.", "")]
        return next((name for name in (*names, f"{stem}.{case.family}", stem) if name in found), None)

    slower = []
    for stem in (*STEMS_LESS_IS_SLOWER, *STEMS_MORE_IS_SLOWER):
        mine, theirs = key(stem, case.op.dtype, case.op.scaling), key(stem, "bf16", "")
        if mine is None or theirs is None or mine == theirs:
            continue
        sign = -1.0 if stem in STEMS_LESS_IS_SLOWER else 1.0
        if sign * found[mine].value > sign * found[theirs].value and (found[mine].source or found[theirs].source):
            slower.append(mine)
    return slower


ROUTERS = st.builds(
    Gemm, name=st.just("router"), m=st.sampled_from((2048, 4096, 8192, 16384)), n=st.sampled_from((8, 16, 64, 128, 256)),
    k=st.sampled_from((1024, 2048, 4096, 7168, 8192)), out_bytes=st.just(4.0),
)  # fmt: skip


@pytest.mark.parametrize("name", [name for name in gpu_names() if gpu(name).vendor in ("amd", "nvidia")])
@given(router=ROUTERS)
def test_routers_in_fp32_exist_and_are_slower_than_in_half_precision(name: str, router: Gemm) -> None:
    half = "bf16" if "bf16" in gpu(name).peak else "fp16"
    at = model(name, library(name))
    low, tf32, fp32 = at.times([replace(router, dtype=dtype) for dtype in (half, "tf32", "fp32")]).seconds
    assert low <= tf32 * TIGHT
    alike = gpu(name).peak["fp32"] / gpu(name).peak.get("tf32", math.inf)  # cards whose vector units are as fast
    assert tf32 <= fp32 * TIGHT * max(1.0, alike)


@pytest.mark.parametrize("name", [name for name in gpu_names() if "bf16" in gpu(name).peak])
def test_routers_in_int8_exist(name: str) -> None:
    """Without a rate of their own they run at that of bf16, on half the operand bytes."""
    op = Gemm(name="router", m=8192, n=128, k=4096, dtype="int8", out_bytes=4.0)
    device = gpu(name)
    took = model(name, library(name)).times([op]).seconds[0]
    assert took >= op.flops / (device.peak_of("int8") * max(1.0, device.boost_clock_mhz / device.peak_clock_mhz))
