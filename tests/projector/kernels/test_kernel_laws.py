"""Single terms of the kernel laws in closed form: whole waves, an accumulated output, one fill for each launch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from projector.hardware.catalogue import gpu
from projector.hardware.efficiency import load
from projector.kernels import gemm
from projector.kernels.simulate import Simulated
from projector.kernels.tiles import parse
from projector.mechanisms import Execution
from projector.operators.types import Stream

ONE_TILE = parse("128x128x64")
# Ten units, no memory limit, no fixed costs: a product takes whole rounds of ten tiles.
LAW = gemm.GemmConstants(
    rate=1e12,
    bandwidth=1e18,
    prologue=0.0,
    prologue_floor=0.0,
    launch=0.0,
    waves=1.0,
    perimeter=0.0,
    iteration=0.0,
    exposed=0.0,
    cold=0.0,
    split=1.0,
    split_bytes=8.0,
    burst=0.0,
    burst_decay=1e-3,
    k_bytes=2.0,
    units=10.0,
)


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
